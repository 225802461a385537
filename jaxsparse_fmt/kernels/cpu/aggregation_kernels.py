"""The kernels of `aggregation.py`, which Numba compiles; each runs over the rows or aggregates from `begin` to `end`.

All arrays are pointers; `marks` are not used here.

ptr, col           the strong couplings of each point with others
agg                [points] the aggregate of a point; -1 where it is in none
"""


def aggregate(begin, end, marks, ptr, col, agg, count):
    """Algorithm 5.1 of Vaněk, Mandel and Brezina (1996), row by row; `agg` starts at -1, `count` [1] at 0."""
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
