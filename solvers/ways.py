"""Ways to solve a system: the table, what each costs, and the loop over trials, for `solve`.

A way is a method with a preconditioner. `estimate` gives its seconds, from bytes, kernels and the factors' entries, by
what `DEVICES` has of a device. Outside jit the ways are tried in the order of their estimates. A way goes on as long as
its rate of fall predicts fewer further steps than another set-up costs (`pace.paced`); if the others fail, it goes on
from its last x. Inside jit, where no failure is seen, one way is taken.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._tracing import concrete
from solvers import precond
from solvers.bicgstab import METHOD as BICGSTAB
from solvers.cg import METHOD as CG
from solvers.core import arguments
from solvers.core.operators import is_function
from solvers.core.settings import Settings
from solvers.core.solve import by_method
from solvers.direct import Prepared, by_factors, prepared, unsolved
from solvers.facts import Facts, check_finite
from solvers.fcg import METHOD as FCG
from solvers.gmres import method as gmres
from solvers.idrs import method as idrs
from solvers.minres import METHOD as MINRES
from solvers.precond.jacobi import of_diagonal
from solvers.shortest import by_lsmr, by_singular_values, of_least_squares, shortened
from solvers.solution import Solution, SolverError, Status, Told

RESTART = 30  # of gmres
METHODS: dict[str, Callable[[int], Any]] = {
    **{"cg": lambda n: CG, "fcg": lambda n: FCG, "minres": lambda n: MINRES, "bicgstab": lambda n: BICGSTAB},
    **{"gmres": lambda n: gmres(min(RESTART, n)), "idrs": lambda n: idrs(min(4, n))},
}
BLOCK = 16  # rows of a block of `block_jacobi`
MAKERS: dict[str, Callable[[Any], Any]] = {  # whose modules are imported at their first use
    "jacobi": lambda A: precond.jacobi(A),
    "|jacobi|": lambda A: precond.jacobi(abs(A) if hasattr(A, "__abs__") else A),  # which refuses a function
    "block_jacobi": lambda A: precond.block_jacobi(A, BLOCK),
    "multigrid": lambda A: precond.multigrid(A),
    "ilu": lambda A: precond.ilu(A),
}
SMALL = 3_000  # unknowns: even full factors take a second or two
DENSE = 500  # unknowns of a singular matrix whose singular values the host computes, in half a second
DEARER = 4  # times the seconds of a way that was left: it goes on before a way that costs more
LONGEST = 60  # seconds of a method without a limit, and of one that no warning announces
PROGRAM = 0.05  # seconds that count for a program; it compiles in a second, and serves many solves
HOURS = 3600  # seconds of a factorization that only `direct` begins


# ------------------------------------------------------------------------------------------------------ what it costs

# What is measured of an Intel Xeon of 2 cores, of an H200, and of the host. In seconds, but
#   bandwidth: bytes a second that products and passes over vectors move;
#   kernel, call: a kernel at least; from a call to a compiled solve and back;
#   multigrid, multigrid_row, level: its set-up, and what an unknown adds; a level of a triangular solve;
#   work: multiplications a second of SuperLU;
#   factor, entry, solve, count: for an entry of the factors and one of A, one of the factors in a solve, one of A when
#     the entries of its factors are counted;
#   ilu, most_ilu, guessed_ilu: incomplete factors take as long as `ilu` whole ones, which drop nothing, and at most
#     `most_ilu` for an entry of A, or `guessed_ilu` if the whole ones are not counted;
#   dense: the singular values, divided by n³.
DEVICES: dict[str, dict[str, float]] = {
    "cpu": dict(bandwidth=1.2e10, kernel=2e-6, call=4e-4, multigrid=5e-3, multigrid_row=1e-5, level=0.0),
    "gpu": dict(bandwidth=2.5e12, kernel=4e-6, call=1e-3, multigrid=0.3, multigrid_row=1e-6, level=1e-5),
    "host": dict(work=3.5e9, factor=3e-8, entry=1e-7, solve=2e-9, count=4e-7, dense=6e-9)
    | dict(ilu=2, most_ilu=5e-6, guessed_ilu=2.5e-6),
}
FILL = 6  # entries of incomplete factors over those of A, usually
# A step's products, the vectors that it moves, and its kernels; and those of a preconditioner.
STEP = {"cg": (1, 11, 5), "fcg": (1, 14, 8), "minres": (1, 20, 10), "bicgstab": (2, 22, 12), "gmres": (1, 60, 20)}
STEP |= {"idrs": (1, 30, 20), "lsmr": (2, 24, 60)}
APPLIED = {"multigrid": (8, 30, 100), "ilu": (0, 4, 10), "jacobi": (0, 2, 0), "|jacobi|": (0, 2, 0)}


class Way(NamedTuple):
    """A method and its preconditioner."""

    method: str  # of METHODS
    M: str | None  # of MAKERS
    when: Callable[[Facts], Any]  # whether it is meant for a matrix
    why: str  # that in words
    steps: int = 100  # that it usually takes

    @property
    def name(self) -> str:
        return f"{self.method} with {self.M}" if self.M and self.method != "direct" else self.method

    @property
    def has_set_up(self) -> bool:
        return self.M in ("factors", "multigrid", "ilu")


class Trial(NamedTuple):
    """A way and its estimate, in seconds; NaN for functions and matrices over several devices."""

    way: Way
    set_up: float
    step: float
    is_floor: bool = False  # only a bound from below is known, of factors whose entries are not counted yet
    taken: int = 0  # steps after which it was left for another way, if it was

    @property
    def seconds(self) -> float:
        """Those that it usually takes, or took until it was left."""
        return self.set_up + (self.taken or self.way.steps) * self.step

    @property
    def rank(self) -> float:
        """By which the next trial is chosen: of two quick ones first that which compiles nothing."""
        return DEARER * self.seconds if self.taken else self.seconds + PROGRAM * (self.way.method in METHODS)

    def __str__(self) -> str:
        about = "" if math.isnan(self.seconds) or self.is_floor else f"; about {float(f'{self.seconds:.1g}'):g} s"
        return f"{self.way.name} ({self.way.why}{about})"


def estimate(way: Way, facts: Facts, counts: bool = False) -> Trial:
    """The trial of a way; if it `counts` the entries of factors, that takes as long as to order their columns."""
    device, host, A = DEVICES.get(facts.kind), DEVICES["host"], facts.A
    if device is None:
        return Trial(way, math.nan, math.nan)
    is_counted = counts or "factors" in vars(facts)
    if way.M == "factors":
        if not is_counted:
            work = facts.least_work if "least_work" in vars(facts) else 0.0
            return Trial(way, host["count"] * A.nnz + work / host["work"], 0.0, True)
        return Trial(way, device["call"] + _of_factors(facts), facts.factors[0] * host["solve"] * facts.k)
    if way.method == "singular values":
        return Trial(way, host["dense"] * facts.n**3, 0.0)
    uses = 2 if way.method == "bicgstab" else 1
    more = APPLIED.get(way.M or "", (0, 0, 0))
    products, vectors, kernels = (a + uses * b for a, b in zip(STEP[way.method], more, strict=True))
    vector = A.dtype.itemsize * facts.n * facts.k
    step = (products * (A.nbytes + 2 * vector) + vectors * vector) / device["bandwidth"] + kernels * device["kernel"]
    set_up = device["call"]
    if way.M == "multigrid":
        set_up += device["multigrid"] + device["multigrid_row"] * facts.n
    elif way.M == "ilu":
        whole = host["ilu"] * _of_factors(facts) if is_counted else math.inf
        set_up += min(whole, host["most_ilu" if is_counted else "guessed_ilu"] * A.nnz)
        step += 12 * FILL * A.nnz / device["bandwidth"] + 2 * facts.n**0.5 * device["level"]
    return Trial(way, set_up, step)


def _of_factors(facts: Facts) -> float:
    """Seconds of a factorization."""
    (entries, work), host = facts.factors, DEVICES["host"]
    if jnp.issubdtype(facts.A.dtype, jnp.complexfloating):
        entries, work = 2 * entries, 4 * work
    return work / host["work"] + entries * host["factor"] + facts.A.nnz * host["entry"]


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
ON_MANY_DEVICES = (
    Way("cg", "block_jacobi", lambda f: f.maybe_definite, "symmetric as a probe shows, positive diagonal"),
    Way("minres", None, lambda f: f.symmetric, "symmetric as a probe shows"),
    Way("gmres", "block_jacobi", lambda f: True, "for any matrix over several devices"),
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
        counts = not by_cost or "least_work" in vars(facts) or not facts.least_work
        queue[:] = [estimate(other.way, facts, counts)._replace(taken=other.taken) for other in queue]
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
    queue = [] if memory is None else [t for t in memory.order if facts.is_plain or t.way.method != "singular values"]
    if ways is WAYS and memory is not None and not memory.has_values:
        queue = [trial for trial in queue if trial.way.M]  # other values need not be singular
    names: set[str] = set()
    tried: list[str] = []
    best: Solution | None = None
    least, is_singular, factored = np.inf, False, None  # by which other b may be solved
    refusal: Exception = ValueError("no method fits")
    rest = settings.maxiter
    while queue or stages:
        if not queue:
            stage = stages.pop(0)
            queue = [estimate(way, facts) for way in stage if way.name not in names and way.when(facts)]
            continue
        trial = _next(queue, facts, stage is WAYS)
        way, start, sol, M = trial.way, x0, None, None
        names.add(way.name)
        longest = max((trial, *queue), key=lambda other: other.set_up)
        if facts.tries and longest.set_up > LONGEST and (trial.taken or trial is longest):  # no other way is new
            text = f"solve: what is left is {longest}; interrupt it if that is too long, or give a preconditioner M"
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
            again = trial._replace(set_up=0.0, taken=0, way=way._replace(steps=trial.taken + steps))
            others = [other for other in queue if stage is WAYS and other.way.has_set_up]
            is_least = np.any(code == Status.LEAST_SQUARES)  # which displaces nothing that solves other b
            if factored is not None and (is_singular or is_least):
                again, others, M = factored[0], [], factored[1]
            if memory is not None and (memory.found is None or again.way.M or not is_least):
                memory.keep((again, *others), M)
            if ways is not WAYS or x0 is not None:
                return sol
            space = M.found.null_space if type(M) is Prepared else None
            return shortened(sol, b, facts.host, space, settings.rtol, settings.atol)
        if way.M == "factors":
            factored = trial._replace(set_up=0.0), M
        if way.method in ("direct", "singular values") and np.all(solved | (code == Status.OUT_OF_RANGE)):
            return sol  # no way finds another x
        norm = np.max(np.asarray(arguments.still(sol.residual_norm)), initial=0)
        if best is None or norm < least:
            best, least = sol, norm
        if rest is not None:
            rest = max(int(rest) - steps, 0)
            if rest == 0:
                break
        queue = [other for other in queue if other.way.method not in UNSUITED.get(status, ())]
        if is_left:
            queue = [other for other in queue if other.way.has_set_up or other.taken]
            queue.append(trial._replace(taken=trial.taken + steps))
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
    return _telling(dataclasses.replace(best, code=code), best.method, *tried)


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
        return prepared(A, facts.tries)[0]
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
        others = [other.seconds for other in queue if other.way.has_set_up]
        options = dataclasses.replace(options, budget=max(min(others) / trial.step, 1) if others else np.inf)
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
