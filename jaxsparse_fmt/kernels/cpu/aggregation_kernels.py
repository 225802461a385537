"""The kernels of `aggregation.py`, which Numba compiles; each runs over the rows or points from `begin` to `end`.

All arrays are pointers. A function that makes a kernel takes the sizes of blocks, so that Numba unrolls loops over
them. `marks` start at -1 and belong to one thread, which takes its rows in ascending order.

ptr, col, val      a matrix in CSR, or in blocks of b×c as `aggregation.Blocks`: point i has the n blocks from
                   ptr[i] on, and its row r holds them side by side from val[b·c·ptr[i] + r·n·c] on. The prefixes
                   `a_`, `r_` and `p_` distinguish the operands
chosen             [blocks] whether a coupling is strong
agg                [points] the aggregate of a point; -1 where it is in none
Q                  [points·b, k] a row for each unknown, in the columns of its aggregate
"""

from math import sqrt

from jaxsparse_fmt.kernels.cpu.spgemm_kernels import sort


def holes(b):
    """Counts for each point the places in which its rows differ from blocks of b×b without holes."""

    def kernel(begin, end, marks, ptr, col, missing):
        for point in range(begin, end):
            first, length = ptr[point * b], ptr[point * b + 1] - ptr[point * b]
            missing[point] = length % b != 0
            for row in range(point * b, point * b + b):
                missing[point] += ptr[row + 1] - ptr[row] != length
            for row in range(point * b, point * b + b if missing[point] == 0 else 0):
                for i in range(0, length, b):
                    for c in range(b):
                        missing[point] += col[ptr[row] + i + c] != col[first + i] + c
                    missing[point] += col[first + i] % b != 0

    return kernel


def points(sizes):
    """Writes the columns of the blocks; `sizes` is (b, c)."""
    b, c = sizes

    def kernel(begin, end, marks, ptr, col, block_ptr, block_col):
        for point in range(begin, end):
            for e in range(block_ptr[point], block_ptr[point + 1]):
                block_col[e] = col[ptr[point * b] + (e - block_ptr[point]) * c] // c

    return kernel


def roots(b):
    """The square root of the Frobenius norm of each point's diagonal block."""

    def kernel(begin, end, marks, ptr, col, val, root):
        for point in range(begin, end):
            n, square = ptr[point + 1] - ptr[point], 0.0
            for e in range(n):
                if col[ptr[point] + e] == point:
                    for r in range(b):
                        for c in range(b):
                            square += abs(val[b * b * ptr[point] + (r * n + e) * b + c]) ** 2
            root[point] = sqrt(sqrt(square))

    return kernel


def strong(b):
    """Chooses the diagonal, and blocks with |a[i, j]| >= theta·√(|a[i, i]|·|a[j, j]|) in Frobenius norms."""

    def kernel(begin, end, marks, theta, ptr, col, val, root, chosen):
        for point in range(begin, end):
            n = ptr[point + 1] - ptr[point]
            for e in range(n):
                other, square = col[ptr[point] + e], 0.0
                for r in range(b):
                    for c in range(b):
                        square += abs(val[b * b * ptr[point] + (r * n + e) * b + c]) ** 2
                least = theta * root[point] * root[other]
                chosen[ptr[point] + e] = other == point or square >= least * least

    return kernel


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


def prolong(sizes):
    """P = T - diag(scale)·A'·T, where T has the rows of Q and A' is A with its weak couplings on the diagonal.

    With `write` = 0 it writes the length of each row to ptr[row + 1]. With `write` = 1, `ptr` holds the sums of these
    lengths, and it writes the sorted rows.
    """
    b, k = sizes

    def kernel(begin, end, marks, write, a_ptr, a_col, a_val, chosen, agg, Q, scale, ptr, col, val):
        for point in range(begin, end):
            base = ptr[point * b] if write else point
            own, n, m = agg[point], 0, a_ptr[point + 1] - a_ptr[point]
            for e in range(-1, m):  # the aggregates, once each
                here = own
                if e >= 0 and chosen[a_ptr[point] + e]:
                    here = agg[a_col[a_ptr[point] + e]]
                if here >= 0 and marks[here] < base:
                    marks[here] = base
                    if write:
                        col[base + n] = here
                    n += 1
            if not write:
                for r in range(b):
                    ptr[point * b + r + 1] = n * k
                continue
            sort(col, base, base + n)
            for g in range(n - 1, -1, -1):
                here = col[base + g]
                marks[here] = base + g
                for c in range(k):
                    for r in range(b):
                        col[base + (r * n + g) * k + c] = here * k + c
                        val[base + (r * n + g) * k + c] = Q[(point * b + r) * k + c] if here == own else 0 * Q[0]
            for e in range(m):
                source = a_col[a_ptr[point] + e] if chosen[a_ptr[point] + e] else point
                if agg[source] < 0:
                    continue
                g = marks[agg[source]] - base
                for r in range(b):
                    for q in range(b):
                        v = scale[point * b + r] * a_val[b * b * a_ptr[point] + (r * m + e) * b + q]
                        for c in range(k):
                            val[base + (r * n + g) * k + c] -= v * Q[(source * b + q) * k + c]

    return kernel


def galerkin(sizes):
    """R·A·P, for blocks of k×b, b×b and b×k, by Gustavson (1978): each row of R·A, in scratch, then its product with P.

    It stops before the first row that does not fit; `reached` gets that row, or `end`, and the number of blocks.

    half               1: only the blocks on the diagonal and right of it
    marks              [points + aggregates] -1 before and after
    met, near          the points of a row of R·A, [points], and its blocks b×k, transposed
    found, sums        the aggregates of a row of R·A·P, and its blocks k×k
    lengths            [aggregates + 1], written at row + 1
    col, val           [room] and [room·k·k]: aggregates, and one block k×k after the other
    """
    b, k = sizes

    def kernel(
        begin, end, marks, half, n_points, r_ptr, r_col, r_val, a_ptr, a_col, a_val, p_ptr, p_col, p_val,
        met, near, found, sums, room, lengths, col, val, reached,
    ):  # fmt: skip
        used, zero = 0, 0 * r_val[0]
        for row in range(begin, end):
            n_met, n_found, from_r, width = 0, 0, r_ptr[row], r_ptr[row + 1] - r_ptr[row]
            first = row if half else 0
            for e in range(width):
                i, at_r = r_col[from_r + e], b * (k * from_r + e)
                from_a, m = a_ptr[i], a_ptr[i + 1] - a_ptr[i]
                for f in range(m):
                    j, at_a = a_col[from_a + f], b * (b * from_a + f)
                    at = marks[j]
                    new = at < 0  # without a branch, which would be mispredicted often
                    at = n_met if new else at
                    marks[j], met[at] = at, j
                    n_met += new
                    for c in range(b):
                        for r in range(k):
                            total = near[(at * b + c) * k + r]
                            total = zero if new else total
                            for q in range(b):
                                total += r_val[at_r + r * width * b + q] * a_val[at_a + q * m * b + c]
                            near[(at * b + c) * k + r] = total
            for s in range(n_met):
                j = met[s]
                marks[j] = -1
                from_p, m = p_ptr[j], p_ptr[j + 1] - p_ptr[j]
                for f in range(m - 1, -1, -1):
                    d, at_p = p_col[from_p + f], k * (b * from_p + f)
                    if d < first:
                        break
                    at = marks[n_points + d]
                    new = at < 0
                    at = n_found if new else at
                    marks[n_points + d], found[at] = at, d
                    n_found += new
                    for r in range(k):
                        for c in range(k):
                            total = sums[(at * k + r) * k + c]
                            total = zero if new else total
                            for q in range(b):
                                total += near[(s * b + q) * k + r] * p_val[at_p + q * m * k + c]
                            sums[(at * k + r) * k + c] = total
            fits = used + n_found <= room
            if fits:
                sort(found, 0, n_found)
            for g in range(n_found):
                at = marks[n_points + found[g]]
                marks[n_points + found[g]] = -1
                if fits:
                    col[used + g] = found[g]
                    for c in range(k * k):
                        val[(used + g) * k * k + c] = sums[at * k * k + c]
            if not fits:
                reached[0], reached[1] = row, used
                return
            lengths[row + 1] = n_found
            used += n_found
        reached[0], reached[1] = end, used

    return kernel


def assemble(k):
    """Writes rows of blocks k×k as CSR; with `mirror` the blocks left of the diagonal too, by rising rows.

    mirror             1: of a Hermitian matrix, which the blocks lack left of the diagonal
    lengths            [aggregates + 1], of the given rows
    ptr                [aggregates + 1], blocks of the result in the rows before
    place              [aggregates], blocks written in each row
    """

    def kernel(begin, end, marks, mirror, lengths, block_col, block, ptr, place, col, val):
        at = 0
        for row in range(begin, end):
            n = ptr[row + 1] - ptr[row]
            for _g in range(lengths[row + 1]):
                other = block_col[at]
                base, width, to = k * k * ptr[row], k * n, k * place[row]
                place[row] += 1
                for r in range(k):
                    for c in range(k):
                        col[base + r * width + to + c] = other * k + c
                        val[base + r * width + to + c] = block[(at * k + r) * k + c]
                if mirror > 0 and other != row:
                    base, width, to = k * k * ptr[other], k * (ptr[other + 1] - ptr[other]), k * place[other]
                    place[other] += 1
                    for r in range(k):
                        for c in range(k):
                            v = block[(at * k + c) * k + r]
                            col[base + r * width + to + c] = row * k + c
                            val[base + r * width + to + c] = v.conjugate()
                at += 1

    return kernel


def transpose(begin, end, marks, ptr, col, val, place, to_col, to_val):
    """Writes Aᴴ; `place` holds where the rows of the result begin, and afterwards where they end."""
    for row in range(begin, end):
        for i in range(ptr[row], ptr[row + 1]):
            at = place[col[i]]
            place[col[i]] = at + 1
            to_col[at], to_val[at] = row, val[i].conjugate()


def add_product(begin, end, marks, c, f, left, ptr, col, val, x, y, rows, v, part):
    """y = c·y + f·diag(left)·A·x, and the sums of conj(v)·y for every `rows` rows."""
    part[begin // rows] = 0
    for row in range(begin, end):
        total = 0 * y[0]
        for i in range(ptr[row], ptr[row + 1]):
            total += val[i] * x[col[i]]
        y[row] = c * y[row] + f * left[row] * total
        part[begin // rows] += v[row].conjugate() * y[row]


def subtract(begin, end, marks, c, v, y, scale, x, rows, part):
    """y = y - c·v and x = diag(scale)·y, and the sums of |y|² for every `rows` rows."""
    part[begin // rows] = 0
    for row in range(begin, end):
        y[row] -= c * v[row]
        x[row] = scale[row] * y[row]
        part[begin // rows] += abs(y[row]) ** 2


def sums(begin, end, marks, ptr, val, y):
    """The sums of the absolute values in the rows."""
    for row in range(begin, end):
        y[row] = 0
        for i in range(ptr[row], ptr[row + 1]):
            y[row] += abs(val[i])


def squares(begin, end, marks, ptr, col, val, x, y):
    """y = S·x, where S has the squares of the absolute values of A."""
    for row in range(begin, end):
        y[row] = 0
        for i in range(ptr[row], ptr[row + 1]):
            y[row] += abs(val[i]) ** 2 * x[col[i]]


def asymmetry(begin, end, marks, ptr, col, val, largest):
    """The largest |a[i, j] - conj(a[j, i])| of each row.

    The rows ascend, so the search for a[j, i] in row j continues where it stopped; `marks` holds that place.
    """
    for row in range(begin, end):
        largest[row] = 0
        for i in range(ptr[row], ptr[row + 1]):
            at, stop = max(marks[col[i]], ptr[col[i]]), ptr[col[i] + 1]
            while at < stop and col[at] < row:
                at += 1
            marks[col[i]] = at
            other = 0 * val[i]
            if at < stop and col[at] == row:
                other = val[at].conjugate()
            largest[row] = max(largest[row], abs(val[i] - other))
