"""The kernels of `spgemm.py`, which Numba compiles, each over the rows from `begin` to `end`. All arrays are pointers.

marks              [n_cols] int64, -1 at first, and again after `fill`
a_ptr, a_col       [n_rows + 1] int64, [nnz] int32; b_ptr, b_col likewise
entries, summed    [n_rows + 1] int64, written at row + 1
indptr, before     [n_rows + 1] int64: entries of C, and products, in the rows before
indices, first     [nnz of C] int32 and int64, written
left, right        [products] int32, written
"""

from __future__ import annotations


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


def fill(begin, end, marks, a_ptr, a_col, b_ptr, b_col, indptr, before, indices, first, left, right):
    """Writes the sorted columns of the rows of C, and the products of each entry by rising column of A."""
    for row in range(begin, end):
        start = indptr[row]
        stop = start
        for i in range(a_ptr[row], a_ptr[row + 1]):  # the number of products of each column of the row, in `marks`
            k = a_col[i]
            for j in range(b_ptr[k], b_ptr[k + 1]):
                col = b_col[j]
                if marks[col] < 0:
                    marks[col] = 0
                    indices[stop] = col
                    stop += 1
                marks[col] += 1
        gap = 1
        while gap < (stop - start) // 3:
            gap = 3 * gap + 1
        while gap > 0:  # Shell's sort, by gaps of Knuth
            for n in range(start + gap, stop):
                col, at = indices[n], n
                while at >= start + gap and indices[at - gap] > col:
                    indices[at] = indices[at - gap]
                    at -= gap
                indices[at] = col
            gap //= 3
        place = before[row]
        for n in range(start, stop):  # the place of the next product of each column
            first[n] = place
            place += marks[indices[n]]
            marks[indices[n]] = first[n]
        for i in range(a_ptr[row], a_ptr[row + 1]):
            k = a_col[i]
            for j in range(b_ptr[k], b_ptr[k + 1]):
                place = marks[b_col[j]]
                left[place], right[place] = i, j
                marks[b_col[j]] = place + 1
        for n in range(start, stop):
            marks[indices[n]] = -1
