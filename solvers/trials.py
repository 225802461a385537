"""The search of `solve` for a way that solves a system.

Outside jit the ways are tried in the order of their estimates (`estimates`). A way goes on as long as its rate of fall
predicts fewer further steps than another set-up costs (`iterate.paced`); if the others fail, it goes on from its last
x. Inside jit, where no failure is seen, one way is taken.
"""

import dataclasses
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from solvers.core import arguments
from solvers.core.solve import Settings, by_method
from solvers.direct import unsolved
from solvers.estimates import Trial, Way, estimate
from solvers.facts import Facts, Memory, check_finite
from solvers.shortest import in_words, shortened
from solvers.solution import Solution, SolverError, Status, Told
from solvers.ways import AT_LAST, GIVEN, ON_MANY_DEVICES, SHORTEST, UNSUITED, WAYS, made, most, run

SILENT = 10  # seconds that no warning announces
TOLD = 1e8  # bytes that are kept, of which `tried` tells


def first_success(
    A: Any, b: Any, x0: Any, settings: Settings, facts: Facts, ways: Sequence[Way], memory: Memory | None = None
) -> Solution:
    """The solution of the first way that succeeds, else the best one; inside jit that of the first.

    NotFinite: a way met a NaN or an infinity, and A, b or x0 has one; `solve` solves for the other columns.

    Args:
      memory: of earlier solves, which keeps what succeeds; None: nothing is remembered.
    """
    search = Search(A, b, x0, settings, facts, ways, memory)
    for trial in search:
        try:
            M = search.made(trial)
        except (ValueError, MemoryError, SolverError) as error:
            search.refused(trial, error)
            continue
        try:
            sol = search.run(trial, M)
        except SolverError as error:  # the factors overflow the dtype
            search.refused(trial, error)
            continue
        if not facts.tries:
            return search.telling(sol, trial, str(trial))
        shown = search.shown(trial, sol)
        sol = search.telling(sol, trial, f"{trial}: {shown}")
        if shown.solves:
            return search.succeeded(trial, M, sol, shown)
        if shown.is_final:
            return sol
        search.missed(trial, M, sol, shown)
    return search.failed()


class Shown(NamedTuple):
    """How a trial ended, in numbers of NumPy.

    Attributes:
      code: of each right-hand side.
      is_left: whether another way seemed to end sooner.
      is_final: whether no way finds another x.
    """

    code: np.ndarray
    status: Status
    steps: int
    solves: bool
    is_left: bool
    is_final: bool

    def __str__(self) -> str:
        return f"left after {self.steps} steps" if self.is_left else str(self.status)

    @property
    def is_least(self) -> bool:
        return bool(np.any(self.code == Status.LEAST_SQUARES))


class Search:
    """The trials of a solve that are left, and what those before have shown.

    Attributes:
      stage, queue, stages: a table of ways, the trials that are left of it, and the tables that follow.
      slow: trials without set-up that promise no more than one that was left.
      names: of the ways that were tried.
      tried: a line for each trial.
      best, least: the solution with the least residual, and the norm of that.
      factored: a trial and its factors, by which other b may be solved.
      is_singular: whether factors show that A is.
      rest: iterations that are left of the caller's; None: no limit.
    """

    def __init__(
        self, A: Any, b: Any, x0: Any, settings: Settings, facts: Facts, ways: Sequence[Way], memory: Memory | None
    ):
        self.A, self.b, self.x0, self.settings, self.facts, self.memory = A, b, x0, settings, facts, memory
        self.ways, self.stage = ways, WAYS
        self.stages = [ways, AT_LAST] if ways is WAYS and facts.tries else [ways]
        if ways is WAYS and facts.tries and facts.lost(b, settings.rtol, settings.atol) is not None:
            self.stages = [AT_LAST]
        self.queue: list[Trial] = []
        if memory is not None:
            self.queue = [t for t in memory.order if facts.is_plain or t.way.method != "singular values"]
            if ways is WAYS and not memory.has_values:
                self.queue = [trial for trial in self.queue if trial.way.M]  # other values need not be singular
        self.slow: list[Trial] = []
        self.names: set[str] = set()
        self.tried: list[str] = []
        self.best: Solution | None = None
        self.least, self.rest = np.inf, settings.maxiter
        self.factored: tuple[Trial, Any] | None = None
        self.is_singular = False
        self.refusal: Exception = ValueError("no method fits")

    def __iter__(self) -> Iterator[Trial]:
        began, announced = time.perf_counter(), SILENT / 2
        while self.queue or self.stages:
            if not self.queue:
                self.stage = self.stages.pop(0)
                ways = [way for way in self.stage if way.name not in self.names and way.when(self.facts)]
                self.queue = [estimate(way, self.facts) for way in ways]
                continue
            trial = self._next()
            self.names.add(trial.way.name)
            spent = time.perf_counter() - began
            if self.facts.tries and spent + trial.seconds > 2 * announced:
                announced = spent + trial.seconds
                cure = "interrupt it if that is long, or give a preconditioner M"
                text = f"solve: after {spent:.0f} s comes {trial}; {cure}"
                warnings.warn(text, RuntimeWarning, stacklevel=5)
            yield trial

    @property
    def by_cost(self) -> bool:
        return self.stage in (WAYS, ON_MANY_DEVICES)

    def _next(self) -> Trial:
        """Takes a trial out of the queue, the cheapest or the first.

        Only if it is by factors are their entries counted, roughly at first, which may show that another is cheaper.
        """
        trial = min(self.queue, key=lambda trial: trial.rank) if self.by_cost else self.queue[0]
        if trial.is_floor:
            is_rough = "least_work" not in vars(self.facts) and self.facts.least_work > 0
            counts = trial.way.M == "factors" and not (self.by_cost and is_rough)
            for k, other in enumerate(self.queue):
                if not other.has_solved:
                    self.queue[k] = estimate(other.way, self.facts, counts)._replace(taken=other.taken)
            return self._next()
        self.queue.remove(trial)
        return trial

    def made(self, trial: Trial) -> Any:
        """The preconditioner, or the factors: the caller's, those of an earlier solve, or new ones."""
        M = self.settings.M if trial.way.M == GIVEN else self.memory and self.memory.made(trial.way.M)
        return made(trial, self.facts) if M is None else M

    def run(self, trial: Trial, M: Any) -> Solution:
        start = self.x0
        if self.best is not None and (trial.taken or trial.way.M in ("multigrid", "ilu")):
            start = jax.lax.stop_gradient(self.best.x)
        settings = dataclasses.replace(self.settings, maxiter=self.rest)
        return run(trial, self.queue, M, self.A, self.b, start, settings, self.facts)

    def telling(self, sol: Solution, trial: Trial, line: str) -> Solution:
        """The solution of a trial, with a line on it after those on the trials before."""
        self.tried.append(line)
        return _telling(sol, trial.way.name, *self.tried)

    def shown(self, trial: Trial, sol: Solution) -> Shown:
        code = np.asarray(sol.code)  # on the host: `success` would take 30 µs
        if np.any(code == Status.NON_FINITE):
            check_finite(self.facts, self.b, self.x0)
        status, steps = Status(int(np.max(code))), int(np.max(np.asarray(sol.n_iterations)))
        solved = (code == Status.CONVERGED) | (code == Status.ROUNDED) | (code == Status.LEAST_SQUARES)
        is_left = status is Status.MAXITER and 0 < steps < (most(trial, self.facts, self.rest) or 0)
        is_exact = trial.way.method in ("direct", "singular values")
        is_final = is_exact and bool(np.all(solved | (code == Status.OUT_OF_RANGE)))
        return Shown(code, status, steps, bool(np.all(solved)), is_left, is_final)

    def refused(self, trial: Trial, error: Exception) -> None:
        """Notes that the trial made no solution."""
        check_finite(self.facts, self.b, self.x0)
        self.refusal, status = error, error.status if isinstance(error, SolverError) else None
        self.tried.append(f"{trial}: refused, {status or str(error).partition(';')[0]}")
        if status is Status.SINGULAR and trial.way.M == "factors":
            self._leave_all_but_last()

    def missed(self, trial: Trial, M: Any, sol: Solution, shown: Shown) -> None:
        """Notes what a trial has shown that did not solve the system, and which others it rules out."""
        way = trial.way
        if way.M == "factors":
            self.factored = trial, M
        norm = np.max(np.asarray(arguments.still(sol.residual_norm)), initial=0)
        if self.best is None or norm < self.least:
            self.best, self.least = sol, norm
        if self.rest is not None:
            self.rest = max(int(self.rest) - shown.steps, 0)
            if self.rest == 0:
                self.queue, self.stages = [], []
                return
        if shown.is_left:
            if self.stage is not ON_MANY_DEVICES:
                self.slow += [other for other in self.queue if not (other.way.has_set_up or other.taken)]
                self.queue = [other for other in self.queue if other.way.has_set_up or other.taken]
            self.queue.append(trial._replace(taken=trial.taken + shown.steps))
        elif not way.has_set_up:
            self.queue, self.slow = self.queue + self.slow, []
        self.queue = [other for other in self.queue if other.way.method not in UNSUITED.get(shown.status, ())]
        if way.name == "minres with |jacobi|" and shown.status is Status.BREAKDOWN:  # by what A takes to 0, as it seems
            self.queue.append(estimate(SHORTEST, self.facts))
        if shown.status is Status.SINGULAR:
            self._leave_all_but_last()

    def _leave_all_but_last(self) -> None:
        self.is_singular, self.queue, self.stages = True, [], self.stages[-1:]

    def succeeded(self, trial: Trial, M: Any, sol: Solution, shown: Shown) -> Solution:
        """The solution, shortened if A is singular, after it is remembered how it was found."""
        again = trial._replace(taken=0, has_solved=True, way=trial.way._replace(steps=trial.taken + shown.steps))
        others = [other for other in self.queue if self.by_cost and other.may_follow(again)]
        of_factors = M  # a least-squares solution displaces nothing that solves other b
        if self.factored is not None and (self.is_singular or shown.is_least):
            (again, of_factors), others = self.factored, []
        memory = self.memory
        if memory is not None and (memory.found is None or again.way.M or not shown.is_least):
            size = memory.keep((again, *others), of_factors)
            if size > TOLD:
                line = f"{self.tried.pop()}; {size / 1e9:.1f} GB of {again.way.M} are kept (remember=False keeps none)"
                sol = self.telling(sol, trial, line)
        if self.ways is not WAYS or self.x0 is not None:
            return sol
        space = getattr(getattr(of_factors, "factors", None), "null_space", None)
        limits = self.settings.rtol, self.settings.atol
        return shortened(sol, self.b, self.facts.host, space, *limits, self.is_singular)

    def failed(self) -> Solution:
        """The best solution, if none solves the system. The error of the last trial if there is none."""
        best = self.best
        if best is None:
            status = Status.SINGULAR if self.is_singular else getattr(self.refusal, "status", None)
            if status is None:
                raise self.refusal
            without_M = dataclasses.replace(self.settings, M=None)
            best = _telling(by_method(unsolved(status), self.A, self.b, None, without_M), "direct")
        is_failure = jnp.logical_not(best.success) & (best.code != Status.LEAST_SQUARES)
        code = jnp.where(is_failure & self.is_singular, jnp.int32(Status.SINGULAR), best.code)
        words = in_words(self.facts.host, None, True) if self.is_singular else ()
        return _telling(dataclasses.replace(best, code=code), best.method, *self.tried, *words)


def _telling(sol: Solution, *words: str) -> Solution:
    return dataclasses.replace(sol, _told=Told(words))
