"""Solution and Status: what every solver returns, and what it says about itself."""

from __future__ import annotations

import dataclasses
import enum
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Array = jax.Array


class Status(enum.IntEnum):
    """How a solve ended. An integer, so that it lives inside jit; `message` says what happened and what helps."""

    CONVERGED = 0
    MAXITER = 1
    BREAKDOWN = 2
    STAGNATION = 3
    NOT_POSITIVE_DEFINITE = 4
    NON_FINITE = 5
    DIVERGED = 6
    NOT_SYMMETRIC = 7
    PRECISION = 8

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "the true residual meets the tolerance",
    Status.MAXITER: "maxiter reached before the tolerance; raise maxiter, loosen rtol, or pass a preconditioner M",
    Status.BREAKDOWN: "the method broke down: its next direction vanished before the tolerance was met; the matrix "
    "may be singular, or rtol and atol ask for more than zero residual",
    Status.STAGNATION: "the true residual stopped falling above the tolerance: at the limit of this precision, where a "
    "larger rtol or a wider dtype helps (float64 with jax_enable_x64), or gmres needs a larger restart or an M",
    Status.NOT_POSITIVE_DEFINITE: "the matrix or the preconditioner is not positive definite, which this "
    "method needs; for an indefinite matrix take minres, gmres or bicgstab, or check the sign of A and M",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A, b, x0 and M",
    Status.DIVERGED: "the residual grew without bound; scale the system, pass a preconditioner M, or use gmres, whose "
    "residual never grows",
    Status.NOT_SYMMETRIC: "the matrix is not symmetric (Hermitian), which this method needs; use gmres or bicgstab",
    Status.PRECISION: "corrections in the narrow type no longer help: the condition number times its rounding unit is "
    "too large; take a wider one (float16 or float32 for bfloat16, float32 for float16), pass a preconditioner M, or "
    "use the method itself in float64, which also tells whether the matrix suits it",
}


class SolverError(RuntimeError):
    """Raised by `Solution.raise_for_status`; `status` holds the cause."""

    def __init__(self, status: Status, text: str):
        super().__init__(text)
        self.status = status


class Outcome:
    """What a result says about itself: from its `code`, a `Status` as a number, and its count of iterations."""

    code: Array
    n_iterations: Array

    @property
    def status(self) -> Status | Array:
        """A `Status`; inside jit, or for several solves at once, the code array."""
        return Status(int(self.code)) if _is_one_number(self.code) else self.code

    @property
    def iterations(self) -> int | Array:
        """Iterations done; an int outside jit."""
        return int(self.n_iterations) if _is_one_number(self.n_iterations) else self.n_iterations

    @property
    def success(self) -> bool | Array:
        """Whether the true residual meets the tolerance; a bool outside jit."""
        met = self.code == Status.CONVERGED
        return bool(met) if _is_one_number(met) else met

    def raise_for_status(self) -> Self:
        """This result, if every solve in it converged.

        Raises:
          SolverError: one did not; the message says why and what helps.
        """
        worst = Status(int(jnp.max(self.code)))
        if worst is not Status.CONVERGED:
            norm, steps = self._largest_residual(), int(jnp.max(self.n_iterations))
            raise SolverError(
                worst, f"{worst.name} after {steps} iterations, residual norm {norm:.3g}: {self._message(worst)}"
            )
        return self

    def _message(self, status: Status) -> str:
        return status.message

    def _largest_residual(self) -> float:
        raise NotImplementedError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Solution(Outcome):
    """A solver's result, a pytree.

    Attributes:
      x: [n] or [n, k], the last iterate; zero wherever that is not finite, and the status is then not CONVERGED.
      code: int32, the `Status` as a number; for several systems, or under vmap, one of each.
      n_iterations: int32, likewise.
      residual_norm: ‖b − A·x‖₂, recomputed from x and not taken from the recursion.
      norms: [length] or [length, k], residual norms of the recursion by iteration, NaN after the last; None unless
        asked for.
    """

    x: Array
    code: Array
    n_iterations: Array
    residual_norm: Array
    norms: Array | None

    @property
    def history(self) -> Array | None:
        """Residual norms, index = iteration: [iterations + 1] outside jit, of fixed length and NaN-padded inside."""
        if self.norms is None or not _is_one_number(self.n_iterations):
            return self.norms
        return self.norms[: int(self.n_iterations) + 1]

    def _largest_residual(self) -> float:
        return float(jnp.max(self.residual_norm))

    def __repr__(self) -> str:
        if not _is_one_number(self.code):
            return f"Solution(x: {getattr(self.x, 'shape', self.x)}, status: {self.code})"
        return (
            f"Solution({Status(int(self.code)).name}, iterations={self.iterations}, "
            f"residual_norm={float(self.residual_norm):.3g}, x: {self.x.dtype}{list(self.x.shape)})"
        )


def _is_one_number(a: Array) -> bool:
    return isinstance(a, (jax.Array, np.ndarray)) and a.ndim == 0 and not isinstance(a, Tracer)
