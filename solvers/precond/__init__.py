"""Preconditioners: approximate inverses, operators with `@` for the M of a solver."""

from typing import TYPE_CHECKING

from jaxsparse_fmt._late import import_late

if TYPE_CHECKING:
    from solvers.precond.block_jacobi import BlockJacobi, block_jacobi
    from solvers.precond.chebyshev import Chebyshev, chebyshev
    from solvers.precond.coarse_space import CoarseSpace, coarse_space, subdomains
    from solvers.precond.ilu import IncompleteFactors, ilu
    from solvers.precond.incomplete import Incomplete, incomplete_cholesky, incomplete_lu
    from solvers.precond.jacobi import Jacobi, jacobi
    from solvers.precond.multigrid import Multigrid, multigrid, multigrid_from
    from solvers.precond.schwarz import Schwarz, schwarz

__all__ = [
    "BlockJacobi",
    "Chebyshev",
    "CoarseSpace",
    "Incomplete",
    "IncompleteFactors",
    "Jacobi",
    "Multigrid",
    "Schwarz",
    "block_jacobi",
    "chebyshev",
    "coarse_space",
    "ilu",
    "incomplete_cholesky",
    "incomplete_lu",
    "jacobi",
    "multigrid",
    "multigrid_from",
    "schwarz",
    "subdomains",
]

import_late(
    __name__,
    {
        "block_jacobi": "block_jacobi BlockJacobi",
        "chebyshev": "chebyshev Chebyshev",
        "coarse_space": "coarse_space CoarseSpace subdomains",
        "ilu": "ilu IncompleteFactors",
        "incomplete": "incomplete_cholesky incomplete_lu Incomplete",
        "jacobi": "jacobi Jacobi",
        "multigrid": "multigrid multigrid_from Multigrid",
        "schwarz": "schwarz Schwarz",
    },
)
