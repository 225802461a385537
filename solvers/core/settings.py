"""Keywords that every solver of A·x = b takes: types, defaults, checks, and the decorator that adds them."""

import contextvars
import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt.kernels.backends import jax_versions
from solvers.core import arguments
from solvers.core.iterate import Options
from solvers.core.operators import UserFunction
from solvers.core.stopping import Limits
from solvers.solution import Solution

P = ParamSpec("P")
Result = TypeVar("Result", bound=Solution)

# Steps between two checks of the stopping rule on a GPU: a check waits some 30 µs for the host. On average half of the
# steps between two checks are wasted at the end, and in a refinement also before each true residual.
STEPS_PER_CHECK_DEFAULT = 10
STEPS_PER_CHECK_SMALL, SMALL = 40, 250_000  # unknowns, whose steps take less than 10 µs
NUMBERS = ("rtol", "atol", "maxiter", "history", "check_every")
RTOL = 1e-6  # if none is given


@dataclasses.dataclass(frozen=True)
class Adjoint:
    """Options for the linear systems of a derivative: A·dx = db − dA·x forward, Aᵀ·λ = x̄ backward.

    They start from zero, with the method and M of the solve. A derivative is NaN if its system neither meets the
    tolerance nor comes as close to it as rounding allows, or if the solve itself failed.

    Attributes:
      rtol: relative to the system's own right-hand side; None takes that of the solve. 0: down to rounding.
      maxiter: most iterations; None takes 10·n, or the maxiter of the solve if that is larger.
      truncated: accept the results of a solve, and of a derivative's system, that ended by maxiter or stagnation. The
        derivative takes the x returned for the solution; adjoint="unrolled" differentiates the steps instead.
      report: called as report(status, iterations, relative_residual) when such a system ends: a `Status`, an int and a
        float; arrays of [k] for k systems at once. If the solve itself failed, the status is that of the solve.

    Raises:
      ValueError, TypeError: at construction, for an invalid number or function.
    """

    rtol: float | None = None
    maxiter: int | None = None
    truncated: bool = False
    report: Callable[[Any, Any, Any], None] | None = None

    def __post_init__(self) -> None:
        if self.rtol is not None:
            object.__setattr__(self, "rtol", float(arguments.nonnegative(self.rtol, "rtol")))
        if self.maxiter is not None:
            object.__setattr__(self, "maxiter", arguments.int_at_least(self.maxiter, "maxiter", 0))
        if not isinstance(self.truncated, bool):
            raise TypeError(f"truncated must be True or False; got {self.truncated!r}")
        arguments.function_or_none(self.report, "report")


# Whether a preconditioner is being traced; the solves inside it are `Rough`.
_in_preconditioner = contextvars.ContextVar("in_preconditioner", default=False)


@dataclasses.dataclass(frozen=True)
class Rough(Adjoint):
    """The adjoint of a solve inside a preconditioner. Its transpose is not checked, since M is itself approximate."""


def as_preconditioner(M: UserFunction) -> UserFunction:
    """M, inside which solves are `Rough`."""

    def applied(r: jax.Array) -> Any:
        token = _in_preconditioner.set(True)
        try:
            return M.apply(r)
        finally:
            _in_preconditioner.reset(token)

    return dataclasses.replace(M, apply=applied)


class Keywords(TypedDict, total=False):
    """The keywords of every solver of A·x = b, as type checkers read them; `cg` explains each."""

    M: Any
    rtol: float
    atol: float
    maxiter: int | None
    history: bool | int
    callback: Callable[[jax.Array], None] | None
    progress: Callable[[int, float], None] | bool | None
    check_every: int | None
    adjoint: Adjoint | Literal["unrolled"]
    nullspace: Any
    left_nullspace: Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """`Keywords`, checked when they are made; numbers are Python's, or traced. A default needs no check.

    Attributes:
      budget: of a trial of `solve` (`Limits`).
    """

    M: Any = None
    rtol: Any = RTOL
    atol: Any = 0.0
    maxiter: Any = None
    history: Any = False
    callback: Any = None
    progress: Any = None
    check_every: Any = None
    adjoint: Any = Adjoint()
    nullspace: Any = None
    left_nullspace: Any = None
    budget: Any = None

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            if (value := getattr(self, name)) is not getattr(Settings, name):
                object.__setattr__(self, name, check(value))

    @property
    def is_watched(self) -> bool:
        """Whether the user sees more of the steps than their result."""
        return self.history is not False or self.callback is not None or self.progress is not None

    def limits(self, most: int, drop: float = 0.0) -> Limits:
        """The numbers of the stopping rule, where a maxiter of None allows `most` iterations."""
        most, real = min(most, 2**31 - 1), jax.dtypes.canonicalize_dtype(float)
        longest = most if self.maxiter is None else self.maxiter
        traced = isinstance(longest, Tracer)
        longest = arguments.traced_maxiter(longest) if traced else np.asarray(longest, np.int32)
        budget = None if self.budget is None else np.asarray(self.budget, np.float32)
        # NumPy's numbers, which jit takes in the least time: an array on the device would cost 50 µs, an operation 10.
        rtol: Any = self.rtol if isinstance(self.rtol, Tracer) else np.asarray(self.rtol, real)
        atol: Any = self.atol if isinstance(self.atol, Tracer) else np.asarray(self.atol, real)
        limits = Limits(rtol, atol, longest, np.asarray(drop, real), budget=budget)  # pyright: ignore[reportArgumentType]
        if isinstance(self.adjoint, str) or _in_preconditioner.get():
            return limits
        if (of_derivative := self.adjoint.rtol) is None and not isinstance(rtol, Tracer) and rtol >= arguments.ANY:
            of_derivative = RTOL  # with that of the solve, all derivatives would be 0
        if of_derivative is not None:
            limits = limits._replace(derivative_rtol=np.asarray(of_derivative, real))
        if self.adjoint.maxiter is not None:
            return limits._replace(derivative_maxiter=np.asarray(self.adjoint.maxiter, np.int32))
        return limits._replace(derivative_maxiter=(jnp if traced else np).maximum(longest, most))

    def of_loop(self, arrays: list[Any], n: int, most: int, drop: float = 0.0) -> tuple[Options, Any, Limits]:
        """The static options of a loop over n unknowns, those of its derivatives, and `limits(most, drop)`.

        Args:
          arrays: those of A, b and M, where the loop runs.
        """
        limits, adjoint, every, history = self.limits(most, drop), self.adjoint, self.check_every, 0
        if every is None:
            every = steps_per_check(n, arguments.memory.device(arrays).platform, self.M, drop > 0)
        if self.history is not False:
            history = arguments.history_length(self.history, limits.maxiter)
        if isinstance(adjoint, Adjoint) and (adjoint is not Settings.adjoint or _in_preconditioner.get()):
            # Its numbers are limits, and derivatives alone call a report: no other program keeps what that holds.
            report = adjoint.report if jax_versions.is_traced_here() else None
            rough = _in_preconditioner.get()
            adjoint = Rough(report=report) if rough else Adjoint(None, None, adjoint.truncated, report)
        return Options(history, every, self.callback, self.progress), adjoint, limits


def _adjoint(value: Any) -> Any:
    if isinstance(value, Adjoint) or (isinstance(value, str) and value == "unrolled"):
        return value
    raise TypeError(f"adjoint must be a solvers.Adjoint or 'unrolled'; got {value!r}")


CHECKS: dict[str, Callable[[Any], Any]] = {
    "rtol": lambda value: arguments.nonnegative(value, "rtol", infinite=True),
    "atol": lambda value: arguments.nonnegative(value, "atol", infinite=True),
    "maxiter": lambda value: value if isinstance(value, Tracer) else arguments.int_at_least(value, "maxiter", 0),
    "history": arguments.history,
    "callback": lambda value: arguments.function_or_none(value, "callback"),
    "progress": arguments.watcher,
    "check_every": lambda value: None if value is None else arguments.int_at_least(value, "check_every", 1),
    "adjoint": _adjoint,
}


def steps_per_check(n: int, platform: str, M: Any = None, refines: bool = False) -> int:
    """Steps between two checks of the stopping rule for n unknowns.

    An M with a coarse space has ten arrays, a cycle of multigrid dozens, and most take a kernel or more.
    """
    if platform == "cpu":
        return 1
    steps = STEPS_PER_CHECK_SMALL if n <= SMALL and not refines else STEPS_PER_CHECK_DEFAULT
    return min(steps, max(STEPS_PER_CHECK_SMALL // max(len(jax.tree.leaves(M)), 1), 1))


def solver(lacks: tuple[str, ...] = (), **changed: Any) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """A decorator: the signature of the function lists the `Keywords` that it takes as `**settings`.

    Args:
      lacks: keywords that it does not take.
      changed: the defaults that the signature shows, where they differ from those of `Settings`.
    """
    shared = [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=changed.get(k, getattr(Settings, k)), annotation=t)
        for k, t in inspect.get_annotations(Keywords).items()
        if k not in lacks
    ]

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        bare = inspect.signature(function)
        of_function = [p for p in bare.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = sorted([*shared, *of_function], key=operator.attrgetter("kind"))
        return arguments.door(function, bare.replace(parameters=parameters))

    return decorate
