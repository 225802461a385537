"""Flexible conjugate gradients, for a preconditioner that changes from step to step (Golub and Ye 1999, Algorithm 2.1).

β is computed from M·r and the change of the residual, which keeps each direction conjugate to the last one for any M:
an inner solve to some tolerance, a narrow type, a cycle with cut-offs. A step reads one vector more than in `cg` and
makes one reduction more: 12n as XLA fuses it.
"""

from typing import Any, Unpack

from jax import Array

from solvers.cg import Work, start, step_code
from solvers.core.iterate import Method, holding
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.core.space import Map, Space
from solvers.core.vectors import ratio
from solvers.solution import Solution


@solver()
def fcg(A: Any, b: Any, x0: Any = None, **settings: Unpack[Keywords]) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) definite A with a preconditioner that may change.

    Args:
      M: an approximation of A⁻¹, roughly symmetric and definite; it may change from step to step and need not
        be linear: anything with `@`, or a function r -> M·r such as an inner solve.

    Other arguments, the `Solution` and the errors are those of `cg`.

    Examples:
      >>> js.fcg(A, b, M=lambda r: js.cg(A, r, maxiter=3).x, rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    return by_method(METHOD, A, b, x0, Settings(**settings))


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, p, gamma, last_alpha = work
    q = A(p)
    curvature = space.dot(p, q)
    alpha = ratio(gamma, curvature)
    x, r_new = x + alpha * p, r - alpha * q
    z = M(r_new)
    gamma_new = space.dot(r_new, z)
    beta = (gamma_new - space.dot(r, z)) / gamma
    code = step_code(gamma, curvature, alpha, last_alpha)
    return Work(x, r_new, z + beta * p, gamma_new, alpha), space.norm(r_new), code


METHOD = Method(start, holding(step), keeps=True)
