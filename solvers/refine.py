"""Refinement in mixed precision: a method in a narrow type inside, with the residual and the solution in the wide type.

The loop is that of every method (`core/iterate`), with a narrow matrix for the method: Cevahir et al., §4, Algorithm 2,
whose inner solves start anew each time. With conjugate gradients inside, the loop keeps the direction and replaces the
residual by the true one whenever it has fallen by a factor (reliable updates, Clark et al. 2010, §5). So directions
stay conjugate, and the number of iterations is about that of the wide method.

Traffic of a step: that of the method in the narrow type, about half in float32. Each true residual takes a wide product
and 6 wide vectors more.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._arguments import check_choice
from solvers.bicgstab import METHOD as BICGSTAB
from solvers.cg import METHOD as CG
from solvers.core.iterate import Method
from solvers.core.operators import is_function, refuse_scipy
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.fcg import METHOD as FCG
from solvers.gmres import method as gmres_method
from solvers.minres import METHOD as MINRES
from solvers.solution import Solution

METHODS: dict[str, Method] = {"cg": CG, "fcg": FCG, "minres": MINRES, "bicgstab": BICGSTAB, "gmres": gmres_method(30)}
WORTHWHILE = 50_000_000  # bytes of A
DTYPES = ("float32", "bfloat16")


@solver(rtol=None)
def refine(
    A: Any, b: Any, x0: Any = None, *, dtype: Any = None, method: str = "cg", **settings: Unpack[Keywords]
) -> Solution:
    """Solves A·x = b to the accuracy of b's dtype, with most of the work in a narrower dtype.

    Args:
      A: a matrix, as in `cg`. Its values are stored a second time in `dtype`, unless they have that dtype: store
        entries that are exact in float32 only once, in float32, under a float64 b.
      M: an approximation of A⁻¹, in the narrow type if it is a pytree. With a `precond.coarse_space` of what
        rounding A disturbs, such as rigid motions in elasticity, the steps are as many as those of a wide solve.
      dtype: of the inner matrix: "float32", or "bfloat16" under float32 vectors. None takes float32 under 64-bit
        vectors, but the wide type itself if A has less than 50 MB: a GPU's cache holds such a matrix, so that steps are
        no faster in a narrow type, and the solve would take a few more.
      method: the inner one: "cg", "fcg", "minres", "bicgstab" or "gmres".
      rtol: None takes 1e-10 under 64-bit vectors, else 1e-6.

    Other arguments are those of `cg`.

    Returns:
      A `Solution`: its residual norm is true and wide. Its status is PRECISION if the condition number is too large
      for the narrow type, and it is differentiable as that of `cg`.

    Raises:
      ValueError, TypeError: as `cg`, or a dtype that is not narrower than that of A and b.

    Examples:
      >>> sol = js.refine(A, b, rtol=1e-12, dtype="float32")
      >>> sol.status, sol.x.dtype
      (<Status.CONVERGED: 0>, dtype('float64'))
    """
    check_choice("method", method, METHODS)
    refuse_scipy(A, "A")
    arrays = [leaf for leaf in jax.tree.leaves(A) if isinstance(leaf, jax.Array | np.ndarray)]
    numbers = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact)]
    is_wide = jnp.finfo(jnp.result_type(*jax.tree.leaves(b), *numbers, float)).bits == 64
    if settings.get("rtol") is None:
        settings["rtol"] = 1e-10 if is_wide else 1e-6
    narrow, large = None, is_wide and sum(a.size * a.dtype.itemsize for a in arrays) >= WORTHWHILE
    if dtype is not None or is_function(A) or large:
        narrow = jnp.dtype(dtype or "float32")
        check_choice("dtype", narrow.name, DTYPES)
    # How far the narrow residual falls until the true one is computed; cg and fcg then keep their direction.
    drop = 0.0 if narrow is None else 0.03 if METHODS[method].keeps else 1e-4 if narrow == "float32" else 1e-2
    return by_method(METHODS[method], A, b, x0, Settings(**settings), narrow, drop)
