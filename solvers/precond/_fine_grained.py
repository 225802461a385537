"""Incomplete factors on the matrix's own pattern, all entries at once.

Source: Chow and Patel, Fine-grained parallel incomplete LU factorization, SIAM J. Sci. Comput. 37, 2015, Algorithm 2.

The factors of ILU(0) are those entries lᵢⱼ (i > j, with a diagonal of 1) and uᵢⱼ (i ≤ j) on the pattern of A for which
(L·U)ᵢⱼ = aᵢⱼ there. Each equation is solved for its own entry,

    lᵢⱼ = (aᵢⱼ − s) / uⱼⱼ   for i > j,      uᵢⱼ = aᵢⱼ − s   for i ≤ j,      s = Σ_{k < min(i, j)} lᵢₖ·uₖⱼ,

and a sweep evaluates the right sides with the old entries. A sweep computes the pivots uᵢᵢ last, from the new values of
the other entries: that takes about half the sweeps and diverges less often. Each sweep makes exact, from the first row
on, the entries that depend only on exact entries; the others are accurate enough after a few sweeps. For a Hermitian
matrix uₖⱼ = dₖ·l̄ⱼₖ with d the diagonal of U, and only the lower triangle is computed: the root-free form of their
symmetric algorithm, which takes no root of a negative number.

The sums. Row i of L and column j of U are sorted lists of k. For each entry the sum walks the shorter list and looks up
each of its k in the longer one by bisection, one step for all entries at a time. This takes O(nnz) memory, and a row
with many entries is costly only where it meets another such row. Entries are grouped by the length of the walk, so that
short walks do not wait for long ones.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core.vector_passes import noise
from solvers.core import opaque

# A pivot below this, relative to the diagonal of A, has broken down.
SMALLEST_PIVOT = 1e-3
# After a breakdown α is FIRST_SHIFT, then doubled, for SHIFTS tries in all (Manteuffel 1980, Math. Comp. 34).
FIRST_SHIFT, SHIFTS = 1e-2, 20

Group = tuple[int, int, int, int]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class FactorPattern:
    """The entries to compute, in groups, the diagonal last; the arrays depend on A's pattern alone.

    Attributes:
      row, col: [n_entries] int32.
      entry: [n_entries] the place of each in A.data.
      pivot: [n] which entries are the diagonal, by row.
      left: [n_left] the entries of L below the diagonal, by row, then column.
      right: [n_right] the entries of U above the diagonal, by column, then row; None if `hermitian`: then they are
        those of `left`, conjugated.
      upper: [n_right] the same by row, then column; if `hermitian`, the mirror images of `left` by row, then column.
      row_start: [n + 1] where each row starts in `left`.
      col_start: [n + 1] where each column starts in `right`; None if `hermitian`.
      groups: (first entry, end, longest short list, bisections) of each group off the diagonal; pivot_groups: on it.
      nnz: entries of A.
    """

    row: Array
    col: Array
    entry: Array
    pivot: Array
    left: Array
    right: Array | None
    upper: Array
    row_start: Array
    col_start: Array | None
    groups: tuple[Group, ...] = dataclasses.field(metadata={"static": True})
    pivot_groups: tuple[Group, ...] = dataclasses.field(metadata={"static": True})
    nnz: int = dataclasses.field(metadata={"static": True})

    @property
    def hermitian(self) -> bool:
        """The entries are those of the lower triangle and the diagonal."""
        return self.right is None


class Lists(NamedTuple):
    """The places of the terms of each entry's sum."""

    k: Array  # [n_left + n_right] the columns of `left`, then the rows of `right`
    short: Array  # [n_entries] where in `k` the shorter list of an entry starts
    long: Array  # [n_entries] where the longer one starts
    n_short: Array  # [n_entries] their lengths
    n_long: Array


def factor_pattern(row: np.ndarray, col: np.ndarray, n: int, hermitian: bool) -> FactorPattern:
    """The pattern of a matrix with every diagonal entry among its entries; on the host.

    Args:
      row, col: [nnz] int32, in the order of A.data.
      hermitian: only the entries with row ≥ col count.
    """
    entry = np.flatnonzero(row >= col) if hermitian else np.arange(len(row))
    if np.any(np.diff(row) < 0):  # a transposed view's entries come by column
        entry = entry[np.lexsort((col[entry], row[entry]))]
    nnz, row, col = len(row), row[entry], col[entry]
    left = np.flatnonzero(row > col)
    row_start = _starts(row[left], n)
    right, upper, col_start = left, left[np.argsort(col[left], kind="stable")], row_start
    if not hermitian:
        upper = np.flatnonzero(row < col)
        right = upper[np.argsort(col[upper], kind="stable")]
        col_start = _starts(col[right], n)
    lengths = np.sort([np.diff(row_start)[row], np.diff(col_start)[col]], axis=0)
    longest_of_level = 8 * 4 ** np.arange(14) - 1  # 0 to 7, 8 to 31, 32 to 127, …
    on_diagonal = row == col
    level = np.searchsorted(longest_of_level, lengths[0]) + len(longest_of_level) * on_diagonal
    order = np.argsort(level, kind="stable")
    cuts = np.flatnonzero(np.diff(level[order], prepend=-1, append=-1))
    walks, looked_up = (np.maximum.reduceat(pair[order], cuts[:-1]).tolist() for pair in lengths)
    groups = tuple(zip(cuts[:-1].tolist(), cuts[1:].tolist(), walks, (n.bit_length() for n in looked_up), strict=True))
    n_off = len(row) - n
    n_groups = sum(end <= n_off for _, end, _, _ in groups)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    arrays = {
        "row": row[order],
        "col": col[order],
        "entry": entry[order].astype(np.int32),
        "pivot": rank[np.flatnonzero(on_diagonal)],
        "left": rank[left],
        "right": None if hermitian else rank[right],
        "upper": rank[upper],
        "row_start": row_start,
        "col_start": None if hermitian else col_start,
    }
    return FactorPattern(**jax.device_put(arrays), groups=groups[:n_groups], pivot_groups=groups[n_groups:], nnz=nnz)


def _starts(sorted_index: np.ndarray, n: int) -> np.ndarray:
    """[n + 1] where each of 0 to n − 1 starts in the sorted indices, and their number."""
    return np.searchsorted(sorted_index, np.arange(n + 1)).astype(np.int32)


def _lists(pattern: FactorPattern) -> Lists:
    row_start, col_start, n_left = pattern.row_start, pattern.col_start, pattern.left.shape[0]
    row_k = pattern.col[pattern.left]
    if pattern.right is None or col_start is None:
        col_start, col_k = row_start, row_k
    else:
        col_k = pattern.row[pattern.right]
    of_row, of_col = row_start[pattern.row], col_start[pattern.col]
    n_row, n_col = row_start[pattern.row + 1] - of_row, col_start[pattern.col + 1] - of_col
    swap = n_row > n_col
    of_col = of_col + n_left
    return Lists(
        jnp.concatenate([row_k, col_k]),
        jnp.where(swap, of_col, of_row),
        jnp.where(swap, of_row, of_col),
        jnp.minimum(n_row, n_col),
        jnp.maximum(n_row, n_col),
    )


def factored(
    pattern: FactorPattern,
    a: Array,  # [n_entries] of A scaled to a diagonal of absolute value 1
    first: Array,  # the first α to try
    sweeps: int,
    solve_sweeps: int,
) -> tuple[Array, Array, Array]:
    """The entries of L and U of A + α·diag(A) for the first α with sound factors, that α, and whether there was one.

    Its derivative is that of the sweeps with this α, to any order.
    """

    def primal(pattern: FactorPattern, a: Array, first: Array) -> tuple[Array, Array, Array]:
        def attempt(state: tuple[Array, ...]) -> tuple[Array, ...]:
            tries, _, alpha, following, _ = state
            alpha = following
            x = swept(pattern, a, alpha, sweeps)
            return tries + 1, x, alpha, jnp.maximum(2 * alpha, FIRST_SHIFT), _sound(pattern, x, alpha, solve_sweeps)

        start = jnp.int32(0), jnp.zeros_like(a), first, first, jnp.array(False)
        _, x, alpha, _, sound = lax.while_loop(lambda state: ~state[-1] & (state[0] < SHIFTS), attempt, start)
        return x, alpha, sound

    def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
        pattern, a, _ = primals
        x, alpha, sound = opaque.apply(primal, tangent, *primals)
        fixed = lax.stop_gradient(alpha)
        _, dx = jax.jvp(lambda a: swept(pattern, a, fixed, sweeps), (a,), (tangents[1],))
        return (x, alpha, sound), (dx, jnp.zeros_like(alpha), np.zeros((), jax.dtypes.float0))

    return opaque.apply(primal, tangent, pattern, a, first)


def swept(pattern: FactorPattern, a: Array, shift: Array, sweeps: int) -> Array:
    """The entries of L and U of A + α·diag(A) after some sweeps from the triangles of A."""
    n_off = pattern.row.shape[0] - pattern.pivot.shape[0]
    lower = pattern.row[:n_off] > pattern.col[:n_off]
    a = a.at[pattern.pivot].multiply(1 + shift)
    lists = _lists(pattern)

    def solved(x: Array, d: Array) -> Array:
        return jnp.where(lower, x / d[pattern.col[:n_off]], x)

    def factors_of(off: Array, d: Array) -> Array:
        left = off[pattern.left]
        if pattern.right is None:
            return jnp.concatenate([left, d[lists.k[left.shape[0] :]] * jnp.conj(left)])
        return jnp.concatenate([left, off[pattern.right]])

    @jax.checkpoint
    def sweep(_: Any, x: Array) -> Array:
        d = _diagonal(pattern, x)
        off = solved(a[:n_off] - _sums(lists, pattern.groups, factors_of(x[:n_off], d)), d)
        return jnp.concatenate([off, a[n_off:] - _sums(lists, pattern.pivot_groups, factors_of(off, d))])

    start = jnp.concatenate([solved(a[:n_off], _diagonal(pattern, a)), a[n_off:]])
    return lax.fori_loop(0, sweeps, sweep, start)


def _diagonal(pattern: FactorPattern, x: Array) -> Array:
    d = x[pattern.pivot]
    return d.real.astype(d.dtype) if pattern.hermitian else d


def _sound(pattern: FactorPattern, x: Array, shift: Array, solve_sweeps: int) -> Array:
    """Whether these entries of L and U make a preconditioner.

    They do not where an entry is not finite, a pivot is small (Hermitian: or not positive), an entry is too large, or
    triangular solves with the factors would diverge (`_solvable`). For a Hermitian matrix |lᵢⱼ|²·dⱼ is at most the
    diagonal, 1 + α; for any other, |lᵢⱼ| and |uᵢⱼ| may reach the inverse of the smallest pivot.
    """
    n_off = pattern.row.shape[0] - pattern.pivot.shape[0]
    d = _diagonal(pattern, x)
    solvable = _solvable(pattern, pattern.left, x[pattern.left], solve_sweeps)
    if pattern.right is None:
        bounded = jnp.abs(x[:n_off]) ** 2 * d.real[pattern.col[:n_off]] <= 1 + shift
        return solvable & jnp.all(bounded) & jnp.all(d.real >= SMALLEST_PIVOT)
    bounded = jnp.all(jnp.abs(x) <= 1 / SMALLEST_PIVOT) & jnp.all(jnp.abs(d) >= SMALLEST_PIVOT)
    upper_values = x[pattern.right] / d[pattern.row[pattern.right]]
    return solvable & bounded & _solvable(pattern, pattern.right, upper_values, solve_sweeps)


def _solvable(pattern: FactorPattern, entries: Array, values: Array, sweeps: int) -> Array:
    """Whether that many sweeps of Jacobi's method halve the errors of two systems (I + N)·y = r, if there are any.

    `values` are those of N at some of the entries. The error after s sweeps from r is (−N)ˢ⁺¹·y. It vanishes after n
    sweeps, but grows first if the matrix is far from diagonally dominant. With one random y instead of two the norm of
    the error scatters by 20%.
    """
    if sweeps == 0:
        return jnp.array(True)
    row, col = pattern.row[entries], pattern.col[entries]
    y = noise(2 * pattern.pivot.shape[0], values.real.dtype).astype(values.dtype).reshape(-1, 2)
    step = lambda _, e: jnp.zeros_like(e).at[row].add(values[:, None] * e[col])  # noqa: E731
    return jnp.linalg.norm(lax.fori_loop(0, sweeps + 1, step, y)) <= 0.5 * jnp.linalg.norm(y)


def _sums(lists: Lists, groups: tuple[Group, ...], values: Array) -> Array:
    """Σₖ lᵢₖ·uₖⱼ over k < min(i, j) for every entry of the groups; `values` [n_left + n_right] are those at `k`."""
    sums = [jnp.zeros(0, values.dtype)]
    for first, end, walk, bisections in groups:
        short, long, n_short, n_long = (a[first:end] for a in lists[1:])

        @jax.checkpoint  # otherwise reverse mode would keep the places of every step
        def term(
            s: Array, values: Array, short=short, long=long, n_short=n_short, n_long=n_long, bisections=bisections
        ):
            here = short + jnp.minimum(s, n_short - 1)
            k = _at(lists.k, here)
            low, high = long, long + n_long
            for _ in range(bisections):
                middle = low + (high - low) // 2
                beyond = (low < high) & (_at(lists.k, middle) < k)
                low, high = jnp.where(beyond, middle + 1, low), jnp.where(beyond, high, middle)
            found = (s < n_short) & (low < long + n_long) & (_at(lists.k, low) == k)
            return jnp.where(found, _at(values, here) * _at(values, low), 0)

        none = jnp.zeros(end - first, values.dtype)
        add = lambda s, total, term=term: total + term(s, values)  # noqa: E731
        sums.append(lax.fori_loop(0, walk, add, none) if walk else none)
    return jnp.concatenate(sums)


def _at(a: Array, index: Array) -> Array:
    return jnp.take(a, index, mode="clip")
