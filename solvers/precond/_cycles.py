"""The cycles of multigrid: V, W and F (Trottenberg, Oosterlee and Schüller 2001, Multigrid, §2.4), and K.

    level 0    r ─ smooth ─ r − A·x ─╮ R                        P ╭─ x + e ─ smooth ─ x
    level 1                          ╰ smooth ─╮ R      P ╭ smooth ╯
    coarsest                                   ╰ A⁺, dense ╯

V visits the next level once. W visits it twice, F once by F and then by V. K solves there by two steps of flexible
conjugate gradients (Notay and Vassilevski 2008, Recursive Krylov-based multigrid cycles), so it is not linear in r.
"""

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._types import pytree
from solvers.core.diagonal import rows_scaled
from solvers.core.vectors import inner_product, ratio

# The cycles that treat the next level, one after the other; "f" is the transpose of "F".
CYCLES = {"V": "V", "W": "WW", "F": "FV", "f": "Vf", "K": "K"}


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Level:
    """A level above the coarsest: its matrix, its smoother, its restriction and its prolongation."""

    A: Any  # [n, n]
    R: Any  # [m, n]; stored apart from P, whose transposed product would add by atomics
    P: Any  # [n, m]
    inverse_diagonal: Array  # [n]
    recurrence: Array  # [degree, 2]: step k is z ← a·z + c·D⁻¹·r, x ← x + z, with (a, c) of row k

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, A=self.A.T, R=self.P.T, P=self.R.T)


def cycled(levels: tuple[Level, ...], coarse_inverse: Array, cycle: str, r: Array) -> Array:
    """x ≈ A⁻¹·r for the A of the first level."""
    if not levels:
        # By default a GPU would round float32 to 11 bits here.
        return jnp.matmul(coarse_inverse, r, precision=lax.Precision.HIGHEST)
    level = levels[0]
    x, z, r = _smoothed(level, r)
    r = r - level.A @ z
    e = level.P @ _below(levels[1:], coarse_inverse, cycle, level.R @ r)
    correction, _, _ = _smoothed(level, r - level.A @ e)
    return x + e + correction


def _below(levels: tuple[Level, ...], coarse_inverse: Array, cycle: str, r: Array) -> Array:
    """x ≈ A⁻¹·r on the next level, by as many cycles as `cycle` sets; one solve on the coarsest."""
    first, *second = CYCLES[cycle]
    if not levels or cycle == "V":
        return cycled(levels, coarse_inverse, first, r)
    A = levels[0].A
    if cycle == "K":
        return _krylov(A, lambda r: cycled(levels, coarse_inverse, "K", r), r)
    if cycle == "W":  # a loop, since each level would double the program

        def step(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            x, r = state
            e = cycled(levels, coarse_inverse, "W", r)
            return (x + e, r - A @ e), None

        return lax.scan(step, (jnp.zeros_like(r), r), length=2)[0][0]
    x = cycled(levels, coarse_inverse, first, r)
    return x + cycled(levels, coarse_inverse, second[0], r - A @ x)


def _krylov(A: Any, M: Any, r: Array) -> Array:
    """Two steps of flexible conjugate gradients from zero."""

    def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        x, r, p, q, pq = state
        z = M(r)
        p = z - ratio(inner_product(q, z), pq) * p
        q = A @ p
        pq = inner_product(p, q)
        alpha = ratio(inner_product(p, r), pq)
        return (x + alpha * p, r - alpha * q, p, q, pq), None

    zero = jnp.zeros_like(r)
    return lax.scan(step, (zero, r, zero, zero, inner_product(zero, zero)), length=2)[0][0]


def _smoothed(level: Level, r: Array) -> tuple[Array, Array, Array]:
    """x ≈ A⁻¹·r from zero, its last step z, and the residual before that step: r − A·x is this residual less A·z."""
    x = z = level.recurrence[0, 1] * rows_scaled(level.inverse_diagonal, r)
    for a, c in level.recurrence[1:]:
        r = r - level.A @ z
        z = a * z + c * rows_scaled(level.inverse_diagonal, r)
        x = x + z
    return x, z, r
