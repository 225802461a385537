"""The kernels of `aggregation.py`, which Numba compiles; each runs over the rows or aggregates from `begin` to `end`.

All arrays are pointers; `marks` are not used here.

ptr, col           the pattern of the blocks; chosen [blocks] whether a coupling is strong
agg                [points] the aggregate of a point; -1 where it is in none
first, members     the points of aggregate a are members[first[a]] to members[first[a + 1] - 1]
B, Q               [points·b, k] the near-null space, and its orthonormal columns on each aggregate
"""


def aggregate(begin, end, marks, ptr, col, chosen, agg, count):
    """Algorithm 5.1 of Vaněk, Mandel and Brezina (1996), row by row; `agg` starts at -1, `count` [1] at 0."""
    n = 0
    for i in range(begin, end):  # a point and its neighbours form one, if none of them is in another
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
    for i in range(begin, end):  # the rest join a neighbour's aggregate a, marked -2 - a until the pass ends
        if agg[i] == -1:
            for e in range(ptr[i], ptr[i + 1]):
                if chosen[e] and col[e] != i and agg[col[e]] >= 0:
                    agg[i] = -2 - agg[col[e]]
                    break
    for i in range(begin, end):
        if agg[i] < -1:
            agg[i] = -2 - agg[i]
        elif agg[i] == -1:  # left over where couplings are one-sided
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
    """Q·R = B on the unknowns of each aggregate [b·members, k], by Gram-Schmidt, each step twice.

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
