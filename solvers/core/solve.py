"""What every solver of A·x = b takes: its keywords (`Settings`); and A, b, x0 and M, in `by_method`.

A method's function has the decorator `solver`, which adds the keywords, and calls `by_method`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxsparse_fmt._tracing import device_of
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY
from jaxsparse_fmt.kernels.backends import jax_versions
from solvers.core import arguments, linear_solve, nullspaces
from solvers.core.iterate import Method, Options
from solvers.core.linear_solve import Adjoint, Rough, Solve, in_basis
from solvers.core.operators import UserFunction, operator, preconditioner, product_dtype, promoted
from solvers.core.program import Entry
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
OF_SOLVE = Adjoint()  # likewise


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
    adjoint: Any = OF_SOLVE
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
        if isinstance(self.adjoint, str) or linear_solve.in_preconditioner.get():
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
        is_rough = linear_solve.in_preconditioner.get()
        if every is None:
            every = steps_per_check(n, device_of(arrays).platform, self.M, drop > 0)
        if self.history is not False:
            history = arguments.history_length(self.history, limits.maxiter)
        if isinstance(adjoint, Adjoint) and (is_rough or adjoint is not Settings.adjoint):
            # Its numbers are limits, and derivatives alone call a report: no other program keeps what that holds.
            report = adjoint.report if jax_versions.is_traced_here() else None
            adjoint = Rough(report=report) if is_rough else Adjoint(None, None, adjoint.truncated, report)
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
        parameters = sorted([*shared, *of_function], key=attrgetter("kind"))
        return arguments.door(function, bare.replace(parameters=parameters))

    return decorate


def by_method(
    method: Method, A: Any, b: Any, x0: Any, settings: Settings, narrow: Any = None, drop: float = 0.0
) -> Any:
    """Checks the arguments, puts them where A's basis takes them, and solves. See `cg` for the arguments.

    Args:
      narrow: the dtype of the inner matrix of a refinement; None: no refinement.
      drop: the factor by which the residual of a refinement falls until the true one is computed.
    """
    given, M = (b, x0), settings.M
    ravel = None if isinstance(b, jax.Array) and b.ndim == 1 and b.size else arguments.ravel(b, A)
    b = arguments.vectors(b, "b") if ravel is None else ravel.vector(b, "b")
    if ravel is not None:
        x0 = None if x0 is None else ravel.vector(x0, "x0")
        A, M = ravel.function(A, "A"), ravel.function(M, "M")
        if settings.callback is not None:
            settings = dataclasses.replace(settings, callback=dataclasses.replace(ravel, callback=settings.callback))
    if x0 is not None and (x0 := arguments.vectors(x0, "x0")).shape != b.shape:
        raise ValueError(f"x0 has shape {x0.shape}; it must have b's, {b.shape}")
    n, spaces = b.shape[0], None
    A = operator(A, n, "A")
    if settings.nullspace is not None or settings.left_nullspace is not None:
        spaces = nullspaces.given(settings, n, ravel, method.self_adjoint)
    if (basis := A.basis) is not IDENTITY:
        A = A.in_basis
        if settings.callback is not None and basis.devices > 1:
            raise ValueError(
                f"A lies on {basis.devices} devices, over which JAX calls nothing in order; pass progress=, or "
                "history=True"
            )
        basis.agree(lambda: _arguments(given, method, settings, str(narrow), drop))
        b, x0 = basis.placed(b), basis.placed(x0)
    dtype, of_A = b.dtype, A.dtype
    if of_A is None or of_A != dtype or x0 is not None or dtype.itemsize < 4:
        # At least 32 bits: ‖b‖² may overflow a 16-bit float.
        dtype = promoted(product_dtype(A, b, "A"), dtype, (b if x0 is None else x0).dtype, np.dtype(np.float32))
        b, x0 = b.astype(dtype), None if x0 is None else x0.astype(dtype)
    if M is not None:
        M = preconditioner(M, b)
    arrays = jax.tree.leaves((A, M, b, x0))
    options, adjoint, limits = settings.of_loop(arrays, n, 10 * n, drop)
    if narrow is not None:
        options = options._replace(values=narrow, dtype=_inner_dtype(A, narrow, dtype))
    if adjoint == "unrolled":
        adjoint = _steps(settings, narrow)
    # JAX differentiates unrolled steps through M, so that M's own solves must be as accurate as any other.
    elif isinstance(M, UserFunction):
        M = linear_solve.as_preconditioner(M)
    if spaces is not None:
        spaces, arrays = nullspaces.found(A, basis, b, spaces), None
    calls = settings.callback is not None or settings.progress is not None
    static = Solve(method, options, adjoint)
    sol = _solve(static, (A, M), basis, b, x0, limits, spaces, calls=calls, arrays=arrays)
    return sol if ravel is None else dataclasses.replace(sol, x=ravel.pytree(sol.x))


def _steps(settings: Settings, narrow: Any) -> int:
    """The number of steps. ValueError: no maxiter, or a setting or method that cannot be unrolled."""
    if settings.maxiter is None or isinstance(settings.maxiter, Tracer):
        raise ValueError(f"adjoint='unrolled' needs maxiter=, the number of steps; got {settings.maxiter!r}")
    if narrow is not None:
        raise ValueError("adjoint='unrolled' is not for refine; unroll the method itself")
    for name in ("callback", "progress"):
        if getattr(settings, name) is not None:
            raise ValueError(f"adjoint='unrolled' calls no {name}; pass history=True")
    return settings.maxiter


def _inner_dtype(A: Any, values: Any, wide: Any) -> Any:
    """The dtype of the vectors over A with narrow values: float32, or complex64.

    TypeError: A has no values to narrow. ValueError: these are not narrower than `wide`.
    """
    if not hasattr(A, "astype"):
        raise TypeError("A is a function, which has no narrower values; store it as a matrix, or use the method")
    if jnp.finfo(values).bits >= jnp.finfo(wide).bits:
        raise ValueError(
            f"an inner {jnp.dtype(values).name} is not narrower than A and b, which are {jnp.dtype(wide).name}; use a "
            "narrower one, or float64 for A and b (with jax_enable_x64)"
        )
    is_complex = jnp.issubdtype(wide, jnp.complexfloating)
    if is_complex and jnp.finfo(values).bits < 32:
        raise ValueError(
            f"dtype={jnp.dtype(values).name!r} is for real A and b, since no complex dtype is that narrow; use "
            "dtype='float32', which stores complex64"
        )
    return jnp.dtype(jnp.complex64 if is_complex else jnp.float32)


def _arguments(given: Any, method: Method, settings: Settings, *narrow: Any) -> dict[str, Any]:
    """The vectors of the caller, and what decides the program and its limits in words that all processes share."""
    start: Any = method.start
    start, options = (start.func, start.keywords) if isinstance(start, functools.partial) else (start, {})
    words = f"{start.__module__}.{start.__name__}", options, method.keeps
    adjoint = settings.adjoint
    if isinstance(adjoint, Adjoint):
        adjoint = adjoint.rtol, adjoint.maxiter, adjoint.truncated
    calls = {name: getattr(settings, name) is not None for name in ("progress", "callback")}
    rest = {"method": words, "adjoint": adjoint, "narrow": narrow}
    same = {name: getattr(settings, name) for name in (*NUMBERS, *nullspaces.KEYWORDS, "M")}
    return {"b": given[0], "x0": given[1]} | same | calls | rest


def _examples(solve: Solve, b: Array) -> tuple[Any, Any]:
    return b, b if solve.options.dtype is None else mesh_axes.shaped_like(b, solve.options.dtype)


def _shardings(solve: Solve, b: Array) -> Solution:
    x: Any = mesh_axes.spec_like(b)
    columns: Any = mesh_axes.spec_like(b, None)
    one: Any = PartitionSpec(*columns[1:])
    return Solution(x, one, one, one, columns if solve.options.history_length else None)


_solve = Entry(in_basis, _examples, _shardings)
