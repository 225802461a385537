"""Elimination without fill (Saad, Iterative Methods, Algorithm 10.4), levels, and fill, of a matrix in CSR."""


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
                at = marks[col[q]]
                if at >= ptr[row]:
                    a[at] -= a[p] * a[q]


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


def fill(begin, end, marks, ptr, col, parent, total, most):
    """Counts the entries of the Cholesky factor of a symmetric pattern by its elimination tree (Liu 1990), to `most`.

    parent             [n] in the tree, -1 at first
    total              [1]
    """
    for row in range(begin, end):
        marks[row] = row
        total[0] += 1
        for p in range(ptr[row], ptr[row + 1]):
            above = col[p]
            while above < row and marks[above] != row:
                if parent[above] < 0:
                    parent[above] = row
                marks[above] = row
                total[0] += 1
                above = parent[above]
        if total[0] > most:
            break
