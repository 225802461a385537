"""What each solver can end with, as plain data, and the derivatives of that, for the tests of failed solves.

Numbers alone tell the systems apart, so that a solver's programs are compiled once.
"""

import functools
import importlib.util
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
import solvers
from solvers import Adjoint, Status, cg, gmres
from tests.lowering import quick_jit
from tests.solvers.methods import neumann, rotated

N = 20
RNG = np.random.default_rng(3)
SHIFTED = RNG.standard_normal((N, N))
DEFINITE = rotated(np.geomspace(1, 30, N))
GENERAL = DEFINITE + 2 * np.triu(SHIFTED, 1)
B, W, DB = RNG.standard_normal((3, N))
DA = RNG.standard_normal((N, N))
ZERO = np.zeros(N)
NAN = np.where(np.arange(N) == 3, np.nan, 0)
DENSE = jsf.from_dense(np.ones((N, N)), "csr")


class System(NamedTuple):
    A: np.ndarray
    b: np.ndarray = B
    rtol: float = 1e-11
    maxiter: int = 1000


SYSTEMS = {
    "definite": System(DEFINITE),
    "general": System(GENERAL),
    "two steps": System(DEFINITE, maxiter=2),
    "no step": System(DEFINITE, maxiter=0),
    "beyond eps": System(DEFINITE, rtol=1e-30, maxiter=10**6),
    "zeros": System(0 * DEFINITE),
    "ones": System(np.ones((N, N)), rtol=1e-6),
    "negative": System(-DEFINITE),
    "mixed": System(rotated(np.geomspace(1, 30, N) * (-1.0) ** np.arange(N))),
    "triangle": System(np.eye(N) + 5 * np.triu(SHIFTED, 1)),
    "Neumann": System(neumann(N).toarray(), np.ones(N), 1e-8),
    "NaN in A": System(DEFINITE + np.diag(NAN)),
    "NaN in b": System(DEFINITE, B + NAN),
    "tiny": System(1e-200 * DEFINITE, 1e200 * B),
}
OF_GMRES = {
    "CONVERGED": "general, negative",
    "MAXITER": "two steps, no step",
    "STAGNATION": "beyond eps",
    "BREAKDOWN": "zeros",
    "NON_FINITE": "NaN in A, NaN in b",
}
OF_CG = OF_GMRES | {"CONVERGED": "definite, negative", "NOT_POSITIVE_DEFINITE": "mixed", "NOT_SYMMETRIC": "triangle"}
OF_MINRES = OF_GMRES | {"CONVERGED": "definite, negative, mixed", "BREAKDOWN": "", "LEAST_SQUARES": "zeros, Neumann"}
OF_LSMR = OF_GMRES | {"STAGNATION": "", "BREAKDOWN": "", "OUT_OF_RANGE": "tiny"}
OF_DIRECT = {
    "CONVERGED": "definite, general",
    "SINGULAR": "zeros, ones, Neumann",
    "NON_FINITE": "NaN in A, NaN in b",
    "OUT_OF_RANGE": "tiny",
}
OF_CHOLMOD = OF_DIRECT | {"CONVERGED": "definite", "SINGULAR": "", "NOT_POSITIVE_DEFINITE": "zeros, negative, mixed"}


class Case(NamedTuple):
    """A solver, and names of systems by the status that it ends with."""

    solver: Any
    by_status: dict[str, str]

    def endings(self, how: str = "") -> list[tuple[str, Status]]:
        """Each system and its status; outside of jit `solve` goes on where the factors are singular."""
        goes_on = how == "eager" and self.solver is SOLVE
        rows = [(name, Status[key]) for key, names in self.by_status.items() for name in names.split(", ") if name]
        return [(name, Status.LEAST_SQUARES if goes_on and s is Status.SINGULAR else s) for name, s in rows]


def sparse(solver: Any, limited: bool = False, **options: Any) -> Any:
    """A solver of sparse matrices as one of dense arrays; it takes `maxiter` if it is `limited`."""

    def solved(A: Any, b: Any, *, rtol: Any, maxiter: Any) -> Any:
        limits = {"maxiter": maxiter} if limited else {}
        return solver(DENSE.with_data(jnp.ravel(A)), b, rtol=rtol, **limits, **options)

    return solved


SOLVE = sparse(solvers.solve, True)
TRUNCATED = Adjoint(truncated=True)
CASES = {
    "cg": Case(cg, OF_CG | {"OUT_OF_RANGE": "tiny"}),
    "fcg": Case(solvers.fcg, OF_CG),
    "minres": Case(solvers.minres, OF_MINRES),
    "gmres": Case(gmres, OF_GMRES),
    "bicgstab": Case(solvers.bicgstab, OF_GMRES),
    "cocg": Case(solvers.cocg, OF_GMRES | {"CONVERGED": "definite, negative, mixed"}),
    "idrs": Case(solvers.idrs, OF_GMRES | {"DIVERGED": "ones"}),
    "refine": Case(functools.partial(solvers.refine, dtype="float32"), OF_CG | {"PRECISION": "tiny"}),
    "lsmr": Case(solvers.lsmr, OF_LSMR),
    "direct": Case(sparse(solvers.direct, backend="superlu"), OF_DIRECT),
    "klu": Case(sparse(solvers.direct, backend="klu"), OF_DIRECT),
    "cholmod": Case(sparse(solvers.direct, backend="cholmod"), OF_CHOLMOD),
    "factorized": Case(sparse(lambda A, b, **limits: solvers.factorized(A).solve(b, **limits)), OF_DIRECT),
    "solve": Case(SOLVE, OF_DIRECT | {"CONVERGED": "general", "NON_FINITE": "NaN in b"}),
    "solve by factors": Case(sparse(solvers.solve, True, method="direct"), OF_DIRECT | {"MAXITER": "no step"}),
    "solve by cg": Case(sparse(solvers.solve, True, method="cg"), {"CONVERGED": "definite", "MAXITER": "two steps"}),
    "cg truncated": Case(functools.partial(cg, adjoint=TRUNCATED), OF_CG),
    "gmres truncated": Case(functools.partial(gmres, adjoint=TRUNCATED), OF_GMRES),
    "lsmr truncated": Case(functools.partial(solvers.lsmr, adjoint=TRUNCATED), OF_LSMR),
}
PLAIN = [name for name in CASES if "truncated" not in name]
NEEDS = {"klu": "sparsax", "cholmod": "sparsax"}
# Solvers of which a call outside of jit runs other programs, or looks at numbers; cg stands for the other methods.
EAGER = ("cg", "lsmr", "direct", "factorized", "solve", "solve by factors")


def of_cases(quick: str, names: Any = tuple(CASES), hows: tuple[str, ...] = ("jit", "eager")) -> Any:
    """A parametrize over solvers and ways to call them, of which the quick tests take those of `quick`."""

    def row(name: str, how: str) -> Any:
        lacks = name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None
        marks = [] if f"{name} {how}" in quick.split(", ") else [pytest.mark.deep]
        return pytest.param(name, how, marks=[*marks, pytest.mark.skipif(lacks, reason="its library is not installed")])

    return pytest.mark.parametrize(
        ("name", "how"), [row(name, how) for name in names for how in hows if how == "jit" or name in EAGER]
    )


def derivatives(name: str, A: Any, b: Any, dA: Any, db: Any, w: Any, rtol: Any, maxiter: Any) -> Any:
    """The code and x; the gradients of w·x by A and b, and x's derivative along dA and db."""

    def solved(A: Any, b: Any) -> Any:
        sol = CASES[name].solver(A, b, rtol=rtol, maxiter=maxiter)
        return sol.x, sol.code

    x, forward, code = jax.jvp(solved, (A, b), (dA, db), has_aux=True)
    return code, x, (*jax.vjp(solved, A, b, has_aux=True)[1](w), forward)


def by_b(name: str, A: Any, b: Any, db: Any, w: Any, rtol: Any, maxiter: Any) -> Any:
    """As `derivatives`, by b alone: outside of jit A is known."""
    x = lambda b: CASES[name].solver(A, b, rtol=rtol, maxiter=maxiter).x  # noqa: E731
    return jax.grad(lambda b: jnp.vdot(w, x(b)))(b), jax.jvp(x, (b,), (db,))[1]


jitted = functools.partial(quick_jit, static_argnums=0)
WAYS, BY_B = {"jit": jitted(derivatives), "eager": derivatives}, {"jit": jitted(by_b), "eager": by_b}


def dense(A: Any, b: Any, dA: Any, db: Any, w: Any, x: Any = None, least: bool = False) -> tuple[np.ndarray, ...]:
    """What `derivatives` yields, by the implicit formula at x; of least squares with the residual of x."""
    x, y = np.linalg.solve(A, b) if x is None else np.asarray(x), np.linalg.solve(A.T, w)
    r = b - A @ x if least else 0 * b
    z = np.linalg.solve(A, y)
    return np.outer(r, z) - np.outer(y, x), y, np.linalg.solve(A, db - dA @ x + np.linalg.solve(A.T, dA.T @ r))


def kinds(found: Any, right: Any = None, rtol: float = 1e-6) -> str:
    """A word for each array: NaN or 0 throughout, right, or wrong."""
    found = jax.tree.leaves(found)

    def kind(a: np.ndarray, e: Any) -> str:
        if np.all(np.isnan(a)):
            return "NaN"
        is_right = e is not None and np.all(np.abs(a - e) <= rtol * np.max(np.abs(e)))
        return "right" if is_right else "wrong" if np.any(a) else "0"

    return " ".join(map(kind, map(np.asarray, found), [None] * len(found) if right is None else jax.tree.leaves(right)))
