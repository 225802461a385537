"""Ways to solve a system: the table, and the loop over trials, for `solve`.

A way is a method with a preconditioner. Outside jit the ways are tried in the order of their estimates (`estimates`). A
way goes on as long as its rate of fall predicts fewer further steps than another set-up costs (`iterate.paced`); if the
others fail, it goes on from its last x. Inside jit, where no failure is seen, one way is taken.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._tracing import concrete
from solvers import precond
from solvers.bicgstab import METHOD as BICGSTAB
from solvers.cg import METHOD as CG
from solvers.core import arguments
from solvers.core.operators import is_function
from solvers.core.solve import Settings, by_method
from solvers.direct import by_factors, prepared, unsolved
from solvers.estimates import BLOCK, Trial, Way, estimate
from solvers.facts import Facts, check_finite
from solvers.fcg import METHOD as FCG
from solvers.gmres import method as gmres
from solvers.idrs import method as idrs
from solvers.minres import METHOD as MINRES
from solvers.precond.jacobi import of_diagonal
from solvers.shortest import by_lsmr, by_singular_values, in_words, of_least_squares, shortened
from solvers.solution import Solution, SolverError, Status, Told

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


# ------------------------------------------------------------------------------------------------------------ trials


def _next(queue: list[Trial], facts: Facts, by_cost: bool) -> Trial:
    """Takes a trial out of the queue, the cheapest or the first.

    Only if it is by factors are their entries counted, roughly at first, which may show that another is cheaper.
    """
    trial = min(queue, key=lambda trial: trial.rank) if by_cost else queue[0]
    if trial.is_floor:
        is_rough = "least_work" not in vars(facts) and facts.least_work > 0
        counts = trial.way.M == "factors" and not (by_cost and is_rough)
        for k, other in enumerate(queue):
            if not other.has_solved:
                queue[k] = estimate(other.way, facts, counts)._replace(taken=other.taken)
        return _next(queue, facts, by_cost)
    queue.remove(trial)
    return trial


def first_success(
    A: Any, b: Any, x0: Any, settings: Settings, facts: Facts, ways: Sequence[Way], memory: Any = None
) -> Solution:
    """The solution of the first way that succeeds, else the best one; inside jit that of the first.

    NotFinite: a way met a NaN or an infinity, and A, b or x0 has one; `solve` solves for the other columns.

    Args:
      memory: a `Memory` of earlier solves, which keeps what succeeds; None: nothing is remembered.
    """
    stage, stages = WAYS, [ways, AT_LAST] if ways is WAYS and facts.tries else [ways]
    limits = settings.rtol, settings.atol
    if ways is WAYS and facts.tries and facts.lost(b, *limits) is not None:
        stages = [AT_LAST]
    queue = [] if memory is None else [t for t in memory.order if facts.is_plain or t.way.method != "singular values"]
    if ways is WAYS and memory is not None and not memory.has_values:
        queue = [trial for trial in queue if trial.way.M]  # other values need not be singular
    names: set[str] = set()
    tried: list[str] = []
    best: Solution | None = None
    least, is_singular, factored = np.inf, False, None  # by which other b may be solved
    slow: list[Trial] = []  # those without set-up that promise no more than one that was left
    began, announced = time.perf_counter(), SILENT / 2
    refusal: Exception = ValueError("no method fits")
    rest = settings.maxiter
    while queue or stages:
        if not queue:
            stage = stages.pop(0)
            queue = [estimate(way, facts) for way in stage if way.name not in names and way.when(facts)]
            continue
        trial = _next(queue, facts, stage in (WAYS, ON_MANY_DEVICES))
        way, start, sol, M = trial.way, x0, None, None
        names.add(way.name)
        spent = time.perf_counter() - began
        if facts.tries and spent + trial.seconds > 2 * announced:
            announced = spent + trial.seconds
            text = f"solve: after {spent:.0f} s comes {trial}; interrupt it if that is long, or give a preconditioner M"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        if best is not None and (trial.taken or way.M in ("multigrid", "ilu")):
            start = jax.lax.stop_gradient(best.x)
        try:
            M = settings.M if way.M == GIVEN else memory and memory.made(way.M)
            M = made(trial, facts) if M is None else M
        except (ValueError, MemoryError, SolverError) as error:
            refusal = error
        else:
            try:
                sol = run(trial, queue, M, A, b, start, dataclasses.replace(settings, maxiter=rest), facts)
            except SolverError as error:  # the factors overflow the dtype
                refusal = error
        if sol is None:
            status = refusal.status if isinstance(refusal, SolverError) else None
            check_finite(facts, b, x0)
            tried.append(f"{trial}: refused, {status or str(refusal).partition(';')[0]}")
            if status is Status.SINGULAR and way.M == "factors":
                is_singular, queue, stages = True, [], stages[-1:]
            continue
        if not facts.tries:
            return _telling(sol, way.name, *tried, str(trial))
        code = np.asarray(sol.code)  # on the host: `success` would take 30 µs
        if np.any(code == Status.NON_FINITE):
            check_finite(facts, b, x0)
        status, steps = Status(int(np.max(code))), int(np.max(np.asarray(sol.n_iterations)))
        is_left = status is Status.MAXITER and 0 < steps < (_most(trial, facts, rest) or 0)
        tried.append(f"{trial}: {f'left after {steps} steps' if is_left else status}")
        sol = _telling(sol, way.name, *tried)
        solved = (code == Status.CONVERGED) | (code == Status.ROUNDED) | (code == Status.LEAST_SQUARES)
        if np.all(solved):
            again = trial._replace(taken=0, has_solved=True, way=way._replace(steps=trial.taken + steps))
            others = [o for o in queue if stage in (WAYS, ON_MANY_DEVICES) and o.may_follow(again)]
            is_least = np.any(code == Status.LEAST_SQUARES)  # which displaces nothing that solves other b
            if factored is not None and (is_singular or is_least):
                again, others, M = factored[0], [], factored[1]
            if memory is not None and (memory.found is None or again.way.M or not is_least):
                size = memory.keep((again, *others), M)
                if size > TOLD:
                    tried[-1] += f"; {size / 1e9:.1f} GB of {way.M} are kept (remember=False keeps none)"
                    sol = _telling(sol, way.name, *tried)
            if ways is not WAYS or x0 is not None:
                return sol
            space = getattr(getattr(M, "factors", None), "null_space", None)
            return shortened(sol, b, facts.host, space, *limits, is_singular)
        if way.M == "factors":
            factored = trial, M
        if way.method in ("direct", "singular values") and np.all(solved | (code == Status.OUT_OF_RANGE)):
            return sol  # no way finds another x
        norm = np.max(np.asarray(arguments.still(sol.residual_norm)), initial=0)
        if best is None or norm < least:
            best, least = sol, norm
        if rest is not None:
            rest = max(int(rest) - steps, 0)
            if rest == 0:
                break
        if is_left:
            if stage is not ON_MANY_DEVICES:
                slow += [other for other in queue if not (other.way.has_set_up or other.taken)]
                queue = [other for other in queue if other.way.has_set_up or other.taken]
            queue.append(trial._replace(taken=trial.taken + steps))
        elif not trial.way.has_set_up:
            queue, slow = queue + slow, []
        queue = [other for other in queue if other.way.method not in UNSUITED.get(status, ())]
        if way.name == "minres with |jacobi|" and status is Status.BREAKDOWN:  # by what A takes to 0, as it seems
            queue.append(estimate(SHORTEST, facts))
        if status is Status.SINGULAR:
            is_singular, queue, stages = True, [], stages[-1:]
    if best is None:
        if not is_singular:
            raise refusal
        without_M = dataclasses.replace(settings, M=None)
        best = _telling(by_method(unsolved(Status.SINGULAR), A, b, None, without_M), "direct")
    is_failure = jnp.logical_not(best.success) & (best.code != Status.LEAST_SQUARES)
    code = jnp.where(is_failure & is_singular, jnp.int32(Status.SINGULAR), best.code)
    words = in_words(facts.host, None, True) if is_singular else ()
    return _telling(dataclasses.replace(best, code=code), best.method, *tried, *words)


def _telling(sol: Solution, *words: str) -> Solution:
    return dataclasses.replace(sol, _told=Told(words))


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
    with concrete(A), warnings.catch_warnings():
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
        options = dataclasses.replace(options, maxiter=_most(trial, facts, settings.maxiter))
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


def _most(trial: Trial, facts: Facts, maxiter: Any) -> Any:
    """Iterations: the caller's limit, or a minute, and at most 10·n."""
    if maxiter is not None or not trial.step > 0:
        return maxiter
    return int(min(10 * facts.n, max(LONGEST / trial.step, 1000)))
