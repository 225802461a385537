"""The kernels of `spgemm.py`, and of the values of a product of sparse matrices, which Numba compiles.

Those of the first group run over the rows from `begin` to `end`; all arrays are pointers:

marks              [n_cols] int64, -1 at first; `columns` leaves its own numbers in them
a_ptr, a_col       [n_rows + 1] int64, [nnz] int32; b_ptr, b_col likewise
entries, summed    [n_rows + 1] int64, written at row + 1
indptr, before     [n_rows + 1] int64: entries of C, and products, in the rows before
indices, first     [nnz of C] int32 and int64
left, right        [products] int32, written
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt.kernels.cpu.numba_kernels import U, compiled, inlined


def count(begin, end, marks, a_ptr, a_col, b_ptr, b_col, entries, summed):
    """Counts the entries of the rows of C, and the products that they sum."""
    for row in range(begin, end):
        found, products = 0, 0
        for i in range(a_ptr[row], a_ptr[row + 1]):
            k = a_col[i]
            products += b_ptr[k + 1] - b_ptr[k]
            for j in range(b_ptr[k], b_ptr[k + 1]):
                if marks[b_col[j]] != row:
                    marks[b_col[j]] = row
                    found += 1
        entries[row + 1], summed[row + 1] = found, products


def columns(begin, end, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices):
    """Writes the sorted columns of the rows of C."""
    for row in range(begin, end):
        start = indptr[row]
        stop = start
        for i in range(a_ptr[row], a_ptr[row + 1]):
            k = a_col[i]
            for j in range(b_ptr[k], b_ptr[k + 1]):
                col = b_col[j]
                if marks[col] != row:
                    marks[col] = row
                    indices[stop] = col
                    stop += 1
        _sort(indices, start, stop)


def pairs(begin, end, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices, before, first, left, right):
    """Writes the products of each entry of C by rising column of A, and where they begin."""
    for row in range(begin, end):
        for n in range(indptr[row], indptr[row + 1]):
            marks[indices[n]] = 0
        for i in range(a_ptr[row], a_ptr[row + 1]):
            for j in range(b_ptr[a_col[i]], b_ptr[a_col[i] + 1]):
                marks[b_col[j]] += 1
        place = before[row]
        for n in range(indptr[row], indptr[row + 1]):
            first[n] = place
            place += marks[indices[n]]
            marks[indices[n]] = first[n]
        for i in range(a_ptr[row], a_ptr[row + 1]):
            for j in range(b_ptr[a_col[i]], b_ptr[a_col[i] + 1]):
                place = marks[b_col[j]]
                left[place], right[place] = i, j
                marks[b_col[j]] = place + 1


@compiled
def _sort(keys, start, stop):
    """Shell's sort, by gaps of Knuth."""
    gap = 1
    while gap < (stop - start) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for n in range(start + gap, stop):
            key, at = keys[n], n
            while at >= start + gap and keys[at - gap] > key:
                keys[at] = keys[at - gap]
                at -= gap
            keys[at] = key
        gap //= 3


# ------------------------------------------------------------------------------------------------------ the values


class Pairs(NamedTuple):
    """The operands of the three faces of Σ a[i]·b[j]·c[n]: `out` is that which `x` and `y` are not.

    Attributes:
      sums: [n_cols] scratch, whose numbers at the columns of a row of C are that row while the kernel is there.
      zero: of the dtype of sums and of the result.
    """

    x: Any
    y: Any
    out: Any
    sums: Any
    a_ptr: Any
    a_col: Any
    b_ptr: Any
    b_col: Any
    c_ptr: Any
    c_col: Any
    zero: Any


@compiled
def product_pairs(o, begin, end):
    """c[n] = Σ a[i]·b[j]: x is a, y is b."""
    for row in range(begin, end):
        first, last = U(o.c_ptr[U(row)]), U(o.c_ptr[U(row + 1)])
        for n in range(first, last):
            o.sums[U(np.uint32(o.c_col[n]))] = o.zero
        for i in range(U(o.a_ptr[U(row)]), U(o.a_ptr[U(row + 1)])):
            k, value = U(np.uint32(o.a_col[i])), type(o.zero)(o.x[i])
            for j in range(U(o.b_ptr[k]), U(o.b_ptr[k + U(1)])):
                o.sums[U(np.uint32(o.b_col[j]))] += value * type(o.zero)(o.y[j])
        for n in range(first, last):
            o.out[n] = o.sums[U(np.uint32(o.c_col[n]))]


@inlined
def _load_row(o, row, c):
    for n in range(U(o.c_ptr[U(row)]), U(o.c_ptr[U(row + 1)])):
        o.sums[U(np.uint32(o.c_col[n]))] = type(o.zero)(c[n])


@compiled
def transposed_pairs(o, begin, end):
    """b[j] = Σ a[i]·c[n], added to `out`: x is a, y is c."""
    for row in range(begin, end):
        _load_row(o, row, o.y)
        for i in range(U(o.a_ptr[U(row)]), U(o.a_ptr[U(row + 1)])):
            k, value = U(np.uint32(o.a_col[i])), type(o.zero)(o.x[i])
            for j in range(U(o.b_ptr[k]), U(o.b_ptr[k + U(1)])):
                o.out[j] += value * o.sums[U(np.uint32(o.b_col[j]))]


@compiled
def outer_pairs(o, begin, end):
    """a[i] = Σ c[n]·b[j]: x is c, y is b."""
    for row in range(begin, end):
        _load_row(o, row, o.x)
        for i in range(U(o.a_ptr[U(row)]), U(o.a_ptr[U(row + 1)])):
            k, total = U(np.uint32(o.a_col[i])), o.zero
            for j in range(U(o.b_ptr[k]), U(o.b_ptr[k + U(1)])):
                total += type(o.zero)(o.y[j]) * o.sums[U(np.uint32(o.b_col[j]))]
            o.out[i] = total


FACES = {"product": product_pairs, "transposed": transposed_pairs, "outer": outer_pairs}


def of_pairs(face, zero, sizes):
    """The kernel of a face: piece k of n takes the rows from cuts[k·m // n] on, with m cuts."""
    run, adds = FACES[face], face == "transposed"
    pieces, n_perm, n_places = (sizes.index(name) for name in ("pieces", "n_perm", "n_places"))

    def kernel(x, y, out, a_col, a_ptr, cuts, c_ptr, b_col, b_ptr, c_col, sums, words, piece):
        if adds:
            for j in range(U(words[n_places])):
                out[j] = zero
        m, n = words[n_perm] - 1, words[pieces]
        o = Pairs(x, y, out, sums, a_ptr, a_col, b_ptr, b_col, c_ptr, c_col, zero)
        run(o, np.int64(cuts[U(m * piece // n)]), np.int64(cuts[U(m * (piece + 1) // n)]))

    return kernel


# ------------------------------------------------------------------------------------------------------- coordinates


def place(begin, end, marks, k, key, ptr, order):
    """Writes the numbers of the coordinates whose key is from `begin` to `end`, by key; `ptr` [n + 1] counts them."""
    for row in range(begin, end):
        marks[row] = ptr[row]
    for e in range(k[0]):
        row = key[e]
        if begin <= row and row < end:
            order[marks[row]] = e
            marks[row] += 1


def sort_rows(begin, end, marks, ptr, col, order, sorted_col, entries):
    """Sorts each row's coordinates by column, equal ones by number, and counts the columns."""
    for row in range(begin, end):
        start, stop = ptr[row], ptr[row + 1]
        gap = 1
        while gap < (stop - start) // 3:
            gap = 3 * gap + 1
        for n in range(start, stop):
            sorted_col[n] = col[order[n]]
        while gap > 0:
            for n in range(start + gap, stop):
                key, number, at = sorted_col[n], order[n], n
                while at >= start + gap:
                    before, other = sorted_col[at - gap], order[at - gap]
                    if before < key or (before == key and other < number):
                        break
                    sorted_col[at], order[at] = before, other
                    at -= gap
                sorted_col[at], order[at] = key, number
            gap //= 3
        found = 0
        for n in range(start, stop):
            if n == start or sorted_col[n] != sorted_col[n - 1]:
                found += 1
        entries[row + 1] = found


def first_of_each(begin, end, marks, ptr, sorted_col, indptr, indices, first):
    """Writes the columns of each row once, and the place of the first coordinate of each."""
    for row in range(begin, end):
        at = indptr[row]
        for n in range(ptr[row], ptr[row + 1]):
            if n == ptr[row] or sorted_col[n] != sorted_col[n - 1]:
                indices[at], first[at] = sorted_col[n], n
                at += 1
