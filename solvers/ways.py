"""Ways to solve a system: the table, what each costs, and the loop over trials, for `solve`.

A way is a method with a preconditioner, the matrices that it is meant for, and the steps that it usually takes. `cost`
estimates its seconds from bytes, kernels and the factors' entries, by what `DEVICES` has of a device. Outside jit the
ways are tried in the order of their estimates. A way goes on as long as its rate of fall predicts fewer further steps
than another set-up costs (`pace.paced`); where the others fail, it goes on from where it was. Inside jit, where no
failure is seen, one way is taken.
"""

import contextlib
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
from solvers.core.solve import solve as by_method
from solvers.direct import direct, prepared, solved
from solvers.facts import Facts
from solvers.fcg import METHOD as FCG
from solvers.gmres import method as gmres
from solvers.idrs import method as idrs
from solvers.minres import METHOD as MINRES
from solvers.shortest import by_lsmr, by_singular_values
from solvers.solution import Solution, SolverError, Status, Told

RESTART = 30  # of gmres
METHODS: dict[str, Callable[[int], Any]] = {
    **{"cg": lambda n: CG, "fcg": lambda n: FCG, "minres": lambda n: MINRES, "bicgstab": lambda n: BICGSTAB},
    **{"gmres": lambda n: gmres(min(RESTART, n)), "idrs": lambda n: idrs(min(4, n))},
}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "jacobi": precond.jacobi,
    "|jacobi|": lambda A: precond.jacobi(abs(A)),
    "block_jacobi": lambda A: precond.block_jacobi(A, BLOCK),
    "multigrid": precond.multigrid,
    "ilu": precond.ilu,
}
BLOCK = 16  # rows of a block of `block_jacobi`
SMALL = 3_000  # unknowns: even full factors take a second or two
DENSE = 500  # unknowns of a singular matrix whose singular values the host computes, in half a second
DEARER = 4  # times what a way took until it was left: it goes on before a way that costs more
LONGEST = 60  # seconds of a method without a limit
PROGRAM = 0.05  # seconds that count for a program; it compiles in a second, and serves many solves
HOURS = 3600  # seconds of a factorization that only `direct` begins


# ------------------------------------------------------------------------------------------------------ what it costs


class Device(NamedTuple):
    """What is measured of a kind of device; on an Intel Xeon of 2 cores, and an H200.

    Attributes:
      bandwidth: bytes a second that products and passes over vectors move.
      kernel: seconds that a kernel takes at least.
      call: seconds from a call to a compiled solve, and back.
      multigrid: seconds of multigrid's set-up, and more of them for an unknown.
      level: seconds of a level of a triangular solve.
    """

    bandwidth: float
    kernel: float
    call: float
    multigrid: tuple[float, float]
    level: float


DEVICES = {
    "cpu": Device(1.2e10, 2e-6, 4e-4, (5e-3, 1e-5), 0.0),
    "gpu": Device(2.5e12, 4e-6, 1e-3, (0.3, 1e-6), 1e-5),
}
# Of the host: multiplications a second of SuperLU, and seconds for an entry of its factors and of A. Incomplete factors
# take as long as twice the whole ones, which drop nothing, and at most so long for an entry of A; GUESS if the whole
# ones are not counted.
FLOPS, OF_FACTOR, OF_ENTRY = 3.5e9, 3e-8, 1e-7
OF_ILU, MOST_OF_ILU, GUESS = 2, 5e-6, 2.5e-6
COUNT = 1e-6  # seconds for an entry of A to count those of its factors
SOLVED = 2e-9  # seconds for an entry of SuperLU's factors in a solve
OF_DENSE = 6e-9  # seconds of the singular values, times n³
FILL = 6  # entries of incomplete factors over those of A, usually
# A step's products, the vectors that it moves, and its kernels; and those of a preconditioner.
STEP = {"cg": (1, 11, 5), "fcg": (1, 14, 8), "minres": (1, 20, 10), "bicgstab": (2, 22, 12), "gmres": (1, 60, 20)}
STEP |= {"idrs": (1, 30, 20), "lsmr": (2, 24, 60)}
APPLIED = {"multigrid": (8, 30, 100), "ilu": (0, 4, 10), "jacobi": (0, 2, 0), "|jacobi|": (0, 2, 0)}


class Cost(NamedTuple):
    """Seconds.

    Attributes:
      is_floor: whether only a bound from below is known, of factors that are not counted yet.
    """

    set_up: float
    step: float
    is_floor: bool = False


def cost(way: "Way", facts: Facts, counts: bool = True) -> Cost:
    """The estimate; NaN for functions, and matrices over several devices.

    Args:
      counts: whether the entries of factors are counted, which takes as long as to order their columns.
    """
    device, A = DEVICES.get(facts.kind), facts.A
    if device is None:
        return Cost(math.nan, math.nan)
    if way.M == "factors" and not counts:
        return Cost(COUNT * A.nnz, 0.0, True)
    if way.M == "factors":
        return Cost(device.call + _of_factors(facts), facts.factors[0] * SOLVED * facts.k)
    if way.method == "singular values":
        return Cost(OF_DENSE * facts.n**3, 0)
    uses = 2 if way.method == "bicgstab" else 1
    more = APPLIED.get(way.M or "", (0, 0, 0))
    products, vectors, kernels = (a + uses * b for a, b in zip(STEP[way.method], more, strict=True))
    vector = A.dtype.itemsize * facts.n * facts.k
    step = (products * (A.nbytes + 2 * vector) + vectors * vector) / device.bandwidth + kernels * device.kernel
    set_up = device.call
    if way.M == "multigrid":
        set_up += device.multigrid[0] + device.multigrid[1] * facts.n
    elif way.M == "ilu":
        set_up += min(OF_ILU * _of_factors(facts), MOST_OF_ILU * A.nnz) if counts else GUESS * A.nnz
        step += 12 * FILL * A.nnz / device.bandwidth + 2 * facts.n**0.5 * device.level
    return Cost(set_up, step)


def _of_factors(facts: Facts) -> float:
    """Seconds of a factorization."""
    entries, work = facts.factors
    complex_ = 4 if jnp.issubdtype(facts.A.dtype, jnp.complexfloating) else 1
    return complex_ * work / FLOPS + min(complex_, 2) * entries * OF_FACTOR + facts.A.nnz * OF_ENTRY


# ---------------------------------------------------------------------------------------------------------- the rule


class Way(NamedTuple):
    """A method and its preconditioner.

    Attributes:
      method, M: names, of METHODS and MAKERS.
      when, why: whether it is meant for a matrix, and that in words.
      steps: that it usually takes.
    """

    method: str
    M: str | None
    when: Callable[[Facts], bool]
    why: str
    steps: int = 100

    @property
    def name(self) -> str:
        return f"{self.method} with {self.M}" if self.M and self.method != "direct" else self.method

    @property
    def has_set_up(self) -> bool:
        return self.M in ("factors", "multigrid", "ilu")


def _hinted(f: Facts, number: int) -> bool:
    """Whether a try is allowed: another way may follow, or the caller vouches for the matrix."""
    return f.tries or any(f.hints[number:])


def _has_levels(f: Facts) -> bool:
    """Whether multigrid's set-up can look at A, and does not take all of it as its coarsest matrix."""
    return f.look is not None and f.n > DENSE


WAYS = (
    Way("cg", "jacobi", lambda f: _hinted(f, 1) and f.maybe_definite, "symmetric, positive diagonal; no set-up", 150),
    Way("minres", "|jacobi|", lambda f: _hinted(f, 0) and f.symmetric, "symmetric; no set-up", 200),
    Way("bicgstab", "jacobi", lambda f: f.tries and f.full_diagonal and not f.symmetric, "no set-up", 60),
    Way("direct", "factors", lambda f: f.pattern is not None or f.n <= SMALL, "for any matrix", 1),
    Way("cg", "multigrid", lambda f: _has_levels(f) and f.maybe_definite, "symmetric, positive diagonal", 25),
    Way("gmres", "ilu", lambda f: True, "for any matrix", 30),
)
# Of a singular matrix, or where all others fail.
AT_LAST = (
    Way("singular values", None, lambda f: f.n <= DENSE and f.is_plain, "least squares, by the host"),
    Way("minres", None, lambda f: f.symmetric, "least squares, symmetric"),
    Way("lsmr", None, lambda f: True, "least squares"),
)
GIVEN = "the given M"
WITH_GIVEN_M = (
    Way("cg", GIVEN, lambda f: f.maybe_definite, "symmetric, positive diagonal"),
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
# For a method that the caller names: preconditioners that suit it.
SUITED = {
    "cg": ("jacobi", "multigrid"),
    "fcg": ("jacobi", "multigrid"),
    "minres": ("|jacobi|",),
    **dict.fromkeys(("gmres", "bicgstab", "idrs"), ("ilu", None)),
    "direct": ("factors",),
}
# The methods of which a status shows that they do not suit the matrix.
UNSUITED = {Status.NOT_POSITIVE_DEFINITE: ("cg", "fcg"), Status.NOT_SYMMETRIC: ("cg", "fcg", "minres")}


# ------------------------------------------------------------------------------------------------------------ trials


class Trial(NamedTuple):
    """A way and its estimate.

    Attributes:
      steps: after which it was left for another way, if it was.
    """

    way: Way
    cost: Cost
    steps: int = 0

    @property
    def seconds(self) -> float:
        """Those that it usually takes, or took until it was left."""
        return self.cost.set_up + (self.steps or self.way.steps) * self.cost.step

    @property
    def rank(self) -> float:
        """By which ways are tried: of two quick ones first that which compiles nothing."""
        return self.seconds + PROGRAM * (self.way.method in METHODS)

    def __str__(self) -> str:
        estimate = "" if math.isnan(self.seconds) else f"; about {self.seconds:.1g} s"
        return f"{self.way.name} ({self.way.why}{estimate})"


def _trials(facts: Facts, ways: Sequence[Way]) -> list[Trial]:
    """The ways that suit the matrix, in the order in which they are tried."""
    if facts.memory is not None and facts.memory.order is not None:
        return [
            trial for trial in facts.memory.order if facts.is_plain or trial.way.method in (*METHODS, "direct", "lsmr")
        ]
    counts = ways is not WAYS or not facts.tries
    found = [Trial(way, cost(way, facts, counts)) for way in ways if way.when(facts)]
    return _sorted(found, facts) if ways is WAYS else found


def _sorted(trials: list[Trial], facts: Facts) -> list[Trial]:
    """In the order of their estimates; the entries of factors are counted if these might come first."""
    trials = sorted(trials, key=lambda trial: trial.rank)
    if trials and trials[0].cost.is_floor:
        of_factors = ("factors", "ilu")
        again = [t._replace(cost=cost(t.way, facts)) if t.way.M in of_factors else t for t in trials]
        return _sorted(again, facts)
    return trials


def first_success(A: Any, b: Any, x0: Any, settings: Any, facts: Facts, ways: Sequence[Way]) -> Solution:
    """The solution of the first way that succeeds, else the best one; inside jit that of the first."""
    queue, last = _trials(facts, ways), [way for way in AT_LAST if ways is WAYS and facts.tries]
    left: list[Trial] = []
    failed: list[Trial] = []
    tried: list[str] = []
    best: Solution | None = None
    least, is_singular, refused = np.inf, False, ValueError("no method fits")
    while queue or left or last:
        queue = _sorted(queue, facts) if tried and queue and queue[0].cost.is_floor else queue
        if left and (not queue or queue[0].seconds > DEARER * left[0].seconds):
            queue, left = left + queue, []
        if not queue:
            queue, last = [Trial(way, cost(way, facts)) for way in last if way.when(facts)], []
            continue
        trial = queue.pop(0)
        sol = error = None
        known = None if facts.memory is None else facts.memory.made(trial.way.M)
        try:
            M = settings["M"] if trial.way.M == GIVEN else made(trial.way.M, facts) if known is None else known
        except (ValueError, MemoryError, SolverError) as why:
            error = refused = why
        if error is None:
            start = x0
            if best is not None and (trial.steps or trial.way.M in ("multigrid", "ilu")):
                start = jax.lax.stop_gradient(best.x)
            try:
                sol = run(trial, queue, M, A, b, start, settings, facts)
            except SolverError as why:  # the factors overflow the dtype
                error = refused = why
        if sol is None:
            status = getattr(error, "status", None)
            tried.append(f"{trial}: refused, {status or str(error).partition(';')[0]}")
            failed.append(trial)
            if status is Status.SINGULAR and trial.way.M == "factors":
                is_singular, queue, left = True, [], []
            continue
        if not facts.tries:
            return _telling(sol, trial.way.name, *tried, str(trial))
        code = np.asarray(sol.code)  # on the host: `success` would take 30 µs
        status = Status(int(np.max(code)))
        steps = int(np.max(np.asarray(sol.n_iterations))) if status is Status.MAXITER else 0
        is_left = 0 < steps < _most(trial, facts) and settings["maxiter"] is None
        tried.append(f"{trial}: {f'left after {steps} steps' if is_left else status}")
        sol = _telling(sol, trial.way.name, *tried)
        if np.all((code == Status.CONVERGED) | (code == Status.ROUNDED) | (code == Status.LEAST_SQUARES)):
            if facts.memory is not None:
                others = (other for other in (*queue, *failed) if other.way != trial.way)
                facts.memory.keep(
                    (trial._replace(steps=0), *others),
                    trial.way.M,
                    None if M is known and facts.memory.has_values else M,
                )
            return sol
        norm = np.max(np.asarray(arguments.still(sol.residual_norm)), initial=0)
        if best is None or norm < least:
            best, least = sol, norm
        failed.append(trial)
        left += [trial._replace(steps=trial.steps + steps)] if is_left else []
        queue = [other for other in queue if other.way.method not in UNSUITED.get(status, ())]
        if is_left:
            queue = [other for other in queue if other.way.has_set_up]
        if status is Status.SINGULAR:
            is_singular, queue, left = True, [], []
    if best is None:
        if not is_singular:
            raise refused
        best = _telling(direct(facts.A, b), "direct")
    code = jnp.where(_failed(best) & is_singular, jnp.int32(Status.SINGULAR), best.code)
    return _telling(dataclasses.replace(best, code=code), best.method, *tried)


def _failed(sol: Solution) -> Any:
    return jnp.logical_not(sol.success) & (sol.code != Status.LEAST_SQUARES)


def run(trial: Trial, queue: list[Trial], M: Any, A: Any, b: Any, x0: Any, settings: Any, facts: Facts) -> Solution:
    """The solution by one way."""
    way, step = trial.way, trial.cost.step
    given = settings | {"M": M}
    if way.M == "factors":
        return solved(A, b, x0, given)
    if way.method == "singular values":
        return by_singular_values(facts.host, b, facts.dtype(b), given)
    if facts.tries and settings["maxiter"] is None and step > 0:
        given["maxiter"] = _most(trial, facts)
    if way.method == "lsmr":
        return by_lsmr(A, b, x0, given)
    if facts.tries and step > 0 and way.M not in (None, GIVEN):
        others = [other.seconds for other in queue if other.way.has_set_up and not other.cost.is_floor]
        given["budget"] = max(min(others) / step, 1) if others else np.inf
    if x0 is None and facts.tries and way.M in ("multigrid", "ilu"):
        x0 = jnp.zeros_like(b)  # the program is that which goes on from another x
    return by_method(METHODS[way.method](facts.n), A, b, x0, given)


def _most(trial: Trial, facts: Facts) -> int:
    """Iterations without the caller's limit."""
    return int(min(10 * facts.n, max(LONGEST / max(trial.cost.step, 1e-9), 1000)))


def _telling(sol: Solution, *words: str) -> Solution:
    return dataclasses.replace(sol, _told=Told(words))


def made(name: str | None, facts: Facts) -> Any:
    """The preconditioner. Errors as of its maker."""
    if name is None:
        return None
    A = facts.A
    if name == "factors":
        if facts.n > SMALL and facts.is_known and (seconds := facts.factors[1] / FLOPS) > HOURS:
            text = f"the factors may take {seconds / 3600:.1g} hours"
            raise ValueError(f"{text}; direct(A, b) tries all the same")
        M = prepared(A, facts.tries)
    else:
        with concrete() if facts.is_known else contextlib.nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a multigrid cycle that diverges: the trial shows it
            M = MAKERS[name](A)
    return M
