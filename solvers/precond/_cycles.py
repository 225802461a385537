"""The cycles of multigrid: V and W (Trottenberg, Oosterlee and Schüller 2001, Multigrid, §2.4).

    level 0    r ─ smooth ─ r − A·x ─╮ R                        P ╭─ x + e ─ smooth ─ x
    level 1                          ╰ smooth ─╮ R      P ╭ smooth ╯
    coarsest                                   ╰ A⁺, dense ╯

V visits the next level once, W twice.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt.core import mesh_axes
from solvers.core.operators import rows_scaled
from solvers.core.space import HERE, norm
from solvers.precond._spectrum import chebyshev_step

# The degree of the smoother, and the lower end of the spectrum to smooth as a fraction of the upper. Of degrees 1 to 4
# and fractions 1/30 to 1/2 these move the fewest bytes, or nearly, on 7-point Poisson and elasticity alike.
DEGREE, FRACTION = 2, 0.15
CHECKED = 6  # cycles whose growth warns


@exportable
@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Level:
    """A level above the coarsest: its matrix, its smoother, its restriction and its prolongation."""

    A: Any  # [n, n]
    R: Any  # [m, n]; stored apart from P, whose transposed product would add by atomics
    P: Any  # [n, m]
    inverse_diagonal: Any  # [n]
    recurrence: Any  # [degree, 2]: step k is z ← a·z + c·D⁻¹·r, x ← x + z, with (a, c) of row k

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, A=self.A.T, R=self.P.T, P=self.R.T)


def recurrence(degree: int, upper: float) -> np.ndarray:
    """[degree, 2], a and c of z ← a·z + c·D⁻¹·r, x ← x + z for eigenvalues of D⁻¹A up to `upper`."""
    middle, half = (1 + FRACTION) / 2, (1 - FRACTION) / 2
    rows, rho = [(0.0, 1 / middle)], half / middle
    for _ in range(degree - 1):
        rho, a, c = chebyshev_step(rho, middle, half)
        rows.append((a, c))
    return np.array(rows) / (1, upper)


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
    """x ≈ A⁻¹·r on the next level, by one or two cycles; one solve on the coarsest."""
    if not levels or cycle == "V":
        return cycled(levels, coarse_inverse, cycle, r)

    def step(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        x, r = state
        e = cycled(levels, coarse_inverse, cycle, r)
        return (x + e, r - levels[0].A @ e), None

    return lax.scan(step, (jnp.zeros_like(r), r), length=2)[0][0]  # a loop: each level would double the program


def _smoothed(level: Level, r: Array) -> tuple[Array, Array, Array]:
    """x ≈ A⁻¹·r from zero, its last step z, and the residual before that step: r − A·x is this residual less A·z."""
    x = z = level.recurrence[0, 1] * rows_scaled(level.inverse_diagonal, r)
    for a, c in level.recurrence[1:]:
        r = r - level.A @ z
        z = a * z + c * rows_scaled(level.inverse_diagonal, r)
        x = x + z
    return x, z, r


@jax.jit
def growth(M: Any) -> Array:
    """The factor by which I − M·A magnifies a vector after some cycles."""
    return mesh_axes.by_xla(_grown, (M,), PartitionSpec())


def _grown(M: Any) -> Array:
    A = M.levels[0].A

    def step(x: Array, _: None) -> tuple[Array, Array]:
        x = x / norm(x)
        x = x - M @ (A @ x)
        return x, norm(x)

    start = HERE.probe(jnp.zeros(M.shape[0], jnp.promote_types(M.dtype, jnp.float32)))
    return lax.scan(step, start, length=CHECKED)[1][-1]
