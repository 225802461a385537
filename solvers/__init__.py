"""Krylov solvers for JAX: inside jit, vmap and grad, with a status that can be believed.

from solvers import cg
sol = cg(A, b, rtol=1e-8)
sol.x, sol.status, sol.iterations, sol.residual_norm
"""

from solvers import precond
from solvers.bicgstab import bicgstab
from solvers.cg import cg
from solvers.chebyshev import chebyshev
from solvers.eigsh import EigenSolution, eigsh
from solvers.fcg import fcg
from solvers.gmres import gmres
from solvers.minres import minres
from solvers.refine import refine
from solvers.solution import Solution, SolverError, Status

__all__ = [
    "EigenSolution",
    "Solution",
    "SolverError",
    "Status",
    "bicgstab",
    "cg",
    "chebyshev",
    "eigsh",
    "fcg",
    "gmres",
    "minres",
    "precond",
    "refine",
]
