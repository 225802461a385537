"""Elimination without fill (Saad, Iterative Methods, Algorithm 10.4); levels, orders, counts, inverses by factors."""


def eliminate(begin, end, marks, ptr, col, diagonal, a):
    """Writes L below the diagonal and U elsewhere over a, so that L·U agrees with A on its pattern, L's diagonal 1.

    diagonal           [n] the place of each row's entry on the diagonal
    marks              [n] the place of each column in the last row that had it, -1 at first
    """
    for row in range(begin, end):
        for p in range(ptr[row], ptr[row + 1]):
            marks[col[p]] = p
        for p in range(ptr[row], diagonal[row]):
            above = col[p]
            a[p] /= a[diagonal[above]]
            for q in range(diagonal[above] + 1, ptr[above + 1]):
                place = marks[col[q]]
                if place >= ptr[row]:
                    a[place] -= a[p] * a[q]


def levels(begin, end, marks, ptr, col, level, upper):
    """Writes 1 + the largest level of the rows that a row of a strictly triangular matrix needs, 0 if it needs none."""
    for i in range(begin, end):
        row = end - 1 - i if upper else i
        most = 0
        for p in range(ptr[row], ptr[row + 1]):
            most = max(most, level[col[p]] + 1)
        level[row] = most


def substitute(begin, end, marks, ptr, col, values, y, upper):
    """Solves (I + N)·y = r for a strictly triangular N, over y, which holds r."""
    for i in range(begin, end):
        row = end - 1 - i if upper else i
        for p in range(ptr[row], ptr[row + 1]):
            y[row] -= values[p] * y[col[p]]


def column_counts(begin, end, marks, ptr, col, order, parent, count):
    """Entries in each column of the Cholesky factor of a symmetric pattern, nearly in the time of reading it.

    The elimination tree with compressed paths (Liu 1990), then the leaves of the row subtrees (Gilbert, Ng and Peyton
    1994): each adds a path of the tree to its row, less what the paths of the row have in common.

    order              [n], the unknown that is eliminated k-th
    parent             [n] in the tree, by place in the order, -1 at first and at roots
    count              [n] by place in the order, 0 at first
    marks              [8·n], eight arrays of [n]
    """
    n = end
    place, root, child, sibling, post, first, most, last = 0, n, 2 * n, 3 * n, 4 * n, 5 * n, 6 * n, 7 * n
    for k in range(n):
        marks[place + order[k]] = k
    for k in range(n):
        for p in range(ptr[order[k]], ptr[order[k] + 1]):
            i = marks[place + col[p]]
            while i >= 0 and i < k:
                above = marks[root + i]
                marks[root + i] = k
                if above < 0:
                    parent[i] = k
                i = above
    for k in range(n - 1, -1, -1):
        if parent[k] >= 0:
            marks[sibling + k] = marks[child + parent[k]]
            marks[child + parent[k]] = k
    done = 0
    for top in range(n):
        k = top if parent[top] < 0 else -1
        while k >= 0:
            below = marks[child + k]
            if below >= 0:
                marks[child + k] = marks[sibling + below]
                k = below
            else:
                marks[post + done] = k
                done += 1
                k = parent[k]
    for k in range(n):
        j = marks[post + k]
        count[j] = 1 if marks[first + j] < 0 else 0
        while j >= 0 and marks[first + j] < 0:
            marks[first + j] = k
            j = parent[j]
        marks[root + k] = k
    for k in range(n):
        j = marks[post + k]
        if parent[j] >= 0:
            count[parent[j]] -= 1
        for p in range(ptr[order[j]], ptr[order[j] + 1]):
            i = marks[place + col[p]]
            if i > j and marks[first + j] > marks[most + i]:
                marks[most + i] = marks[first + j]
                common = marks[last + i]
                marks[last + i] = j
                count[j] += 1
                if common >= 0:
                    top = common
                    while top != marks[root + top]:
                        top = marks[root + top]
                    while common != top:
                        above = marks[root + common]
                        marks[root + common] = top
                        common = above
                    count[top] -= 1
        if parent[j] >= 0:
            marks[root + j] = parent[j]
    for j in range(n):
        if parent[j] >= 0:
            count[parent[j]] += count[j]


def filled(begin, end, marks, ptr, col, parent, start, row):
    """Rows below the diagonal of each column of the Cholesky factor, increasing, by its elimination tree (Liu 1990).

    ptr, col           a symmetric pattern in its order of elimination
    parent             [n], of `column_counts`
    start              [n + 1], where each column begins in row
    marks              [2·n]
    """
    n = end
    for i in range(n):
        marks[i] = i
        for p in range(ptr[i], ptr[i + 1]):
            j = col[p]
            while j < i and marks[j] != i:
                marks[j] = i
                marks[n + j] += 1
                row[start[j] + marks[n + j]] = i
                j = parent[j]


def selected_inverse(begin, end, marks, start, row, pivot, lower, upper, diagonal, left, right):
    """Entries of Z = (L·D·U)⁻¹ on the pattern of L and U, from the last column on (Erisman and Tinney 1975).

    lower, upper       L[i, j] and U[j, i] below and beyond diagonals of ones, for the rows i of column j
    pivot              [n], D
    diagonal           [n], Z[j, j]
    left, right        Z[i, j] and Z[j, i], 0 at first
    """
    n = end
    for k in range(n):
        j = n - 1 - k
        for p in range(start[j], start[j + 1]):
            marks[row[p]] = p
        for p in range(start[j], start[j + 1]):
            i = row[p]
            left[p] -= diagonal[i] * lower[p]
            right[p] -= upper[p] * diagonal[i]
            for q in range(start[i], start[i + 1]):
                m = marks[row[q]]
                if m >= start[j] and m < start[j + 1]:
                    left[m] -= left[q] * lower[p]
                    left[p] -= right[q] * lower[m]
                    right[m] -= upper[p] * right[q]
                    right[p] -= upper[m] * left[q]
        diagonal[j] = 1 / pivot[j]
        for p in range(start[j], start[j + 1]):
            diagonal[j] -= upper[p] * left[p]


def few_neighbours(begin, end, marks, ptr, col, most, longest, member, after, order):
    """Order of unknowns that have few neighbours left when they are eliminated: at most 1, then 2, 3, 4, 6, … `most`.

    What an elimination couples is kept as a clique, and cliques that a later one holds are dropped (George and Liu
    1989). An unknown whose neighbours change waits until all others were tried, so that a pass spreads over the graph.

    ptr, col           a symmetric pattern
    longest            rows with more entries are not eliminated
    member             [n·most], the unknowns of the clique that each elimination leaves
    after              [n·most], the next place of the same unknown in `member`, -1 at the last
    order              [n], -1 after those that are eliminated
    marks              [6·n]
    """
    n = end
    seen, first, size, dropped, waits, stack = 0, n, 2 * n, 3 * n, 4 * n, 5 * n
    scans, done, limit = 0, 0, 1
    while limit <= most:
        tail, height = 0, 0
        for v in range(n):
            if marks[size + v] < 0 and ptr[v + 1] - ptr[v] <= longest:
                marks[stack + height] = v
                marks[waits + v] = 1
                height += 1
        while height > 0:
            height -= 1
            v = marks[stack + tail]
            tail = tail + 1 if tail + 1 < n else 0
            marks[waits + v] = -1
            marks[seen + v] = scans
            base, count = v * most, 0
            for p in range(ptr[v], ptr[v + 1]):
                u = col[p]
                if count <= limit and marks[size + u] < 0 and marks[seen + u] != scans:
                    marks[seen + u] = scans
                    if count < limit:
                        member[base + count] = u
                    count += 1
            place, last = marks[first + v], -1
            while place >= 0 and count <= limit:
                clique, following = place // most, after[place]
                if marks[dropped + clique] >= 0:
                    if last < 0:
                        marks[first + v] = following
                    else:
                        after[last] = following
                else:
                    last = place
                    for q in range(clique * most, clique * most + marks[size + clique]):
                        u = member[q]
                        if count <= limit and marks[seen + u] != scans:
                            marks[seen + u] = scans
                            if count < limit:
                                member[base + count] = u
                            count += 1
                place = following
            scans += 1
            if count > limit:
                continue
            order[done] = v
            done += 1
            marks[size + v] = count
            place = marks[first + v]
            while place >= 0:
                marks[dropped + place // most] = 1
                place = after[place]
            for q in range(base, base + count):
                u = member[q]
                after[q] = marks[first + u]
                marks[first + u] = q
                if marks[waits + u] < 0 and ptr[u + 1] - ptr[u] <= longest:
                    marks[waits + u] = 1
                    marks[stack + (tail + height if tail + height < n else tail + height - n)] = u
                    height += 1
        limit += 1 + limit // 4
