"""Smoothed aggregation on the host: aggregates, prolongations and coarse matrices.

Vaněk, Mandel and Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order elliptic problems"
(1996). Matrices are SciPy's BSR with sorted rows: a point with b unknowns has blocks b×b, one unknown a block 1×1.
SciPy multiplies; the greedy aggregation and the orthonormal columns of each aggregate are compiled here.
"""

import itertools
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._types import CORES
from jaxsparse_fmt.kernels.cpu.over_rows import in_pieces, in_threads, over_rows

Matrix = Any  # of scipy.sparse
PIECE = 2**27  # multiplications of blocks in all pieces of a product that threads work on: they bound its memory
LEAST = 2**20  # multiplications of a piece: fewer cost less than starting a thread


def points(A: Matrix, b: int) -> Matrix:
    """A in blocks b×b, zeros in their holes; in its own arrays if b = 1 and rows are sorted."""
    A = A.tobsr((b, b), copy=not A.has_sorted_indices)
    A.sort_indices()
    return A


def roots(A: Matrix) -> np.ndarray:
    """The square root of the size of each block on the diagonal [points]."""
    row, root = _rows(A), np.zeros(A.indptr.size - 1)
    diagonal = row == A.indices
    root[row[diagonal]] = np.sqrt(_sizes(A)[diagonal])
    return root


def strength(A: Matrix, root: np.ndarray, theta: float) -> np.ndarray:
    """Whether each coupling of two points is strong [blocks]; that of a point with itself is. `root` is by column."""
    size, row = _sizes(A), _rows(A)

    def strong(size: np.ndarray, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray]:
        return ((row == col) | (size >= theta * root[row] * root[col]),)

    return in_pieces(strong, size, row, A.indices)[0]


def aggregates(A: Matrix, chosen: np.ndarray) -> tuple[np.ndarray, int]:
    """The aggregate of each point [points] int32, -1 without strong neighbours, and the number of aggregates.

    Couplings in columns after the rows' own are those with points elsewhere, which are in no aggregate here. A point
    that no other one couples strongly is an aggregate by itself: smoothers do not see what it has in common with them.
    """
    n, row = A.indptr.size - 1, _rows(A)
    beyond = np.unique(row[chosen & (A.indices >= n)])
    chosen = chosen & (A.indices < n) if beyond.size else chosen
    others = np.append(0, np.cumsum(chosen & (row != A.indices)))  # strong couplings up to a block
    agg, count = np.full(n, -1, np.int32), np.zeros(1, np.int64)
    over_rows(aggregate, n, 0, others[A.indptr], A.indices[np.diff(others) > 0], agg, count, rows=n)
    alone = beyond[agg[beyond] < 0]
    agg[alone] = count[0] + np.arange(alone.size)
    return agg, int(count[0]) + alone.size


def left_over(A: Matrix, agg: np.ndarray) -> int:
    """The points that are in no aggregate, though their couplings sum up to more than half their diagonal."""
    if not np.any(agg < 0):
        return 0
    size, row = _sizes(A), _rows(A)
    coupled = np.bincount(row, np.where(row == A.indices, -0.5, 1) * size, agg.size) > 0
    return int(np.sum(coupled & (agg < 0)))


def tentative(
    agg: np.ndarray,  # [points]
    count: int,
    B: np.ndarray,  # [n, k]
) -> tuple[np.ndarray, np.ndarray]:
    """Q [n, k] and R [count·k, k] with B = Q·R: Q is orthonormal on each aggregate and zero elsewhere."""
    (n, k), inside = B.shape, np.flatnonzero(agg >= 0)
    b, inside = n // max(agg.size, 1), inside[np.argsort(agg[inside], kind="stable")]
    rows = (b * inside[:, None] + np.arange(b)).ravel()  # unknown by unknown, aggregate by aggregate
    first = b * np.append(0, np.cumsum(np.bincount(agg[inside], minlength=count)))
    Q, inner, R = np.zeros_like(B), B[rows], np.zeros((count * k, k), B.dtype)
    over_rows(orthonormalize, count, 0, k, first, inner, R)
    Q[rows] = inner
    return Q, R


def placed(
    agg: np.ndarray,  # [points]
    count: int,
    Q: np.ndarray,  # [points, b, k]
) -> Matrix:
    """T [n, count·k], which holds the rows of Q in the columns of their aggregates."""
    (n, b, k), inside = Q.shape, agg >= 0
    blocks = Q[inside], agg[inside], np.append(0, np.cumsum(inside))
    return scipy.sparse.bsr_array(blocks, shape=(n * b, count * k))


def lumped(A: Matrix, chosen: np.ndarray) -> np.ndarray:
    """The columns of A' [blocks], which is A with its weak couplings moved to the diagonal: rows keep their sums."""
    return np.where(chosen, A.indices, _rows(A))


def prolongation(
    A: Matrix,
    chosen: np.ndarray,  # [blocks] the couplings that are not lumped
    T: Matrix,  # of all columns of A, those of its rows first
    scale: np.ndarray,  # [n]
) -> Matrix:
    """P = T - diag(scale)·A'·T."""
    step = _multiplied(scipy.sparse.bsr_array((A.data, lumped(A, chosen), A.indptr), shape=A.shape), T)
    step.data *= scale.reshape(-1, A.blocksize[0], 1)[_rows(step)]
    end = T.indptr[A.indptr.size - 1]
    own = T.data[:end], T.indices[:end], T.indptr[: A.indptr.size]
    P = scipy.sparse.bsr_array(own, shape=step.shape) - step
    P.sort_indices()
    return P


def galerkin(R: Matrix, A: Matrix, P: Matrix, most: float) -> Matrix | None:
    """R·A·P, or None if it has more than `most` blocks, found before all of them are computed."""
    return _multiplied(R, A, P, most=most)


def _multiplied(A: Matrix, *others: Matrix, most: float = np.inf) -> Any:
    """A times the others, by pieces of A's rows, on every core; None if that has more than `most` blocks."""
    lengths = np.diff(others[-1].indptr).astype(float)
    for S in (*others[-2::-1], A):
        lengths = _pattern(S) @ lengths
    work = np.cumsum(lengths)  # multiplications up to a row's end
    total = work[-1:].sum()
    step = max(min(total, PIECE) / CORES, LEAST, 4 * A.shape[1])  # SciPy marks all columns anew for each piece
    cuts = np.unique([0, *np.searchsorted(work, np.arange(step, total, step)), work.size]).tolist()
    made: dict[int, tuple[np.ndarray, ...]] = {}

    def multiply(rows: tuple[int, int]) -> None:
        if sum(col.size for _, col, _ in list(made.values())) > most:
            return
        begin, end = rows
        ptr, shape = A.indptr[begin : end + 1], ((end - begin) * A.blocksize[0], A.shape[1])
        piece = slice(ptr[0], ptr[-1])
        product = scipy.sparse.bsr_array((A.data[piece], A.indices[piece], ptr - ptr[0]), shape=shape)
        for S in others:
            product = product @ S
        product.sort_indices()
        made[begin] = product.data, product.indices, np.diff(product.indptr)

    in_threads(multiply, itertools.pairwise(cuts if len(cuts) > 1 else [0, 0]))
    data, col, lengths = (np.concatenate(a) for a in zip(*(made[begin] for begin in sorted(made)), strict=True))
    if col.size > most:
        return None
    return scipy.sparse.bsr_array(
        (data, col, np.append(0, np.cumsum(lengths))), shape=(A.shape[0], others[-1].shape[1])
    )


def adjoint(A: Matrix) -> Matrix:
    return A.conj(copy=False).transpose()


def sums(A: Matrix) -> np.ndarray:
    """The sum of the absolute values in each row [n]."""
    return abs(A) @ np.ones(A.shape[1])


def _sizes(A: Matrix) -> np.ndarray:
    """The Frobenius norm of each block."""

    def sizes(blocks: np.ndarray) -> tuple[np.ndarray]:
        if blocks.shape[1:] == (1, 1):
            return (np.abs(blocks[:, 0, 0]),)
        return (np.sqrt(np.einsum("ijk,ijk->i", blocks.conj(), blocks).real),)

    return in_pieces(sizes, A.data)[0]


def _rows(A: Matrix) -> np.ndarray:
    """The point of each block's row."""
    return np.repeat(np.arange(A.indptr.size - 1, dtype=A.indices.dtype), np.diff(A.indptr))


def _pattern(A: Matrix) -> Matrix:
    shape = A.indptr.size - 1, A.shape[1] // A.blocksize[1]
    return scipy.sparse.csr_array((np.ones(A.indices.size), A.indices, A.indptr), shape=shape)


# ------------------------------------------------------------------- kernels for `over_rows`, whose arrays are pointers


def aggregate(begin, end, marks, ptr, col, agg, count):
    """Algorithm 5.1 of Vaněk, Mandel and Brezina (1996), row by row; `agg` starts at -1, `count` [1] at 0.

    ptr and col hold the strong couplings of each point with others.
    """
    n = 0
    for i in range(begin, end):  # a point and its neighbours form one, if none of them is in another
        free = agg[i] == -1 and ptr[i] < ptr[i + 1]
        for e in range(ptr[i], ptr[i + 1]):
            if agg[col[e]] != -1:
                free = False
                break
        if free:
            agg[i] = n
            for e in range(ptr[i], ptr[i + 1]):
                agg[col[e]] = n
            n += 1
    for i in range(begin, end):  # the rest join a neighbour's aggregate a, marked -2 - a until the pass ends
        if agg[i] == -1:
            for e in range(ptr[i], ptr[i + 1]):
                if agg[col[e]] >= 0:
                    agg[i] = -2 - agg[col[e]]
                    break
    for i in range(begin, end):
        if agg[i] < -1:
            agg[i] = -2 - agg[i]
        elif agg[i] == -1 and ptr[i] < ptr[i + 1]:  # left over where couplings are one-sided
            for e in range(ptr[i], ptr[i + 1]):
                if agg[col[e]] == -1:
                    agg[col[e]] = n
            agg[i] = n
            n += 1
    count[0] = n


def orthonormalize(begin, end, marks, k, first, Q, R):
    """Q·R = B by Gram-Schmidt, each step twice, for Q [rows, k] that holds B: aggregate a is rows first[a] and on.

    A column that the columns before it nearly span becomes zero, and so does its row of R.
    """
    for a in range(begin, end):
        rows = range(first[a], first[a + 1])
        for c in range(k):
            whole = 0.0
            for row in rows:
                whole += abs(Q[row * k + c]) ** 2
            for _again in range(2):
                for d in range(c):
                    inner = 0 * Q[0]
                    for row in rows:
                        inner += Q[row * k + d].conjugate() * Q[row * k + c]
                    for row in rows:
                        Q[row * k + c] -= inner * Q[row * k + d]
                    R[(a * k + d) * k + c] += inner
            left = 0.0
            for row in rows:
                left += abs(Q[row * k + c]) ** 2
            size = left**0.5 if left > 1e-20 * whole else 0.0
            R[(a * k + c) * k + c] = size
            for row in rows:
                Q[row * k + c] = Q[row * k + c] / size if size > 0 else 0 * Q[0]
