"""Numba kernels for coordinates in the order of rows: `ptr` [n_stored] is the row of each place, n_rows in padding."""

import numpy as np

from jaxsparse_fmt.kernels.cpu.numba_kernels import U, _inner, _row_sum, _scatter, compiled, inlined


@compiled
def _first_place(o, piece, pieces):
    """The first place of a piece: that of a row, so that no row is in two pieces."""
    k = o.n_places * U(piece) // U(pieces)
    while U(0) < k < o.n_places and o.ptr[k] == o.ptr[k - U(1)]:
        k += U(1)
    return k


@compiled
def product_coordinates(o, piece, pieces):
    """A·x of the rows of a piece and of the empty ones before each; rows are added as `product_rows` adds them."""
    k, last = _first_place(o, piece, pieces), _first_place(o, piece + 1, pieces)
    row = U(0) if k == U(0) else min(U(o.ptr[k - U(1)]) + U(1), o.n_rows)
    while k < last:
        this = U(o.ptr[k])
        if this >= o.n_rows:
            break
        end = k + U(1)
        while end < last and U(o.ptr[end]) == this:
            end += U(1)
        for i in range(row * o.p, this * o.p):
            o.out[i] = o.zero
        for q in range(o.p):
            o.out[this * o.p + q] = _row_sum(o, k, end, o.p, q)
        row, k = this + U(1), end
    if k < last or last == o.n_places:  # no row follows
        for i in range(row * o.p, o.n_rows * o.p):
            o.out[i] = o.zero


@inlined
def _is_entry(o, k):
    return U(np.uint32(o.columns[k])) < o.n_cols and U(o.ptr[k]) < o.n_rows


@compiled
def transposed_coordinates(o, piece, pieces):
    """x = Aᵀ·y of the places of a piece alone."""
    for i in range(o.n_cols * o.p):
        o.out[i] = o.zero
    for k in range(o.n_places * U(piece) // U(pieces), o.n_places * U(piece + 1) // U(pieces)):
        if _is_entry(o, k):
            _scatter(o, U(np.uint32(o.columns[k])), type(o.zero)(o.a[k]), U(o.ptr[k]))


@compiled
def outer_coordinates(o, piece, pieces):
    """Σ_p y[row, p]·x[col, p] at the places of a piece."""
    for k in range(o.n_places * U(piece) // U(pieces), o.n_places * U(piece + 1) // U(pieces)):
        o.out[k] = _inner(o, U(o.ptr[k]), U(np.uint32(o.columns[k]))) if _is_entry(o, k) else o.zero
