"""Symmetric Matrix Market files: adds the other triangle, and refuses entries that the symmetry excludes."""

import numpy as np
import scipy.sparse as sp


def coordinates(
    path: str,
    symmetry: str,
    shape: tuple[int, int],
    place: tuple[np.ndarray, np.ndarray],  # rows and columns [entries], from 0
    value: np.ndarray,  # [entries]
) -> sp.coo_array:
    """All entries, and behind them their mirror images.

    Raises:
        ValueError: two entries that mirror each other, or a diagonal that the symmetry excludes.
    """
    row, col = place
    if symmetry == "general":
        return sp.coo_array((value, (row, col)), shape=shape)
    _check_triangle(path, symmetry, shape[1], row, col)
    beside = row != col
    _check_diagonal(path, symmetry, value[~beside])
    values = np.concatenate([value, _mirrored(symmetry, value[beside])])
    rows, cols = np.concatenate([row, col[beside]]), np.concatenate([col, row[beside]])
    return sp.coo_array((values, (rows, cols)), shape=shape)


def array(
    path: str,
    symmetry: str,
    shape: tuple[int, int],
    value: np.ndarray,  # [entries] by columns; of a symmetric matrix, from the diagonal or below it
) -> np.ndarray:
    """[rows, cols]. Raises ValueError for a diagonal that the symmetry excludes."""
    if symmetry == "general":
        return value.reshape(shape[::-1]).T
    stored = np.triu(np.ones(shape, bool), symmetry == "skew-symmetric")  # of the transpose
    full = np.zeros(shape, value.dtype)
    full[stored] = _mirrored(symmetry, value)
    full.T[stored] = value
    _check_diagonal(path, symmetry, np.diagonal(full))
    return full


def _mirrored(symmetry: str, value: np.ndarray) -> np.ndarray:
    return {"skew-symmetric": np.negative, "hermitian": np.conj}.get(symmetry, np.asarray)(value)


def _check_diagonal(path: str, symmetry: str, diagonal: np.ndarray) -> None:
    excluded = {"skew-symmetric": diagonal, "hermitian": np.imag(diagonal)}.get(symmetry, np.zeros(0)) != 0
    if excluded.any():
        value = diagonal[excluded.argmax()]
        raise ValueError(f"{path}: {value} on the diagonal, which {symmetry} excludes; make the banner general")


def _check_triangle(path: str, symmetry: str, n_cols: int, row: np.ndarray, col: np.ndarray) -> None:
    """Refuses a file that holds an entry and its mirror image, since each would be mirrored."""
    lower, upper = row > col, row < col
    if lower.any() and upper.any():
        pair = np.minimum(row, col).astype(np.int64) * n_cols + np.maximum(row, col)
        both = np.intersect1d(pair[lower], pair[upper])
        if both.size:
            i, j = divmod(int(both[0]), n_cols)
            what = f"({i + 1}, {j + 1}) and ({j + 1}, {i + 1}) of a {symmetry} file count twice"
            raise ValueError(f"{path}: {what}; store one triangle, or make the banner general")
