"""The kernels of `aggregation.py`, which Numba compiles, each over the rows from `begin` to `end`; arrays are pointers.

Kernels with an argument `write` run twice: at 0 they write the length of row i at ptr[i + 1]; at 1, with the sums of
the lengths in `ptr`, they write the row. `marks` are -1 at first and belong to one thread, whose rows ascend; so a mark
that is below what the row at hand writes is an old one.

ptr, col, val      a matrix in CSR; `a_` and `b_` before the names tell the operands apart
point, b           unknowns of a point have consecutive rows, b of them
agg                [points] the aggregate of a point; -1 where it is in none
k                  columns of an aggregate, consecutive too: a row of P has groups of k entries
"""

from __future__ import annotations


def couplings(begin, end, marks, write, b, a_ptr, a_col, a_val, ptr, col, size):
    """Couples points whose rows have an entry for one another; `size` is the Frobenius norm of the block, squared."""
    for point in range(begin, end):
        base = ptr[point] if write else point
        found = 0
        for row in range(point * b, (point + 1) * b):
            for i in range(a_ptr[row], a_ptr[row + 1]):
                other = a_col[i] // b
                if marks[other] < base:
                    marks[other] = base
                    if write:
                        marks[other] = base + found
                        col[base + found] = other
                        size[base + found] = 0
                    found += 1
                if write:
                    size[marks[other]] += abs(a_val[i]) ** 2
        if not write:
            ptr[point + 1] = found


def strong(begin, end, marks, theta, ptr, col, size, root, chosen):
    """Chooses |a[i, j]| >= theta·√(a[i, i]·a[j, j]), and the diagonal; `root` is the square root of the diagonal."""
    for i in range(begin, end):
        for e in range(ptr[i], ptr[i + 1]):
            chosen[e] = col[e] == i or size[e] >= theta * root[i] * root[col[e]]


def aggregate(begin, end, marks, ptr, col, chosen, agg, count):
    """Vaněk, Mandel and Brezina 1996, Algorithm 5.1, row after row. `agg` is -1 at first, `count` [1] is 0."""
    n = 0
    for i in range(begin, end):  # a point none of whose neighbours has an aggregate, with all of them
        free, alone = agg[i] == -1, True
        for e in range(ptr[i], ptr[i + 1]):
            if chosen[e] and col[e] != i:
                alone = False
                if agg[col[e]] != -1:
                    free = False
                    break
        if free and not alone:
            agg[i] = n
            for e in range(ptr[i], ptr[i + 1]):
                if chosen[e]:
                    agg[col[e]] = n
            n += 1
    for i in range(begin, end):  # the rest joins a neighbour's; -2 - a marks the aggregate a until all have looked
        if agg[i] == -1:
            for e in range(ptr[i], ptr[i + 1]):
                if chosen[e] and col[e] != i and agg[col[e]] >= 0:
                    agg[i] = -2 - agg[col[e]]
                    break
    for i in range(begin, end):
        if agg[i] < -1:
            agg[i] = -2 - agg[i]
        elif agg[i] == -1:  # what is left, where the couplings are one-sided
            alone = True
            for e in range(ptr[i], ptr[i + 1]):
                if chosen[e] and col[e] != i:
                    alone = False
                    if agg[col[e]] == -1:
                        agg[col[e]] = n
            if not alone:
                agg[i] = n
                n += 1
    count[0] = n


def orthonormalize(begin, end, marks, b, k, first, members, B, Q, R):
    """Q·R = B on the unknowns of each aggregate [b·members, k], by Gram and Schmidt, each step twice.

    A column that the columns before it nearly span becomes zero, and so does its row of R.
    """
    for a in range(begin, end):
        for c in range(k):
            whole = 0.0
            for m in range(first[a], first[a + 1]):
                for row in range(members[m] * b, (members[m] + 1) * b):
                    Q[row * k + c] = B[row * k + c]
                    whole += abs(B[row * k + c]) ** 2
            for _again in range(2):
                for d in range(c):
                    inner = 0 * B[0]
                    for m in range(first[a], first[a + 1]):
                        for row in range(members[m] * b, (members[m] + 1) * b):
                            inner += Q[row * k + d].conjugate() * Q[row * k + c]
                    for m in range(first[a], first[a + 1]):
                        for row in range(members[m] * b, (members[m] + 1) * b):
                            Q[row * k + c] -= inner * Q[row * k + d]
                    R[(a * k + d) * k + c] += inner
            left = 0.0
            for m in range(first[a], first[a + 1]):
                for row in range(members[m] * b, (members[m] + 1) * b):
                    left += abs(Q[row * k + c]) ** 2
            size = left**0.5 if left > 1e-20 * whole else 0.0
            R[(a * k + c) * k + c] = size
            for m in range(first[a], first[a + 1]):
                for row in range(members[m] * b, (members[m] + 1) * b):
                    Q[row * k + c] = Q[row * k + c] / size if size > 0 else 0 * B[0]


def lump(begin, end, marks, b, a_ptr, a_col, p_ptr, p_col, chosen, lumped):
    """The columns of A, that of a weak coupling replaced by that of the same unknown of the row's own point."""
    for point in range(begin, end):
        for e in range(p_ptr[point], p_ptr[point + 1]):
            marks[p_col[e]] = chosen[e]
        for i in range(a_ptr[point * b], a_ptr[(point + 1) * b]):
            lumped[i] = a_col[i] if marks[a_col[i] // b] else point * b + a_col[i] % b


def multiply(k):
    """The kernel of C = A·B, row by row (Gustavson 1978), where the rows of B have groups of k entries.

    At `write` 1 the columns of a row come in the order in which the products meet them, at 2 sorted.
    """

    def kernel(begin, end, marks, write, a_ptr, a_col, a_val, b_ptr, b_col, b_val, ptr, col, val):
        for row in range(begin, end):
            base = ptr[row] if write else row
            n = base
            for i in range(a_ptr[row], a_ptr[row + 1]):
                v, stop = a_val[i], b_ptr[a_col[i] + 1]
                for j in range(b_ptr[a_col[i]], stop, k):
                    at = marks[b_col[j]]
                    if write and at >= base:
                        for m in range(k):
                            val[at + m] += v * b_val[j + m]
                    elif at < base:
                        marks[b_col[j]] = n if write else base
                        if write:
                            for m in range(k):
                                col[n + m] = b_col[j] + m
                                val[n + m] = v * b_val[j + m]
                        n += k
            if not write:
                ptr[row + 1] = n - base
            gap = k if write == 2 else 0
            while gap < (n - base) // 3 and gap > 0:
                gap = 3 * gap + k
            while gap > 0:  # Shell's sort of the groups, by gaps of Knuth
                for at in range(base + gap, n, k):
                    place = at
                    while place >= base + gap and col[place - gap] > col[place]:
                        for m in range(place, place + k):
                            col[m], col[m - gap] = col[m - gap], col[m]
                            val[m], val[m - gap] = val[m - gap], val[m]
                        place -= gap
                gap = gap // k // 3 * k

    return kernel


def smooth(begin, end, marks, k, t_ptr, t_col, t_val, scale, ptr, col, val):
    """P = T - diag(scale)·V, written over V = A·T, where a row of T has one group or none."""
    for row in range(begin, end):
        own = t_ptr[row]
        for j in range(ptr[row], ptr[row + 1], k):
            here = own < t_ptr[row + 1] and col[j] == t_col[own]
            for m in range(k):
                val[j + m] *= -scale[row]
                if here:
                    val[j + m] += t_val[own + m]


def add_product(begin, end, marks, c, f, left, ptr, col, val, right, x, y):
    """y = c·y + f·diag(left)·A·diag(right)·x."""
    for row in range(begin, end):
        total = 0 * y[0]
        for i in range(ptr[row], ptr[row + 1]):
            total += val[i] * (right[col[i]] * x[col[i]])
        y[row] = c * y[row] + f * left[row] * total


def sums(begin, end, marks, ptr, val, y):
    """The sums of the absolute values in the rows."""
    for row in range(begin, end):
        y[row] = 0
        for i in range(ptr[row], ptr[row + 1]):
            y[row] += abs(val[i])


def asymmetry(begin, end, marks, conjugate, ptr, col, val, largest):
    """The largest |a[i, j] - a[j, i]| of each row, or with the conjugate of a[j, i]."""
    for row in range(begin, end):
        largest[row] = 0
        for i in range(ptr[row], ptr[row + 1]):
            low, high = ptr[col[i]], ptr[col[i] + 1]
            stop = high
            while low < high:
                middle = (low + high) // 2
                if col[middle] < row:
                    low = middle + 1
                else:
                    high = middle
            other = 0 * val[i]
            if low < stop and col[low] == row:
                other = val[low].conjugate() if conjugate else val[low]
            largest[row] = max(largest[row], abs(val[i] - other))
