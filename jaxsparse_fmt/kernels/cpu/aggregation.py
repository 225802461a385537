"""Smoothed aggregation on the host: aggregates, prolongations and coarse matrices in compiled code over all cores.

Vaněk, Mandel and Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order elliptic problems"
(1996). The aggregation itself, a greedy algorithm, runs on one core and takes 1% of the time of a set-up. The results
do not depend on the number of threads. Matrices are SciPy's, in CSR with sorted rows. Where a point has b unknowns, its
rows hold whole blocks, so the same arrays also describe a matrix of blocks.
"""

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels.cpu import over_rows as host
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows

Matrix = Any  # scipy.sparse.csr_array


class Blocks(NamedTuple):
    """A matrix in CSR as a matrix of whole blocks b×c: point i has the blocks from ptr[i] to ptr[i + 1]."""

    ptr: np.ndarray  # [points + 1]
    col: np.ndarray  # [blocks], the points of the columns
    val: np.ndarray  # [blocks·b·c], in the order of CSR


def blocks(A: Matrix, b: int, c: int) -> Blocks:
    if b == c == 1:
        return Blocks(*_arrays(A))
    ptr = np.ascontiguousarray(A.indptr[::b] // (b * c))
    col = np.empty(ptr[-1], A.indices.dtype)
    _over_rows(("points", (b, c)), ptr.size - 1, 0, A.indptr, A.indices, ptr, col)
    return Blocks(ptr, col, A.data)


def has_holes(A: Matrix, b: int) -> bool:
    """Whether A differs from a matrix of whole blocks b×b."""
    points = A.shape[0] // b
    if b == 1 or np.any(np.diff(A.indptr[::b]) % (b * b)):
        return b > 1
    missing = np.empty(points, np.int32)
    _over_rows(("holes", b), points, 0, A.indptr, A.indices, missing)
    return bool(np.any(missing))


def filled(A: Matrix, b: int) -> Matrix:
    """A with zeros in the holes of its blocks b×b."""
    if not has_holes(A, b):
        return A
    whole = scipy.sparse.bsr_array(A, blocksize=(b, b))
    whole.sort_indices()
    return scipy.sparse.csr_array(whole)


def strength(A: Blocks, b: int, theta: float) -> np.ndarray:
    """Whether each coupling of two points is strong [blocks]."""
    points = A.ptr.size - 1
    root, chosen = np.empty(points), np.empty(A.col.size, bool)
    _over_rows(("roots", b), points, 0, *A, root)
    _over_rows(("strong", b), points, 0, float(theta), *A, root, chosen.view(np.uint8))
    return chosen


def aggregates(A: Blocks, chosen: np.ndarray) -> tuple[np.ndarray, int]:
    """The aggregate of each point [points] int32, -1 without strong neighbours, and the number of aggregates."""
    points = A.ptr.size - 1
    agg, count = np.full(points, -1, np.int32), np.zeros(1, np.int64)
    _over_rows("aggregate", points, 0, *A[:2], chosen.view(np.uint8), agg, count, rows=points)
    return agg, int(count[0])


def tentative(
    agg: np.ndarray,  # [points]
    count: int,
    B: np.ndarray,  # [n, k]
) -> tuple[np.ndarray, np.ndarray]:
    """Q [n, k] and R [count·k, k] with B = Q·R: Q is orthonormal on each aggregate and zero elsewhere."""
    (n, k), points = B.shape, agg.size
    inside = np.flatnonzero(agg >= 0)
    sorted_ = scipy.sparse.csr_array((np.ones(inside.size, np.int8), (agg[inside], inside)), shape=(count, points))
    Q, R = np.zeros_like(B), np.zeros((count * k, k), B.dtype)
    _over_rows("orthonormalize", count, 0, n // points, k, sorted_.indptr, sorted_.indices, B, Q, R)
    return Q, R


def lumped(A: Blocks, chosen: np.ndarray) -> np.ndarray:
    """The columns of A' [blocks], which is A with its weak couplings moved to the diagonal: rows keep their sums."""
    return np.where(chosen, A.col, np.repeat(np.arange(A.ptr.size - 1, dtype=np.int32), np.diff(A.ptr)))


def placed(
    agg: np.ndarray,  # [points]
    count: int,
    Q: np.ndarray,  # [n, k]
) -> Matrix:
    """T [n, count·k], which holds the rows of Q in the columns of their aggregates."""
    n, k = Q.shape
    of_row = np.repeat(agg, n // agg.size)
    inside = of_row >= 0
    ptr = np.append(0, np.cumsum(k * inside, dtype=index_dtype(Q.size)))
    col = (k * of_row[inside, None] + np.arange(k, dtype=np.int32)).ravel()
    return scipy.sparse.csr_array((Q[inside].ravel(), col, ptr), shape=(n, max(count, 1) * k))


def prolongation(
    A: Blocks,
    b: int,
    chosen: np.ndarray,  # [blocks] the couplings that are not lumped
    agg: np.ndarray,  # [points]
    count: int,
    Q: np.ndarray,  # [n, k]
    scale: np.ndarray,  # [n]
) -> Matrix:
    """P = T - diag(scale)·A'·T, for the A' of `lumped` and the T of `placed`; neither is formed."""
    (n, k), points = Q.shape, agg.size
    ptr, chosen = np.zeros(n + 1, np.int64), chosen.view(np.uint8)
    run = functools.partial(_over_rows, ("prolong", (b, k)), points, count, before=A.ptr)
    given = *A, chosen, agg, Q, scale
    run(0, *given, ptr, np.empty(1, np.int32), np.empty(1, Q.dtype))
    ptr = np.cumsum(ptr, dtype=index_dtype(int(ptr.sum())))
    col, val = host.empty(ptr[-1], np.int32), host.empty(ptr[-1], Q.dtype)
    run(1, *given, ptr, col, val)
    return _canonical(val, col, ptr, (n, max(count, 1) * k))


def galerkin(R: Matrix, A: Blocks, P: Matrix, b: int, k: int, hermitian: bool, most: float = np.inf) -> Matrix | None:
    """R·A·P, row by row and without an intermediate matrix; blocks of R are k×b, of A b×b, of P b×k.

    None if it has more than `most` blocks. Of a Hermitian product, with R = Pᴴ, only the blocks from the diagonal on
    are computed; a row that has blocks then has one on the diagonal.

    Each piece of the rows takes as many chunks of memory as it needs, so no entries are counted first.
    """
    left, right, points, m = blocks(R, k, b), blocks(P, b, k), A.ptr.size - 1, P.shape[1] // k
    most = (most + m) / 2 if hermitian else most
    cuts = host.equal_pieces(left.ptr, host.PIECES if left.ptr[-1] > host.SERIAL else 1)
    lengths, made = np.zeros(m + 1, np.int64), [[] for _ in cuts[1:]]
    pieces = iter(list(zip(made, itertools.pairwise(cuts.tolist()), strict=True)))

    def thread() -> None:
        marks, met, found = np.full(points + m, -1, np.int64), np.empty(points, np.int32), np.empty(m, np.int32)
        near, sums, reached = np.empty(points * b * k, A.val.dtype), np.empty(m * k * k, A.val.dtype), np.zeros(2, int)
        scratch = met, near, found, sums
        for chunks, (begin, end) in pieces:
            if sum(len(col) for piece in made for _, _, col, _ in piece) > most:
                return
            room = int((1 if hermitian else 2) * (left.ptr[end] - left.ptr[begin]))
            while begin < end:
                col, val = np.empty(room, np.int32), np.empty(room * k * k, A.val.dtype)
                given = int(hermitian), points, *left, *A, *right, *scratch, room, lengths, col, val, reached
                host.call(_kernels, ("galerkin", (b, k)), begin, end, marks, *given)
                room = room if reached[0] > begin else 2 * room
                start, begin, used = begin, int(reached[0]), int(reached[1])
                chunks.append((start, begin, col[:used], val[: used * k * k]))

    host.in_threads(thread, len(made))
    if lengths.sum() > most:
        return None
    chunks = [chunk for piece in made for chunk in piece]
    made.clear()
    whole = lengths[1:].copy()
    if hermitian:
        for _, _, col, _ in chunks:
            whole += np.bincount(col, minlength=m)
        whole -= lengths[1:] > 0
    ptr, entries = np.append(0, np.cumsum(whole)), k * k * int(whole.sum())
    col, val, place = host.empty(entries, np.int32), host.empty(entries, A.val.dtype), np.zeros(m, np.int64)
    while chunks:  # each is freed once it is copied
        begin, end, *given = chunks.pop(0)
        host.call(_kernels, ("assemble", k), begin, end, place, int(hermitian), lengths, *given, ptr, place, col, val)
    indptr = np.append(0, np.cumsum(np.repeat(k * whole, k))).astype(index_dtype(entries))
    return _canonical(val, col, indptr, (m * k, m * k))


def transposed(A: Matrix) -> Matrix:
    """Aᴴ, by SciPy's algorithm on one core, in arrays that a device takes without a copy."""
    ptr = np.zeros(A.shape[1] + 1, A.indptr.dtype)
    np.cumsum(np.bincount(A.indices, minlength=A.shape[1]), out=ptr[1:])
    col, val = host.empty(A.nnz, np.int32), host.empty(A.nnz, A.dtype)
    _over_rows("transpose", A.shape[0], 0, *_arrays(A), ptr.copy(), col, val, rows=A.shape[0])
    return _canonical(val, col, ptr, A.shape[::-1])


def add_product(
    y: np.ndarray,  # [n]
    c: float,
    f: float,
    left: np.ndarray,  # [n]
    A: Matrix,
    x: np.ndarray,  # [n]
    v: np.ndarray,  # [n]
) -> Any:
    """Writes c·y + f·diag(left)·A·x over y; returns the inner product of v and the new y."""
    part = np.empty(-(-y.size // host.ROWS), y.dtype)
    _over_rows("add_product", y.size, 0, float(c), float(f), left, *_arrays(A), x, y, host.ROWS, v, part)
    return part.sum()


def subtract(
    y: np.ndarray,  # [n]
    c: float,
    v: np.ndarray,  # [n]
    scale: np.ndarray,  # [n]
    x: np.ndarray,  # [n]
) -> float:
    """Writes y - c·v over y and diag(scale)·y over x; returns the norm of y."""
    part = np.empty(-(-y.size // host.ROWS))
    _over_rows("subtract", y.size, 0, float(c), v, y, scale, x, host.ROWS, part)
    return float(np.sqrt(part.sum()))


def sums(A: Matrix) -> np.ndarray:
    """The sum of the absolute values in each row [n]."""
    y = np.empty(A.shape[0])
    _over_rows("sums", A.shape[0], 0, A.indptr, A.data, y)
    return y


def squares(
    A: Matrix,
    x: np.ndarray,  # [n_cols] float64
) -> np.ndarray:  # [n_rows]
    """S·x, where S has the squares of the absolute values of A."""
    y = np.empty(A.shape[0])
    _over_rows("squares", A.shape[0], 0, *_arrays(A), x, y)
    return y


def asymmetry(A: Matrix) -> float:
    """The largest entry of |A - Aᴴ|."""
    largest = np.empty(A.shape[0])
    _over_rows("asymmetry", A.shape[0], A.shape[0], *_arrays(A), largest)
    return float(np.max(largest, initial=0))


def _canonical(val: np.ndarray, col: np.ndarray, ptr: np.ndarray, shape: tuple[int, int]) -> Matrix:
    made = scipy.sparse.csr_array((val, col, ptr), shape=shape)
    made.has_canonical_format = True
    return made


def _arrays(A: Matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return A.indptr, A.indices, A.data


def _kernels() -> Any:
    from jaxsparse_fmt.kernels.cpu import aggregation_kernels

    return aggregation_kernels


_over_rows = functools.partial(over_rows, _kernels)
