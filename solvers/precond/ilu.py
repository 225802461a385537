"""Incomplete LU factors with fill and pivoting, by SuperLU (Li and Shao 2011), applied exactly."""

from typing import Any

import jax

from jaxsparse_fmt._pytrees import brief, exportable, pytree
from solvers import factors
from solvers.core import arguments
from solvers.precond import _checks as checks


@exportable
@brief
@pytree
class IncompleteFactors(factors.Inverse, checks.Refreshed):
    """M = (L·U)⁻¹ with rows and columns permuted, as an operator: `M @ r` for r of [n] or [n, k]."""

    def _anew(self, A: Any) -> "IncompleteFactors":
        return _made(A, self.recipe)


@arguments.door
def ilu(A: Any, *, drop_tol: float = 1e-4, fill: float = 10.0) -> IncompleteFactors:
    """The preconditioner of incomplete LU factors with fill, for any square matrix; as SciPy's `spilu`.

    Rows are pivoted and columns ordered as by `factorized`, so the diagonal may have zeros. The host factors, in 64
    bits; an application is two triangular solves, on a CPU in a native kernel, elsewhere by levels. Derivatives take M
    as constant.

    Args:
      A: [n, n] jaxsparse matrix on one device, in any format. M is not symmetric, even if A is. If A is traced, the
        host factors and solves at run time; an M made outside jit is faster.
      drop_tol: entries below this, relative to the largest of their column, are dropped; between 0 and 1.
      fill: the entries of the factors are at most about this many times those of A; from 1 up.

    Raises:
      SolverError: A is singular, or holds a NaN; for traced values `M @ r` is NaN instead, which a solver reports as
        NON_FINITE. ValueError: A is not square, or sharded; or drop_tol or fill lie elsewhere. TypeError: not a matrix
        of jaxsparse_fmt.

    Examples:
      >>> js.gmres(A, b, M=js.precond.ilu(A)).success
      True
    """
    drop_tol, fill = float(arguments.tolerance(drop_tol, "drop_tol")), float(arguments.tolerance(fill, "fill"))
    if drop_tol > 1 or fill < 1:
        raise ValueError(f"drop_tol must be at most 1, and fill at least 1; got {drop_tol:g} and {fill:g}")
    return _made(A, ("ilu", drop_tol, fill))


def _made(A: Any, recipe: factors.Recipe) -> IncompleteFactors:
    return IncompleteFactors(None, jax.device_put(factors.made(A, recipe, "ilu")), recipe)
