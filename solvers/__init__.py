"""Solvers for JAX, for use inside jit, vmap and grad; each result has a status based on the true residual.

A solve of A·x = b, by a method that suits A; each method has a function of its own:

    from solvers import solve
    sol = solve(A, b, rtol=1e-8)
    sol.x, sol.status, sol.method, sol.residual_norm

Each name is imported at its first use: `cg` alone needs a third of the modules.
"""

from typing import TYPE_CHECKING

from jaxsparse_fmt._late import import_late

if TYPE_CHECKING:
    from solvers import precond
    from solvers.bicgstab import bicgstab
    from solvers.cg import cg
    from solvers.core.settings import Adjoint
    from solvers.direct import Factorized, direct, factorized
    from solvers.eigenpairs import EigenSolution
    from solvers.eigsh import eigsh
    from solvers.fcg import fcg
    from solvers.gmres import gmres
    from solvers.idrs import idrs
    from solvers.lobpcg import lobpcg
    from solvers.logdet import logdet
    from solvers.lsmr import LeastSquaresSolution, lsmr
    from solvers.minres import minres
    from solvers.refine import refine
    from solvers.solution import Solution, SolverError, Status
    from solvers.solve import solve
    from solvers.svds import SingularSolution, svds
    from solvers.triangular import spsolve_triangular

__all__ = [
    "Adjoint",
    "EigenSolution",
    "Factorized",
    "LeastSquaresSolution",
    "SingularSolution",
    "Solution",
    "SolverError",
    "Status",
    "bicgstab",
    "cg",
    "direct",
    "eigsh",
    "factorized",
    "fcg",
    "gmres",
    "idrs",
    "lobpcg",
    "logdet",
    "lsmr",
    "minres",
    "precond",
    "refine",
    "solve",
    "spsolve_triangular",
    "svds",
]

import_late(
    __name__,
    {
        "bicgstab": "bicgstab",
        "cg": "cg",
        "core.settings": "Adjoint",
        "direct": "direct factorized Factorized",
        "eigenpairs": "EigenSolution",
        "eigsh": "eigsh",
        "fcg": "fcg",
        "gmres": "gmres",
        "idrs": "idrs",
        "lobpcg": "lobpcg",
        "logdet": "logdet",
        "lsmr": "lsmr LeastSquaresSolution",
        "minres": "minres",
        "precond": "precond",
        "refine": "refine",
        "solution": "Solution SolverError Status",
        "solve": "solve",
        "svds": "svds SingularSolution",
        "triangular": "spsolve_triangular",
    },
)
