"""Preconditioners: approximate inverses, operators with `@` for the M of a solver."""

from typing import TYPE_CHECKING

from jaxsparse_fmt._late import import_late

if TYPE_CHECKING:
    from solvers.precond.block_jacobi import BlockJacobi as BlockJacobi
    from solvers.precond.block_jacobi import block_jacobi as block_jacobi
    from solvers.precond.chebyshev import Chebyshev as Chebyshev
    from solvers.precond.chebyshev import chebyshev as chebyshev
    from solvers.precond.coarse_space import CoarseSpace as CoarseSpace
    from solvers.precond.coarse_space import coarse_space as coarse_space
    from solvers.precond.coarse_space import subdomains as subdomains
    from solvers.precond.ilu import IncompleteFactors as IncompleteFactors
    from solvers.precond.ilu import ilu as ilu
    from solvers.precond.incomplete import Incomplete as Incomplete
    from solvers.precond.incomplete import incomplete_cholesky as incomplete_cholesky
    from solvers.precond.incomplete import incomplete_lu as incomplete_lu
    from solvers.precond.jacobi import Jacobi as Jacobi
    from solvers.precond.jacobi import jacobi as jacobi
    from solvers.precond.multigrid import Multigrid as Multigrid
    from solvers.precond.multigrid import multigrid as multigrid
    from solvers.precond.multigrid import multigrid_from as multigrid_from
    from solvers.precond.schwarz import Schwarz as Schwarz
    from solvers.precond.schwarz import schwarz as schwarz

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
