"""Ways to solve a system, for `solve`: the tables, and how each is gone. A way is a method with a preconditioner."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._tracing import concrete
from solvers import precond
from solvers.bicgstab import METHOD as BICGSTAB
from solvers.cg import METHOD as CG
from solvers.core.operators import is_function
from solvers.core.solve import Settings, by_method
from solvers.direct import by_factors, prepared
from solvers.estimates import BLOCK, Trial, Way
from solvers.facts import Facts, check_finite
from solvers.fcg import METHOD as FCG
from solvers.gmres import method as gmres
from solvers.idrs import method as idrs
from solvers.minres import METHOD as MINRES
from solvers.precond.jacobi import of_diagonal
from solvers.shortest import by_lsmr, by_singular_values, of_least_squares
from solvers.solution import Solution, Status

RESTART = 30  # of gmres
METHODS: dict[str, Callable[[int], Any]] = {
    **{"cg": lambda n: CG, "fcg": lambda n: FCG, "minres": lambda n: MINRES, "bicgstab": lambda n: BICGSTAB},
    **{"gmres": lambda n: gmres(min(RESTART, n)), "idrs": lambda n: idrs(min(4, n))},
}
MAKERS: dict[str, Callable[[Any], Any]] = {  # whose modules are imported at their first use
    "jacobi": lambda A: precond.jacobi(A),
    "|jacobi|": lambda A: precond.jacobi(abs(A) if hasattr(A, "__abs__") else A),  # which refuses a function
    "block_jacobi": lambda A: precond.block_jacobi(A, BLOCK),
    "multigrid": lambda A: precond.multigrid(A),
    "ilu": lambda A: precond.ilu(A),
}
SMALL = 3_000  # unknowns: even full factors take a second or two
DENSE = 500  # unknowns of a singular matrix whose singular values the host computes, in half a second
LONGEST = 60  # seconds of a method without a limit
SILENT = 10  # seconds that no warning announces
TOLD = 1e8  # bytes that are kept, of which `tried` tells
HOURS = 3600  # seconds of a factorization that only `direct` begins


# -------------------------------------------------------------------------------------------------------- the choice


DEFINITE = "symmetric, positive diagonal"
WAYS = (
    Way("cg", "jacobi", lambda f: (f.tries or f.hints[1]) and f.maybe_definite, f"{DEFINITE}; no set-up", 150),
    Way("minres", "|jacobi|", lambda f: (f.tries or any(f.hints)) and f.symmetric, "symmetric; no set-up", 200),
    Way("bicgstab", "jacobi", lambda f: f.tries and f.full_diagonal and not f.symmetric, "no set-up", 60),
    Way("direct", "factors", lambda f: f.pattern is not None or f.n <= SMALL, "for any matrix", 1),
    Way("cg", "multigrid", lambda f: f.is_known and f.n > DENSE and f.maybe_definite, DEFINITE, 25),
    Way("gmres", "ilu", lambda f: True, "for any matrix", 30),
)
# Of a singular matrix, or if all others fail.
SHORTEST = Way("minres", None, lambda f: f.symmetric, "least squares, symmetric")
AT_LAST = (
    Way("singular values", None, lambda f: f.n <= DENSE and f.is_plain, "least squares, by the host"),
    SHORTEST,
    Way("lsmr", None, lambda f: True, "least squares"),
)
GIVEN = "the given M"
WITH_GIVEN_M = (
    Way("cg", GIVEN, lambda f: f.maybe_definite, DEFINITE),
    Way("minres", GIVEN, lambda f: f.symmetric, "symmetric"),
    Way("gmres", GIVEN, lambda f: True, "for any matrix"),
    Way("direct", "factors", lambda f: f.tries, "for any matrix"),
)
PROBED = "symmetric as a probe shows"
ON_MANY_DEVICES = (
    Way("cg", "block_jacobi", lambda f: f.maybe_definite, f"{PROBED}, positive diagonal", 120),
    Way(
        "cg", "multigrid", lambda f: f.is_known and f.n > DENSE and f.maybe_definite, f"{PROBED}, positive diagonal", 25
    ),
    Way("minres", None, lambda f: f.symmetric, PROBED, 1000),
    Way("gmres", "block_jacobi", lambda f: True, "for any matrix over several devices", 1000),
)
OF_A_FUNCTION = (Way("gmres", None, lambda f: True, "of A only products are known"),)
# Preconditioners that suit a method which the caller names.
SUITED = {
    "cg": ("jacobi", "multigrid"),
    "fcg": ("jacobi", "multigrid"),
    "minres": ("|jacobi|",),
    **dict.fromkeys(("gmres", "bicgstab", "idrs"), ("ilu", None)),
    "direct": ("factors",),
}
# The methods that do not suit the matrix, by the status that shows it.
UNSUITED = {Status.NOT_POSITIVE_DEFINITE: ("cg", "fcg"), Status.NOT_SYMMETRIC: ("cg", "fcg", "minres")}


def without_null_space(ways: Sequence[Way], facts: Facts, symmetric: bool) -> list[Way]:
    """The ways that take the null spaces of A: by products; if A is not `symmetric`, by those for any matrix.

    Inside jit, where no failure is seen, they do without incomplete factors, which may have a pivot of 0.
    """
    found = [way for way in ways if way.method in METHODS]
    found = [way for way in found if symmetric or not METHODS[way.method](facts.n).self_adjoint]
    return [way._replace(M=None) if way.M == "ilu" and not facts.tries else way for way in found]


# ------------------------------------------------------------------------------------------------------- one of them


def made(trial: Trial, facts: Facts) -> Any:
    """The preconditioner, or the factors. Errors as of its maker."""
    name, A = trial.way.M, facts.A
    if name is None:
        return None
    if name == "factors" and facts.n > SMALL and trial.set_up > HOURS:
        raise ValueError(
            f"the factors may take {float(f'{trial.set_up / 3600:.1g}'):g} hours; direct(A, b) tries all the same"
        )
    if name == "factors":
        return prepared(A, facts.tries)
    # Makers themselves read the arrays of shards: `shard_map` is refused in that context.
    with contextlib.nullcontext() if facts.kind == "sharded" else concrete(A), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a multigrid cycle that diverges: the trial shows it
        if name.strip("|") == "jacobi" and facts.kind != "sharded" and "diagonal" in vars(facts):
            return of_diagonal(facts.diagonal if name == "jacobi" else abs(facts.diagonal), A.dtype)
        return MAKERS[name](A)


def run(
    trial: Trial, queue: list[Trial], M: Any, A: Any, b: Any, x0: Any, settings: Settings, facts: Facts
) -> Solution:
    """The solution by one way; left early if another in the queue is predicted to end sooner."""
    way, options = trial.way, dataclasses.replace(settings, M=M)
    if way.M == "factors":
        return by_factors(A, b, x0, options)
    if way.method == "singular values":
        check_finite(facts, b, x0)  # LAPACK raises an error of its own
        return by_singular_values(facts.host, b, facts.dtype(b), options)
    if facts.tries:
        options = dataclasses.replace(options, maxiter=most(trial, facts, settings.maxiter))
    if way.method == "lsmr":
        return by_lsmr(A, b, x0, options)
    if facts.tries and trial.step > 0 and way.M not in (None, GIVEN):
        others = [other.rank for other in queue if other.way.has_set_up or other.taken]
        patience = 2 if way.has_set_up else 1  # which is paid
        budget = max(patience * min(others) / trial.step, 1) if others else np.inf
        options = dataclasses.replace(options, budget=budget)
    if x0 is None and facts.tries and way.M in ("multigrid", "ilu"):
        x0 = jnp.zeros_like(b)  # the program is that which goes on from another x
    sol = by_method(METHODS[way.method](facts.n), A, b, x0, options)
    if way[:2] != SHORTEST[:2] or is_function(A):  # which no program takes as an argument
        return sol
    return dataclasses.replace(sol, x=of_least_squares(A, b, sol.x, sol.code))


def most(trial: Trial, facts: Facts, maxiter: Any) -> Any:
    """Iterations: the caller's limit, or a minute, and at most 10·n."""
    if maxiter is not None or not trial.step > 0:
        return maxiter
    return int(min(10 * facts.n, max(LONGEST / trial.step, 1000)))
