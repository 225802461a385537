"""Keywords that every solver of A·x = b takes, written once: types, defaults, and the decorator that adds them."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

import jax

from jaxsparse_fmt._types import standard_promotion
from solvers.core import arguments
from solvers.solution import Solution

P = ParamSpec("P")
Result = TypeVar("Result", bound=Solution)


@dataclasses.dataclass(frozen=True)
class Adjoint:
    """Options for the linear systems of a derivative: A·dx = db − dA·x forward, Aᵀ·λ = x̄ backward.

    They start from zero, with the method and M of the solve. A derivative is NaN if its system neither meets the
    tolerance nor comes as close to it as rounding allows.

    Attributes:
      rtol: relative to the system's own right-hand side; None takes that of the solve. 0: down to rounding.
      maxiter: most iterations; None takes 10·n, or the maxiter of the solve if that is larger.
      truncated: accept the result of a solve that ended by maxiter or stagnation as the derivative.
      report: called as report(status, iterations, relative_residual) when such a system ends: a `Status`, an int and a
        float; arrays of [k] for k systems at once.

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


class Settings(TypedDict, total=False):
    """The keywords of every solver of A·x = b; `cg` explains each."""

    M: Any
    rtol: float
    atol: float
    maxiter: int | None
    history: bool | int
    callback: Callable[[jax.Array], None] | None
    progress: Callable[[int, float], None] | None
    check_every: int | None
    adjoint: Adjoint | Literal["unrolled"]


DEFAULTS: Settings = {
    "M": None,
    "rtol": 1e-6,
    "atol": 0.0,
    "maxiter": None,
    "history": False,
    "callback": None,
    "progress": None,
    "check_every": None,
    "adjoint": Adjoint(),
}
# Keywords of SciPy before version 1.14 and of lineax, and their names here.
ELSEWHERE = {"tol": "rtol", "max_steps": "maxiter", "preconditioner": "M", "y0": "x0"}


def solver(**changed: Any) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """A decorator: the function's `**settings` arrive complete, and its signature lists each with its default.

    Args:
      changed: defaults that differ from `DEFAULTS`.
    """
    defaults = DEFAULTS | changed
    types = inspect.get_annotations(Settings)
    shared = [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=defaults[k], annotation=types[k]) for k in types
    ]

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        bare = inspect.signature(function)
        own = [p for p in bare.parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = bare.replace(parameters=sorted([*shared, *own], key=lambda p: p.kind))
        names = [k for k, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY]

        @functools.wraps(function)
        @standard_promotion
        def checked(*args: P.args, **keywords: P.kwargs) -> Result:
            if unknown := [k for k in keywords if k not in signature.parameters]:
                which = f"{function.__name__} has no keyword {_explained(unknown[0])}"
                raise TypeError(f"{which}; it has {', '.join(names)}")
            return function(*args, **(defaults | keywords))  # pyright: ignore[reportCallIssue]

        vars(checked)["__signature__"] = signature
        return checked

    return decorate


def _explained(keyword: str) -> str:
    """The unknown keyword for a message, with its name here if other libraries use it."""
    return f"{keyword!r}: here it is {ELSEWHERE[keyword]!r}" if keyword in ELSEWHERE else repr(keyword)
