"""New values in the hierarchy of `multigrid`: prolongations, coarse matrices and smoothers as functions of A's entries.

T and the strong couplings of a level depend on the pattern and on the near-null space alone, so the entries of

    P = T − ω/λ·D⁻¹·A'·T

are linear in those of A but for D and λ. A'·T, A·P and R·(A·P) are products with plans as `jsf.plan` makes
them, by blocks where compiled code computes them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array, lax

from jaxsparse_fmt._types import index_dtype, pytree
from jaxsparse_fmt.algebra import patterns, plans
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.core.vectors import dot, norm, probe, ratio
from solvers.precond import _checks as checks
from solvers.precond import _hierarchy
from solvers.precond._cycles import Level
from solvers.precond._inverse import NULL, generalized_inverse


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Renewal:
    """The parts from which a level's new values are computed.

    Attributes:
      place: the entry of A at each place of its blocks, nnz in a hole; None without holes.
      T: [nnz of T]; tentative: [nnz of P], T on the pattern of P.
      smooth, inner, outer: the values of A'·T, A·P and R·(A·P).
      below: the pattern of the coarsest matrix, on the last level.
      diagonal: [n], the entry of A on the diagonal of each row, nnz where there is none.
      row: [nnz of P], the row of each entry.
      transposed: [nnz of P], R.data = P.data[transposed].
      unit_recurrence: [degree, 2], the smoother for λ = 1.
      l1: whether the smoother divides by sums of absolute values.
    """

    place: Array | None
    T: Array
    tentative: Array
    smooth: plans.Terms
    inner: plans.Terms
    outer: plans.Terms
    below: Any
    diagonal: Array
    row: Array
    transposed: Array
    unit_recurrence: Array
    l1: bool = dataclasses.field(metadata={"static": True})


def renewals(hermitian: bool, levels: list[_hierarchy.HostLevel], smoother: _hierarchy.Smoother) -> tuple[Renewal, ...]:
    """The plans for all levels. ValueError: the matrix is not Hermitian, or the user gave the levels."""
    if not hermitian or any(level.transfer is None for level in levels):
        raise ValueError(
            "refreshable=True needs a Hermitian matrix and the set-up of this library; set M up anew instead"
        )
    return tuple(_renewal(level, smoother, level is levels[-1]) for level in levels)


def _renewal(level: _hierarchy.HostLevel, smoother: _hierarchy.Smoother, last: bool) -> Renewal:
    assert level.transfer is not None
    filled, b, chosen, agg, count, Q = level.transfer
    A, R, P, k = level.A, level.R, level.P, Q.shape[1]
    p, q = (b, k) if k in plans.block_widths() else (1, 1)
    T = aggregation.placed(agg, count, Q)
    whole = aggregation.blocks(filled, b, b)
    points = whole.ptr.size - 1
    lumped = patterns.csr(whole.ptr, aggregation.lumped(whole, chosen), (points, points))
    smooth, _ = plans.terms(lumped if p == b else _of_numbers(lumped, b), _grouped(T, p, q), (p, p, q))
    inner, product = plans.terms(_grouped(filled, p, p), _grouped(P, p, q), (p, p, q))
    outer, below = plans.terms(_grouped(R, q, p), product, (q, p, q))
    tentative = aggregation.prolongation(whole, *level.transfer[1:], np.zeros(P.shape[0])).data
    numbers = patterns.numbered(A, 0)
    entry = lambda number: jnp.asarray(np.where(number > 0, number - 1, A.nnz).astype(index_dtype(A.nnz)))  # noqa: E731
    row = np.repeat(np.arange(P.shape[0], dtype=np.int32), np.diff(P.indptr))
    transposed = patterns.numbered(P, -1).T.tocsr().data.astype(index_dtype(P.nnz))
    return Renewal(
        place=None if filled.nnz == A.nnz else entry(aggregation.filled(numbers, b).data),
        T=jnp.asarray(T.data),
        tentative=jnp.asarray(tentative),
        smooth=smooth,
        inner=inner,
        outer=outer,
        below=patterns.matrix(_of_numbers(below, q), "csr", "auto") if last else None,
        diagonal=entry(numbers.diagonal()),
        row=jnp.asarray(row),
        transposed=jnp.asarray(transposed),
        unit_recurrence=jnp.asarray(_hierarchy.recurrence(smoother)),
        l1=smoother.name == "l1_jacobi",
    )


def _grouped(S: Any, b: int, c: int) -> Any:
    """The pattern of the blocks b×c of S."""
    ptr, col, _ = aggregation.blocks(S, b, c)
    return patterns.csr(ptr, col, (S.shape[0] // b, S.shape[1] // c))


def _of_numbers(S: Any, b: int) -> Any:
    """The pattern of the numbers in the blocks b×b of S."""
    blocks = np.ones((S.nnz, b, b), np.int8), S.indices, S.indptr
    return scipy.sparse.bsr_array(blocks, shape=(b * S.shape[0], b * S.shape[1])).tocsr()


def renewed(
    levels: tuple[Level, ...], coarse_inverse: Array, renewals: tuple[Renewal, ...], A: Any
) -> tuple[tuple[Level, ...], Array]:
    """The levels and the coarsest inverse for the values of A."""
    data = A.data  # here, where the index of the entries is known, unless the pattern is traced
    if levels and not _alike(A, levels[0].A):
        A = levels[0].A.with_data(data)
    new, inverse = _renewed(levels, coarse_inverse, renewals, A, data)
    if levels:
        new = dataclasses.replace(new[0], A=A.astype(levels[0].A.dtype)), *new[1:]
    return new, inverse


def _alike(A: Any, B: Any) -> bool:
    """Whether A and B have the same type and layout, so that a scan can carry one in place of the other."""
    if jax.tree.structure(A) != jax.tree.structure(B):
        return False
    leaves = zip(jax.tree.leaves(A.without_values), jax.tree.leaves(B.without_values), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in leaves)


@jax.jit
def _renewed(
    levels: tuple[Level, ...],
    coarse_inverse: Array,
    renewals: tuple[Renewal, ...],
    A: Any,
    data: Array,  # [nnz], the entries of A
) -> tuple[tuple[Level, ...], Array]:
    """As `renewed`, without the finest matrix, which XLA would copy."""
    new = []
    unit = jnp.abs(_at(renewals[0].diagonal, data) if levels else A.diagonal())
    for level, renewal in zip(levels, renewals, strict=True):
        diagonal = _at(renewal.diagonal, data).real
        live = jnp.abs(diagonal) > NULL * unit
        inverse = jnp.where(live, 1 / jnp.where(live, diagonal, 1), 0)
        sums = A._each(jnp.abs) @ jnp.ones_like(unit)
        upper = _largest_eigenvalue(A, inverse, jnp.max(jnp.abs(inverse) * sums))
        step = _hierarchy.DAMPING / upper * inverse
        whole = data if renewal.place is None else _at(renewal.place, data)
        p = renewal.tentative - step[renewal.row] * renewal.smooth(whole, renewal.T)
        r = jnp.conj(p[renewal.transposed])
        if renewal.l1:
            inverse, upper = jnp.where(live, 1 / jnp.where(live, sums, 1), 0), jnp.ones_like(upper)
        recurrence = renewal.unit_recurrence / jnp.stack([jnp.ones_like(upper), upper])
        R, P = (matrix.with_data(data.astype(matrix.dtype)) for matrix, data in ((level.R, r), (level.P, p)))
        smoother = checks.like((inverse, recurrence), (level.inverse_diagonal, level.recurrence))
        new.append(Level(A.astype(level.A.dtype) if new else None, R, P, *smoother))
        unit = R.with_data(jnp.abs(r) ** 2) @ unit
        data = renewal.outer(r, renewal.inner(whole, p))
        A = (renewal.below if len(new) == len(levels) else levels[len(new)].A).with_data(data)
    return tuple(new), generalized_inverse(A.todense(), lax.stop_gradient(unit)).astype(coarse_inverse.dtype)


def _at(entry: Array, data: Array) -> Array:
    return data.at[entry].get(mode="fill", fill_value=0)


def _largest_eigenvalue(A: Any, inverse_diagonal: Array, bound: Array) -> Array:
    """As `_hierarchy.spectrum` estimates it, for a Hermitian A."""
    size = jnp.sqrt(jnp.abs(inverse_diagonal))

    def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
        v, before, beta = state
        w = size * (A @ (size * v)) - beta * before
        alpha = dot(v, w)
        w = w - alpha * v
        after = norm(w)
        after = jnp.where(after <= 1e-10 * bound, 0, after)
        return (ratio(w, after), v, after), (alpha, after)

    v = probe(jnp.zeros(A.shape[0], A.dtype)) * (size != 0)
    v = ratio(v, norm(v))
    steps = min(_hierarchy.LANCZOS_STEPS, A.shape[0])
    _, (alpha, beta) = lax.scan(step, (v, jnp.zeros_like(v), jnp.zeros_like(norm(v))), length=steps)
    # After an invariant subspace: a Ritz value too.
    alpha = jnp.where(jnp.append(True, beta[:-1] != 0), alpha, alpha[0])
    largest = jnp.linalg.eigvalsh(jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1))[-1]
    close = jnp.where(largest > 0, jnp.minimum(_hierarchy.SAFETY * largest, bound), bound)
    return jnp.where(bound > 0, close, 1)
