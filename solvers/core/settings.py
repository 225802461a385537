"""Keywords that every solver of A·x = b takes: types, defaults, checks, and the decorator that adds them."""

import contextvars
import dataclasses
import functools
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
# The settings that `settled` checks.
NUMBERS = ("rtol", "atol", "maxiter", "history", "check_every")
CHECKED = (*NUMBERS, "callback", "progress", "adjoint")
RTOL = 1e-6  # if none is given
# Iterations that `history=True` records.
MAX_HISTORY = 10_000


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
            object.__setattr__(self, "rtol", float(arguments.tolerance(self.rtol, "rtol")))
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


class Settings(TypedDict, total=False):
    """The keywords of every solver of A·x = b; `cg` explains each."""

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


DEFAULTS: Settings = {
    "M": None,
    "rtol": RTOL,
    "atol": 0.0,
    "maxiter": None,
    "history": False,
    "callback": None,
    "progress": None,
    "check_every": None,
    "adjoint": Adjoint(),
    "nullspace": None,
    "left_nullspace": None,
}


def solver(lacks: tuple[str, ...] = (), **changed: Any) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """A decorator: the function's `**settings` arrive complete, and its signature lists each with its default.

    Args:
      lacks: settings that it does not take.
      changed: defaults that differ from `DEFAULTS`.
    """
    defaults = {name: value for name, value in (DEFAULTS | changed).items() if name not in lacks}
    types = inspect.get_annotations(Settings)
    shared = [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=defaults[k], annotation=types[k]) for k in defaults
    ]

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        bare = inspect.signature(function)
        of_function = [p for p in bare.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = sorted([*shared, *of_function], key=operator.attrgetter("kind"))
        return arguments.door(function, bare.replace(parameters=parameters), **defaults)

    return decorate


# ----------------------------------------------------------------------------------------------------------- checks


# The types of values that are checked only once: the checks cost 40 µs.
PLAIN = {float, int, bool, type(None), Adjoint}


def settled(settings: Any, given: Any, n: int, default: int, drop: float = 0.0) -> tuple[Options, Any, Limits]:
    """The loop's options, the adjoint, and the limits of the solve.

    Args:
      settings: all `Settings`, and perhaps a number `budget` (`Limits`).
      given: A and b; the solve runs where they lie.
      n, default: unknowns, and the iterations that a maxiter of None allows.
    """
    values, arrays = operator.itemgetter(*CHECKED)(settings), len(jax.tree.leaves(settings["M"]))
    steps = steps_per_check(n, arguments.memory.device(given).platform, arrays, drop > 0)
    context = steps, jax.dtypes.canonicalize_dtype(float), _in_preconditioner.get()
    reports = getattr(values[-1], "report", None) is not None
    if reports and not jax_versions.is_traced_here():  # derivatives alone call it: no program keeps what it holds
        values = *values[:-1], dataclasses.replace(values[-1], report=None)
    # A number of norms is checked against the free memory each time, and what a report holds is not kept.
    is_plain = PLAIN.issuperset(map(type, (*values, drop))) and type(settings["history"]) is not int and not reports
    options, adjoint, limits = (_settled_once if is_plain else _settled)(context, default, drop, *values)
    if (budget := settings.get("budget")) is not None:
        limits = limits._replace(budget=np.asarray(budget, np.float32))
    return options, adjoint, limits


def _settled(context: Any, default: int, drop: float, *values: Any) -> tuple[Options, Any, Limits]:
    """As `settled`, for the values of CHECKED.

    Args:
      context: what else the result depends on: the steps between two checks, JAX's type of a float, and
        whether a preconditioner is being traced.
    """
    rtol, atol, maxiter, history, every, callback, progress, adjoint = values
    default = min(default, 2**31 - 1)
    limit = arguments.maxiter(maxiter, default)
    known = None if isinstance(limit, Tracer) else int(limit)
    options = Options(
        arguments.history_length(history, known, MAX_HISTORY),
        context[0] if every is None else arguments.int_at_least(every, "check_every", 1),
        arguments.function_or_none(callback, "callback"),
        arguments.watcher(progress),
    )
    limits = Limits(
        arguments.tolerance(rtol, "rtol", infinite=True),
        arguments.tolerance(atol, "atol", infinite=True),
        limit,
        arguments.tolerance(drop, "drop"),
    )
    if isinstance(adjoint, str) and adjoint == "unrolled":
        return options, adjoint, limits
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint must be a solvers.Adjoint or 'unrolled'; got {adjoint!r}")
    if context[-1]:
        return options, Rough(report=adjoint.report), limits
    xp = jnp if isinstance(limit, Tracer) else np  # an operation on the device would cost 10 µs and more
    longest = adjoint.maxiter
    derivative_rtol = adjoint.rtol
    if derivative_rtol is None and not isinstance(limits.rtol, Tracer) and limits.rtol >= arguments.ANY:
        derivative_rtol = RTOL  # with that of the solve, all derivatives would be 0
    limits = limits._replace(
        derivative_rtol=None if derivative_rtol is None else arguments.tolerance(derivative_rtol, "rtol"),
        derivative_maxiter=xp.maximum(limit, default) if longest is None else arguments.integer(longest, "maxiter"),
    )
    return options, dataclasses.replace(adjoint, rtol=None, maxiter=None), limits


_settled_once = functools.lru_cache(maxsize=256, typed=True)(_settled)


def steps_per_check(n: int, platform: str, arrays: int = 0, refines: bool = False) -> int:
    """Steps between two checks of the stopping rule for n unknowns and an M of `arrays` arrays.

    An M with a coarse space has ten arrays, a cycle of multigrid dozens, and most take a kernel or more.
    """
    steps = STEPS_PER_CHECK_SMALL if n <= SMALL and not refines else STEPS_PER_CHECK_DEFAULT
    steps = min(steps, max(STEPS_PER_CHECK_SMALL // max(arrays, 1), 1))
    return 1 if platform == "cpu" else steps
