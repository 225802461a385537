"""Numba kernels for `spgemm.py`, and for the values of a product of sparse matrices.

Those of the first group run over the rows from `begin` to `end`; all arrays are pointers:

marks              [n_cols] int64, -1 at first; `columns` leaves its own numbers in them
a_ptr, a_col       [n_rows + 1] int64, [nnz] int32; b_ptr, b_col likewise
entries, summed    [n_rows + 1] int64, written at row + 1
indptr, before     [n_rows + 1] int64: entries of C, and products, in the rows before
indices, first     [nnz of C] int32 and int64
left, right        [products] int32, written
"""

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
                found += marks[b_col[j]] != row
                marks[b_col[j]] = row
        entries[row + 1], summed[row + 1] = found, products


def columns(begin, end, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices):
    """Writes the sorted columns of the rows of C."""
    for row in range(begin, end):
        _columns_of(row, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices)


def columns_and_values(begin, end, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices, a, b, out):
    """Writes the sorted columns of the rows of C, and their values."""
    for row in range(begin, end):
        start, stop = indptr[row], indptr[row + 1]
        _columns_of(row, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices)
        for n in range(start, stop):
            marks[indices[n]] = n
            out[n] = 0
        for i in range(a_ptr[row], a_ptr[row + 1]):
            k, value = a_col[i], a[i]
            for j in range(b_ptr[k], b_ptr[k + 1]):
                out[marks[b_col[j]]] += value * b[j]


@inlined
def _columns_of(row, marks, a_ptr, a_col, b_ptr, b_col, indptr, indices):
    """Writes the sorted columns of a row of C; marks of earlier rows are less than `indptr[row]`."""
    start, stop = indptr[row], indptr[row + 1]
    at, i = start, a_ptr[row]
    while at < stop:
        k = a_col[i]
        for j in range(b_ptr[k], b_ptr[k + 1]):
            col = b_col[j]
            if marks[col] < start:
                marks[col] = start
                indices[at] = col
                at += 1
        i += 1
    low, high = _bounds(indices, start, stop)
    if high - low > 8 * (stop - start):
        sort(indices, start, stop)
    else:
        at = start
        for col in range(low, high):
            indices[at] = col
            at += marks[col] >= start
        if at < stop:
            indices[at] = high


@compiled
def _bounds(keys, start, stop):
    """The smallest and the largest of keys from `start` to `stop`; 0 and 0 if there are none."""
    if start == stop:
        return np.int32(0), np.int32(0)
    low = high = keys[start]
    for n in range(start + 1, stop):
        low, high = min(low, keys[n]), max(high, keys[n])
    return low, high


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
def sort(keys, start, stop):
    """Shell sort with Knuth's gaps."""
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
    """The operands of the three faces of Σ a[i]·b[j]·c[n]: `x` and `y` are two of a, b and c, `out` the third.

    The patterns are of blocks: m×q of A, q×w of B, m×w of C, in the order of CSR as in `aggregation.Blocks`.

    Attributes:
      sums: [n_cols] scratch, which holds the current row of C at the columns of that row.
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
    m: Any
    q: Any
    w: Any


@inlined
def _ends(ptr, k):
    return U(ptr[k]), U(ptr[k + U(1)])


@inlined
def _copy_row(o, first, last, at, face):
    """Clears the sums of a row of C for the product, or loads them."""
    for n in range(first, last):
        to = o.w * U(np.uint32(o.c_col[n]))
        for c in range(o.w):
            o.sums[to + U(c)] = o.zero if face == 0 else type(o.zero)(o.x[at] if face == 2 else o.y[at])
            at += U(1)


def _sums_of(width):
    """(load, add): the sums of `width` columns side by side as a tuple, which LLVM keeps in registers."""
    if width == 0:
        return inlined(lambda o, at: ()), inlined(lambda o, sums, value, at: ())
    last = width - 1
    load, add = _sums_of(last)
    return inlined(lambda o, at: (*load(o, at), o.sums[at + U(last)])), inlined(
        lambda o, sums, value, at: (*add(o, sums, value, at), sums[last] + value * type(o.zero)(o.y[at + U(last)]))
    )


def _walk(face, width):
    """Face 0 is c[n] = Σ a[i]·b[j], of x = a and y = b. Face 1 adds a[i]·c[n] to b[j], of x = a and y = c; face 2 is
    a[i] = Σ c[n]·b[j], of x = c and y = b.
    """
    load, add = _sums_of(width)

    @inlined
    def walk(o, begin, end):
        for block_row in range(begin, end):
            first, last = _ends(o.c_ptr, U(block_row))
            start, stop = _ends(o.a_ptr, U(block_row))
            for r in range(o.m):
                at_c = o.w * (o.m * first + U(r) * (last - first))
                _copy_row(o, first, last, at_c, face)
                at_a = o.q * (o.m * start + U(r) * (stop - start))
                for i in range(start, stop):
                    low, high = _ends(o.b_ptr, U(np.uint32(o.a_col[i])))
                    at_b, step = o.w * o.q * low, o.w * (high - low)
                    if face == 2:
                        for q in range(o.q):
                            o.out[at_a + U(q)] = o.zero
                    for j in range(low, high):
                        to = o.w * U(np.uint32(o.b_col[j]))
                        at = at_b
                        if face == 0:
                            sums = load(o, to)
                            for q in range(o.q):
                                sums = add(o, sums, type(o.zero)(o.x[at_a + U(q)]), at)
                                at += step
                            c = to
                            for total in sums:
                                o.sums[c] = total
                                c += U(1)
                        else:
                            for q in range(o.q):
                                total = o.zero
                                for c in range(o.w):
                                    if face == 1:
                                        o.out[at + U(c)] += type(o.zero)(o.x[at_a + U(q)]) * o.sums[to + U(c)]
                                    else:
                                        total += type(o.zero)(o.y[at + U(c)]) * o.sums[to + U(c)]
                                if face == 2:
                                    o.out[at_a + U(q)] += total
                                at += step
                        at_b += o.w
                    at_a += o.q
                for n in range(first, last if face == 0 else first):
                    to = o.w * U(np.uint32(o.c_col[n]))
                    for c in range(o.w):
                        o.out[at_c] = o.sums[to + U(c)]
                        at_c += U(1)

    return walk


def of_pairs(face, zero, sizes, width):
    """The kernel of a face: with m + 1 cuts, piece k of n takes the rows from cuts[k·m // n] on."""
    face = ("product", "transposed", "outer").index(face)
    pieces, n_perm, n_places = (sizes.index(name) for name in ("pieces", "n_perm", "n_places"))
    walk = _walk(face, width)
    block_rows, block_columns = sizes.index("block_rows"), sizes.index("block_columns")

    def kernel(x, y, out, a_col, a_ptr, cuts, c_ptr, b_col, b_ptr, c_col, sums, words, piece):
        if face == 1:
            for j in range(U(words[n_places])):
                out[j] = zero
        parts, n = words[n_perm] - 1, words[pieces]
        rows, inner = (U(1), U(1)) if width == 1 else (U(words[block_rows]), U(words[block_columns]))
        o = Pairs(x, y, out, sums, a_ptr, a_col, b_ptr, b_col, c_ptr, c_col, zero, rows, inner, U(width))
        walk(o, np.int64(cuts[U(parts * piece // n)]), np.int64(cuts[U(parts * (piece + 1) // n)]))

    return kernel


# ------------------------------------------------------------------------------------------------------------- sums


def count_sum(begin, end, marks, a_ptr, a_col, b_ptr, b_col, shared, entries):
    """Counts, for each row, the columns that A or B has; with `shared` = 1 those that both have."""
    for row in range(begin, end):
        found, of_both = 0, a_ptr[row + 1] - a_ptr[row] + b_ptr[row + 1] - b_ptr[row]
        for i in range(a_ptr[row], a_ptr[row + 1]):
            marks[a_col[i]] = row
        for j in range(b_ptr[row], b_ptr[row + 1]):
            found += marks[b_col[j]] == row
        entries[row + 1] = found if shared else of_both - found


def merge(begin, end, marks, a_ptr, a_col, b_ptr, b_col, shared, n_a, n_b, indptr, indices, left, right):
    """Writes the columns of `count_sum`, and the entries of A and B there, n_a or n_b where one has none."""
    for row in range(begin, end):
        i, j, at = a_ptr[row], b_ptr[row], indptr[row]
        while at < indptr[row + 1]:
            in_a, in_b = _smaller(i, a_ptr[row + 1], a_col, j, b_ptr[row + 1], b_col)
            indices[at] = a_col[i] if in_a else b_col[j]
            left[at] = i if in_a else n_a
            right[at] = j if in_b else n_b
            i, j, at = i + in_a, j + in_b, at + ((in_a & in_b) if shared else True)


def add(begin, end, marks, a_ptr, a_col, b_ptr, b_col, sign, indptr, indices, a, b, out):
    """Writes the columns and the values of A + sign·B."""
    for row in range(begin, end):
        i, j = a_ptr[row], b_ptr[row]
        for at in range(indptr[row], indptr[row + 1]):
            in_a, in_b = _smaller(i, a_ptr[row + 1], a_col, j, b_ptr[row + 1], b_col)
            indices[at] = a_col[i] if in_a else b_col[j]
            out[at] = (a[i] if in_a else 0) + (b[j] if in_b and sign > 0 else -b[j] if in_b else 0)
            i, j = i + in_a, j + in_b


@inlined
def _smaller(i, end_i, a_col, j, end_j, b_col):
    """Whether the next column of each of two rows comes first; both do if they are equal."""
    if i == end_i or j == end_j:
        return i < end_i, j < end_j
    return a_col[i] <= b_col[j], b_col[j] <= a_col[i]


# ------------------------------------------------------------------------------------------------------- coordinates


def tally(begin, end, marks, ends, row, col, n_rows, n_cols, shift, n_buckets, counts, outside):
    """Counts the coordinates of pieces, `ends` [pieces + 1], by bucket of 2^shift rows; and those out of range."""
    for piece in range(begin, end):
        for e in range(ends[piece], ends[piece + 1]):
            if row[e] >= 0 and row[e] < n_rows and col[e] >= 0 and col[e] < n_cols:
                counts[piece * n_buckets + (row[e] >> shift)] += 1
            else:
                outside[piece] += 1


def spread(begin, end, marks, ends, row, col, shift, n_buckets, place, key, number):
    """Writes the row, column and number of each coordinate into its bucket, from `place` on."""
    for piece in range(begin, end):
        for e in range(ends[piece], ends[piece + 1]):
            k = piece * n_buckets + (row[e] >> shift)
            at = place[k]
            place[k] = at + 1
            key[at] = (np.int64(row[e]) << 32) + np.int64(col[e])
            number[at] = e


def sort_buckets(begin, end, marks, ends, key, number, n_rows, shift, ptr, placed, entries):
    """Sorts by row, column and number; writes column and number, `ptr`, and how many columns each row has."""
    for bucket in range(begin, end):
        first, last = bucket << shift, min((bucket + 1) << shift, n_rows)
        for row in range(first, last):
            marks[row - first] = 0
        for e in range(ends[bucket], ends[bucket + 1]):
            marks[(key[e] >> 32) - first] += 1
        place = ends[bucket]
        for row in range(first, last):
            place, marks[row - first] = place + marks[row - first], place
            ptr[row + 1] = place
        for e in range(ends[bucket], ends[bucket + 1]):
            row = (key[e] >> 32) - first
            placed[marks[row]] = (key[e] << 32) + number[e]
            marks[row] += 1
        start = ends[bucket]
        for row in range(first, last):
            stop, found = ptr[row + 1], 0
            sort(placed, start, stop)
            for n in range(start, stop):
                found += n == start or placed[n] >> 32 != placed[n - 1] >> 32
            entries[row + 1], start = found, stop


def first_of_each(begin, end, marks, ptr, placed, indptr, indices, first, order):
    """Writes each column of a row once, the place of its first coordinate, and the numbers of all coordinates."""
    for row in range(begin, end):
        at = indptr[row]
        for n in range(ptr[row], ptr[row + 1]):
            order[n] = np.int32(placed[n])
            if n == ptr[row] or placed[n] >> 32 != placed[n - 1] >> 32:
                indices[at], first[at] = placed[n] >> 32, n
                at += 1
