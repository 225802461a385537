"""Preconditioners: approximate inverses, operators with `@` for the M of a solver."""

from solvers.precond.jacobi import Jacobi, jacobi

__all__ = ["Jacobi", "jacobi"]
