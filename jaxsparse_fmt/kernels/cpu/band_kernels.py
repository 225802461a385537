"""The Numba kernel for block banded systems: elimination with row interchanges, one system after the other."""

import numpy as np

from jaxsparse_fmt.kernels.cpu.numba_kernels import U, compiled, inlined, quotient


@inlined
def _load_rows(o, bands, work, block, lower, upper, m):
    """Writes a block row of A, and zeros for its fill, where row i has column c at work + i·width + c; if finite."""
    n, width, finite, transposed = np.int64(o.n_rows), (2 * lower + upper + 1) * m, True, o.masked == U(1)
    across = m if transposed else 1  # from one column of a block to the next
    first, last = max(block - lower, 0), min(block + upper + 1, n)
    for i in range(block * m, (block + 1) * m):
        row = work + i * width
        for c in range(last * m, (block + lower + upper + 1) * m):
            o.out[row + c] = o.zero
        for J in range(first, last):
            k, within = (lower + J - block) * n + block if transposed else (upper + block - J) * n + J, i - block * m
            source = bands + k * m * m + (within if transposed else within * m)
            for c in range(m):
                v = o.a[source + c * across]
                o.out[row + J * m + c] = v
                finite &= v * o.zero == o.zero
    return finite


@inlined
def _size(v):
    return abs(v.real) + abs(v.imag)


@inlined
def _eliminate(w, work, width, x, p, j, rows, columns, zero):
    """Eliminates column j from the rows below, after an interchange of rows; whether the pivot is finite and not 0."""
    pivot, best = j, _size(w[work + j * width + j])
    for i in range(j + 1, rows):
        size = _size(w[work + i * width + j])
        if size > best:
            pivot, best = i, size
    if not 0 < best < np.inf:
        return False
    top, other = work + j * width, work + pivot * width
    if pivot != j:
        for c in range(j, columns):
            w[top + c], w[other + c] = w[other + c], w[top + c]
        for q in range(p):
            w[x + j * p + q], w[x + pivot * p + q] = w[x + pivot * p + q], w[x + j * p + q]
    for i in range(j + 1, rows):
        row = work + i * width
        if w[row + j] != zero:
            f = w[row + j] / w[top + j]
            for c in range(j + 1, columns):
                w[row + c] -= f * w[top + c]
            for q in range(p):
                w[x + i * p + q] -= f * w[x + j * p + q]
    return True


@compiled
def solved_bands(o, piece, pieces):
    """x of A·x = b for each system of a piece, by elimination with row interchanges, as LAPACK's gbsv.

    Interchanges lengthen rows by `lower` blocks. Rows and columns end with a block: so a block tridiagonal matrix takes
    half of the work of the band around it. If A is singular, or not finite, x is NaN.

    a                  [n_cols, lower + upper + 1, n_rows, m, m], block (I, J) of A at [upper + I - J, J]; with `masked`
                       the same of Aᵀ, where lower and upper are still those of A
    b                  [n_cols, n_rows·m, p]
    out                like b, then for each piece the rows of one A, [n_rows·m·(width + 1)]
    ptr                lower, upper, m
    """
    lower, upper, m = np.int64(o.ptr[0]), np.int64(o.ptr[1]), np.int64(o.ptr[2])
    n, systems, p = np.int64(o.n_rows), np.int64(o.n_cols), np.int64(o.p)
    size, width, w = n * m, (2 * lower + upper + 1) * m, o.out
    work = systems * size * p + piece * size * (width + 1) + lower * m
    for system in range(systems * piece // pieces, systems * (piece + 1) // pieces):
        bands, x, regular = system * (lower + upper + 1) * size * m, system * size * p, True
        for i in range(x, x + size * p):
            w[i] = o.b[i]
        for block in range(-lower, n):  # the rows of a block are read `lower` blocks before it is eliminated
            if block + lower < n:
                regular &= _load_rows(o, bands, work, block + lower, lower, upper, m)
            rows, columns = min(block + lower + 1, n) * m, min(block + lower + upper + 1, n) * m
            for j in range(max(block, 0) * m, (block + 1) * m):
                regular = regular and _eliminate(w, work, width, x, p, j, rows, columns, o.zero)
        for block in range(n - 1, -1, -1):
            columns = min(block + lower + upper + 1, n) * m
            for j in range((block + 1) * m - 1, block * m - 1, -1):
                row = work + j * width
                for q in range(p):
                    total = w[x + j * p + q] if regular else type(o.zero)(np.nan)
                    for c in range(j + 1, columns):
                        total -= w[row + c] * w[x + c * p + q]
                    w[x + j * p + q] = quotient(total, w[row + j]) if regular else total
