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
    from solvers import precond as precond
    from solvers.banded import solve_banded as solve_banded
    from solvers.banded import solve_block_tridiagonal as solve_block_tridiagonal
    from solvers.bicgstab import bicgstab as bicgstab
    from solvers.cg import cg as cg
    from solvers.cocg import cocg as cocg
    from solvers.core.linear_solve import Adjoint as Adjoint
    from solvers.direct import Factorized as Factorized
    from solvers.direct import direct as direct
    from solvers.direct import factorized as factorized
    from solvers.eigenpairs import EigenSolution as EigenSolution
    from solvers.eigs import eigs as eigs
    from solvers.eigsh import eigsh as eigsh
    from solvers.expm_multiply import FunctionSolution as FunctionSolution
    from solvers.expm_multiply import expm_multiply as expm_multiply
    from solvers.fcg import fcg as fcg
    from solvers.gmres import gmres as gmres
    from solvers.idrs import idrs as idrs
    from solvers.lobpcg import lobpcg as lobpcg
    from solvers.logdet import logdet as logdet
    from solvers.lsmr import LeastSquaresSolution as LeastSquaresSolution
    from solvers.lsmr import lsmr as lsmr
    from solvers.minres import minres as minres
    from solvers.nullspace import nullspace as nullspace
    from solvers.refine import refine as refine
    from solvers.solution import Solution as Solution
    from solvers.solution import SolverError as SolverError
    from solvers.solution import Status as Status
    from solvers.solve import solve as solve
    from solvers.svds import SingularSolution as SingularSolution
    from solvers.svds import svds as svds
    from solvers.triangular import spsolve_triangular as spsolve_triangular

import_late(
    __name__,
    {
        "banded": "solve_banded solve_block_tridiagonal",
        "bicgstab": "bicgstab",
        "cg": "cg",
        "cocg": "cocg",
        "core.linear_solve": "Adjoint",
        "direct": "direct factorized Factorized",
        "eigenpairs": "EigenSolution",
        "eigs": "eigs",
        "eigsh": "eigsh",
        "expm_multiply": "expm_multiply FunctionSolution",
        "fcg": "fcg",
        "gmres": "gmres",
        "idrs": "idrs",
        "lobpcg": "lobpcg",
        "logdet": "logdet",
        "lsmr": "lsmr LeastSquaresSolution",
        "minres": "minres",
        "nullspace": "nullspace",
        "precond": "precond",
        "refine": "refine",
        "solution": "Solution SolverError Status",
        "solve": "solve",
        "svds": "svds SingularSolution",
        "triangular": "spsolve_triangular",
    },
)
