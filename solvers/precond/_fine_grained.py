"""Incomplete factors on the matrix's own pattern, all entries at once.

Source: Chow and Patel, Fine-grained parallel incomplete LU factorization, SIAM J. Sci. Comput. 37, 2015, Algorithm 2.

The factors of ILU(0) are those entries lᵢⱼ (i > j, with a diagonal of 1) and uᵢⱼ (i ≤ j) on the pattern of A for which
(L·U)ᵢⱼ = aᵢⱼ there. Solved for the entry that each equation belongs to,

    lᵢⱼ = (aᵢⱼ − s) / uⱼⱼ   for i > j,      uᵢⱼ = aᵢⱼ − s   for i ≤ j,      s = Σ_{k < min(i, j)} lᵢₖ·uₖⱼ,

they are a fixed point, and a sweep puts the old entries on the right. The pivots uᵢᵢ come last in it, from the new
entries beside them: that takes about half the sweeps and diverges less often. Each sweep makes exact what depends on
exact entries only, from the first row on; long before the last one the rest is good enough.
For a Hermitian matrix uₖⱼ = dₖ·l̄ⱼₖ with d the diagonal of U, and the lower triangle is all there is to compute: the
root-free form of their symmetric algorithm, in which no sweep can meet the root of a negative number.

The sums. Row i of L and column j of U are sorted lists of k. Of the two, the shorter is walked and each of its k looked
up in the longer by bisection, one step of all entries at a time: O(nnz) memory, and rows with many entries cost only
where they meet others. Entries are grouped by the length of that walk, so that short walks do not wait for long ones.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array

# Below this, relative to the diagonal of A, a pivot has broken down.
SMALLEST_PIVOT = 1e-3

Group = tuple[int, int, int, int]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Pattern:
    """The entries to compute, in groups, those of the diagonal last, and where each finds the terms of its sum.

    Attributes:
      row, col: [n_entries] int32.
      pivot: [n] which entries are the diagonal, by row.
      left: [n_left] which are L's below the diagonal, by row, then column.
      right: [n_right] which are U's above it, by column, then row; `left` itself if `hermitian`.
      k: [n_left + n_right] the columns of `left`, then the rows of `right`.
      short, long: [n_entries] where in `k` the shorter and the longer list of an entry start.
      n_short, n_long: [n_entries] their lengths.
      groups: (first entry, end, longest short list, bisections) of each group off the diagonal; pivot_groups: on it.
      hermitian: the entries are those of the lower triangle and the diagonal.
    """

    row: Array
    col: Array
    pivot: Array
    left: Array
    right: Array
    k: Array
    short: Array
    long: Array
    n_short: Array
    n_long: Array
    groups: tuple[Group, ...] = dataclasses.field(metadata={"static": True})
    pivot_groups: tuple[Group, ...] = dataclasses.field(metadata={"static": True})
    hermitian: bool = dataclasses.field(metadata={"static": True})


def pattern_of(row: np.ndarray, col: np.ndarray, n: int, hermitian: bool) -> tuple[Pattern, np.ndarray]:
    """The pattern of entries given by row, then column, with every diagonal entry among them; on the host.

    Args:
      row, col: [n_entries] int32; of a Hermitian matrix those with row ≥ col.

    Returns:
      The pattern, and which of the given entries each of its own is: [n_entries].
    """
    left = np.flatnonzero(row > col)
    right, by, k = left, row[left], col[left]
    if not hermitian:
        right = np.flatnonzero(row < col)
        right = right[np.argsort(col[right], kind="stable")]
        by, k = col[right], row[right]
    n_left, n_right = np.bincount(row[left], minlength=n), np.bincount(by, minlength=n)
    row_start, col_start = np.cumsum(n_left) - n_left, np.cumsum(n_right) - n_right + len(left)
    starts = np.stack([row_start[row], col_start[col]]).astype(np.int32)
    lengths = np.stack([n_left[row], n_right[col]]).astype(np.int32)
    swapped = lengths[0] > lengths[1]
    starts, lengths = (np.where(swapped, pair[::-1], pair) for pair in (starts, lengths))
    longest_of_level = 8 * 4 ** np.arange(14) - 1  # 0 to 7, 8 to 31, 32 to 127, …
    on_diagonal = row == col
    level = np.searchsorted(longest_of_level, lengths[0]) + len(longest_of_level) * on_diagonal
    order = np.argsort(level, kind="stable")
    starts, lengths = starts[:, order], lengths[:, order]
    cuts = np.flatnonzero(np.diff(level[order], prepend=-1, append=-1))
    walks, looked_up = (np.maximum.reduceat(pair, cuts[:-1]).tolist() for pair in lengths)
    groups = tuple(zip(cuts[:-1].tolist(), cuts[1:].tolist(), walks, (n.bit_length() for n in looked_up), strict=True))
    n_off = len(row) - n
    n_groups = sum(end <= n_off for _, end, _, _ in groups)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    pattern = Pattern(
        row=jnp.asarray(row[order]),
        col=jnp.asarray(col[order]),
        pivot=jnp.asarray(rank[np.flatnonzero(on_diagonal)]),
        left=jnp.asarray(rank[left]),
        right=jnp.asarray(rank[right]),
        k=jnp.asarray(np.concatenate([col[left], k])),
        short=jnp.asarray(starts[0]),
        long=jnp.asarray(starts[1]),
        n_short=jnp.asarray(lengths[0]),
        n_long=jnp.asarray(lengths[1]),
        groups=groups[:n_groups],
        pivot_groups=groups[n_groups:],
        hermitian=hermitian,
    )
    return pattern, order


@jax.jit
def factors(
    pattern: Pattern,
    a: Array,  # [n_entries] of A scaled to a diagonal of absolute value 1
    shift: Array,  # α of A + α·diag(A)
    sweeps: Array,
    solve_sweeps: Array,
    probe: Array,  # [n] of a's dtype, random
) -> tuple[Array, Array]:
    """The entries of L and U after some sweeps from the triangles of A, and whether they make a preconditioner.

    They do not where one is not finite, a pivot is small (Hermitian: or not positive), or an entry is too large: of a
    Hermitian matrix |lᵢⱼ|²·dⱼ is at most the diagonal, 1 + α, of any other |lᵢⱼ| and |uᵢⱼ| may reach the inverse of the
    smallest pivot. Nor where the triangular solves that are to use them would diverge: see `_solvable`.
    """
    n_off = pattern.row.shape[0] - pattern.pivot.shape[0]
    lower = pattern.row[:n_off] > pattern.col[:n_off]
    a = a.at[pattern.pivot].multiply(1 + shift)

    def diagonal(x: Array) -> Array:
        d = x[pattern.pivot]
        return d.real.astype(d.dtype) if pattern.hermitian else d

    def solved(x: Array, d: Array) -> Array:
        return jnp.where(lower, x / d[pattern.col[:n_off]], x)

    def factors_of(off: Array, d: Array) -> Array:
        left, right = off[pattern.left], off[pattern.right]
        if pattern.hermitian:
            right = d[pattern.k[left.shape[0] :]] * jnp.conj(right)
        return jnp.concatenate([left, right])

    def sweep(_: int, x: Array) -> Array:
        d = diagonal(x)
        off = solved(a[:n_off] - _sums(pattern, pattern.groups, factors_of(x[:n_off], d)), d)
        return jnp.concatenate([off, a[n_off:] - _sums(pattern, pattern.pivot_groups, factors_of(off, d))])

    start = jnp.concatenate([solved(a[:n_off], diagonal(a)), a[n_off:]])
    x = lax.fori_loop(0, sweeps, sweep, start)
    d = diagonal(x)
    lower_values = x[pattern.left]
    if pattern.hermitian:
        bounded = jnp.abs(x[:n_off]) ** 2 * d.real[pattern.col[:n_off]] <= 1 + shift
        sound = jnp.all(bounded) & jnp.all(d.real >= SMALLEST_PIVOT)
        return x, sound & _solvable(pattern, pattern.left, lower_values, solve_sweeps, probe)
    upper_values = x[pattern.right] / d[pattern.row[pattern.right]]
    sound = jnp.all(jnp.abs(x) <= 1 / SMALLEST_PIVOT) & jnp.all(jnp.abs(d) >= SMALLEST_PIVOT)
    sound = sound & _solvable(pattern, pattern.left, lower_values, solve_sweeps, probe)
    return x, sound & _solvable(pattern, pattern.right, upper_values, solve_sweeps, probe)


def _solvable(pattern: Pattern, entries: Array, values: Array, sweeps: Array, y: Array) -> Array:
    """Whether that many sweeps of Jacobi's method halve the error of (I + N)·y = r, if there are any.

    `values` are those of N at some of the entries. The error after s sweeps from r is (−N)ˢ⁺¹·y. It vanishes after n of
    them, but a matrix far from diagonally dominant makes it grow first.
    """
    row, col = pattern.row[entries], pattern.col[entries]
    error = lax.fori_loop(0, sweeps + 1, lambda _, e: jnp.zeros_like(e).at[row].add(values * e[col]), y)
    return (sweeps == 0) | (jnp.linalg.norm(error) <= 0.5 * jnp.linalg.norm(y))


def _sums(pattern: Pattern, groups: tuple[Group, ...], values: Array) -> Array:
    """Σₖ lᵢₖ·uₖⱼ over k < min(i, j) for every entry of the groups; `values` [n_left + n_right] are those at `k`."""
    sums = [jnp.zeros(0, values.dtype)]
    for begin, end, walk, bisections in groups:
        arrays = (pattern.short, pattern.long, pattern.n_short, pattern.n_long)
        short, long, n_short, n_long = (a[begin:end] for a in arrays)

        def add(s: int, total: Array, short=short, long=long, n_short=n_short, n_long=n_long, bisections=bisections):
            here = short + jnp.minimum(s, n_short - 1)
            k = _at(pattern.k, here)
            low, high = long, long + n_long
            for _ in range(bisections):
                middle = low + (high - low) // 2
                beyond = (low < high) & (_at(pattern.k, middle) < k)
                low, high = jnp.where(beyond, middle + 1, low), jnp.where(beyond, high, middle)
            found = (s < n_short) & (low < long + n_long) & (_at(pattern.k, low) == k)
            return total + jnp.where(found, _at(values, here) * _at(values, low), 0)

        none = jnp.zeros(end - begin, values.dtype)
        sums.append(lax.fori_loop(0, walk, add, none) if walk else none)
    return jnp.concatenate(sums)


def _at(a: Array, index: Array) -> Array:
    return jnp.take(a, index, mode="clip")
