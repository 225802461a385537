"""The body of the solvers of A·x = b: checks the arguments, enters the matrix's basis and leaves it."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from solvers.core import adjoint as adjoints
from solvers.core import arguments, host_calls, iterate, precision, unrolled
from solvers.core.entry import Entry, entered
from solvers.core.iterate import Method, Options, System
from solvers.core.precision import Narrow
from solvers.core.scaling import Map, Product
from solvers.core.settings import Adjoint
from solvers.core.stopping import Limits
from solvers.solution import Solution

# Steps between two checks of the stopping rule. On a GPU a check waits about 50 µs for the host; half of the steps
# between two checks are wasted at the end, on average.
STEPS_PER_CHECK = {"cpu": 1}
STEPS_PER_CHECK_DEFAULT = 10
STEPS_PER_CHECK_SMALL, SMALL = 40, 250_000  # unknowns, whose steps take less than 10 µs
# Settings that are checked, and the types of values that are checked only once: the checks cost 40 µs.
NUMBERS = ("rtol", "atol", "maxiter", "history", "check_every")
CHECKED = (*NUMBERS, "callback", "progress", "adjoint")
PLAIN = (float, int, bool, type(None), Adjoint)
# Iterations that `history=True` records.
MAX_HISTORY = 10_000


class Plan(NamedTuple):
    """The static part of a solve; `adjoint` is a number of steps if these are unrolled."""

    method: Method
    options: Options
    adjoint: Adjoint | int


def solve(
    method: Method,
    A: Any,
    b: Any,
    x0: Any,
    settings: Any,
    *,
    parameters: tuple[Any, ...] = (),
    narrow: Narrow | None = None,
    direction: Any = None,
) -> Any:
    """Checks the arguments, enters the matrix's basis, solves, and leaves it. See `cg` for the arguments.

    Args:
      settings: all `Settings`, as the decorator `solver` completes them.
      parameters: of the method, arrays.
      narrow: of a refinement, its inner side.
      direction: the last one of a solve that goes on here, or zeros, in the user's order and the loop's scale; the
        result is then the solution, which has no derivatives, and the last direction.
    """
    M, callback, inner = settings["M"], settings["callback"], None if narrow is None else narrow.inner
    ravel = arguments.ravel(b, A)
    if ravel is not None:
        b, x0 = ravel.vector(b, "b"), None if x0 is None else ravel.vector(x0, "x0")
        A, M, inner = ravel.function(A, "A"), ravel.function(M, "M"), ravel.function(inner, "inner")
        callback = callback and arguments.Raveled(callback, ravel)
    b = arguments.vectors(b, "b")
    n = b.shape[0]
    if b.size == 0:
        raise ValueError(f"b is empty, of shape {b.shape}; a system needs at least one unknown")
    x0 = None if x0 is None else arguments.vectors(x0, "x0")
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"x0 has shape {x0.shape}; it must have b's, {b.shape}")
    options, adjoint, limits = settled(settings | {"callback": callback}, n, 10 * n, narrow.drop if narrow else 0.0)
    if adjoint == "unrolled":
        adjoint = unrolled.steps(settings, narrow)
    A = arguments.linear_map(A, n, "A")
    inner = None if narrow is None else precision.given(A, inner, n)
    # An inner matrix that the user gave is in the user's order.
    own, basis = arguments.in_basis(A) if inner is None else (A, IDENTITY)
    if callback is not None and basis.devices > 1:
        raise ValueError(
            f"A lies on {basis.devices} devices, over which JAX calls nothing in order; pass progress=, or history=True"
        )
    basis.agree(b=b, x0=x0, **{name: settings[name] for name in NUMBERS})
    b, x0 = basis.placed(b), basis.placed(x0)
    dtype = arguments.result_dtype(own, b, "A")
    # In 32 bits at least: the square of b's norm may exceed 16.
    dtype = arguments.promoted(dtype, b.dtype, *(() if x0 is None else (x0.dtype,)), np.dtype(np.float32))
    b, x0, direction = (None if a is None else arguments.cast(a, dtype) for a in (b, x0, direction))
    if narrow is not None:
        options = options._replace(values=narrow.dtype, dtype=precision.inner_dtype(narrow.dtype, dtype))
    own, inner, M = map(arguments.over_columns, (own, inner, arguments.preconditioner(M, b)))
    # JAX differentiates unrolled steps through M, so that M's own solves must be as accurate as any other.
    if isinstance(adjoint, Adjoint) and arguments.is_function(M):
        M = adjoints.as_preconditioner(M)
    with host_calls.numbered(options, limits[0]) as (options, first):
        plan = Plan(method, options, adjoint)
        sol, last = _solve(plan, (own, inner, M), basis, b, x0, (first, limits[1]), parameters, direction)
    if direction is not None:
        return sol, last
    return sol if ravel is None else dataclasses.replace(sol, x=ravel.pytree(sol.x))


def settled(settings: Any, n: int, most: int, drop: float = 0.0) -> tuple[Options, Any, tuple[Limits, Any]]:
    """The loop's options, the adjoint, the limits of the solve, and rtol and maxiter of its derivatives' systems.

    None stands there for the solve's own number, since each number is copied to the device.

    Args:
      settings: all `Settings`.
      n, most: unknowns, and the iterations that a maxiter of None allows.
    """
    values = [settings[k] for k in CHECKED]
    if any(type(v) not in PLAIN for v in (*values, drop)) or type(settings["history"]) is int:  # that needs free memory
        return _settled(settings, n, most, drop)
    context = jax.default_backend(), jax.dtypes.canonicalize_dtype(float), adjoints.is_preconditioning()
    return _settled_once(context, n, most, drop, *values)


@functools.lru_cache(maxsize=256, typed=True)
def _settled_once(context: Any, n: int, most: int, drop: float, *values: Any) -> Any:
    del context  # what the result depends on beside the values
    return _settled(dict(zip(CHECKED, values, strict=True)), n, most, drop)


def _settled(settings: Any, n: int, most: int, drop: float) -> tuple[Options, Any, tuple[Limits, Any]]:
    most, every, adjoint = min(most, 2**31 - 1), settings["check_every"], settings["adjoint"]
    limit = arguments.maxiter(settings["maxiter"], most)
    known = None if isinstance(limit, Tracer) else int(limit)
    options = Options(
        arguments.history_length(settings["history"], known, MAX_HISTORY),
        steps_per_check(n) if every is None else arguments.int_at_least(every, "check_every", 1),
        arguments.function_or_none(settings["callback"], "callback"),
        arguments.function_or_none(settings["progress"], "progress"),
    )
    limits = Limits(
        arguments.tolerance(settings["rtol"], "rtol"),
        arguments.tolerance(settings["atol"], "atol"),
        limit,
        arguments.tolerance(drop, "drop"),
    )
    if isinstance(adjoint, str) and adjoint == "unrolled":
        return options, adjoint, (limits, None)
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint must be a solvers.Adjoint or 'unrolled'; got {adjoint!r}")
    own, longest = adjoint.rtol, adjoint.maxiter
    if adjoints.is_preconditioning():
        return options, adjoints.Rough(report=adjoint.report), (limits, (None, None))
    xp = jnp if isinstance(limit, Tracer) else np  # an operation on the device would cost 10 µs and more
    of_derivatives = (
        None if own is None else arguments.tolerance(own, "rtol"),
        xp.maximum(limit, most) if longest is None else arguments.integer(longest, "maxiter"),
    )
    return options, dataclasses.replace(adjoint, rtol=None, maxiter=None), (limits, of_derivatives)


def limits_of_derivatives(limits: Limits, own: tuple[Any, Any]) -> Limits:
    """The limits of the systems that derivatives solve, from `settled`."""
    rtol, maxiter = own
    return Limits(
        limits.rtol if rtol is None else rtol,
        jnp.zeros_like(limits.atol),
        limits.maxiter if maxiter is None else maxiter,
        limits.drop,
    )


def steps_per_check(n: int) -> int:
    """Steps between two checks of the stopping rule for n unknowns on the default backend."""
    many = STEPS_PER_CHECK_SMALL if n <= SMALL else STEPS_PER_CHECK_DEFAULT
    return STEPS_PER_CHECK.get(jax.default_backend(), many)


def _in_basis(plan: Plan, maps: tuple[Any, ...], basis: Basis, b: Array, *others: Any) -> tuple[Solution, Any]:
    x0, limits, parameters, direction = others
    (method, options, adjoint), (A, inner, M), dtype = plan, maps, b.dtype
    start = None if x0 is None else basis.enter(x0)
    if options.values is not None:
        inner = precision.narrowed(A, options.values, options.dtype) if inner is None else inner
        inner, M = _product(inner, options.dtype), precision.cast(M, options.dtype)
    unroll = isinstance(adjoint, int)
    system = System(
        _product(A, dtype, not unroll), entered(M, basis), basis.enter(b), start, limits[0], inner, parameters
    )
    if direction is not None:
        system = system._replace(direction=basis.enter(direction))
        found = iterate.run(method, options, system, basis.leave)
        end = iterate.ended(method, options, system, found)
        return Solution(basis.leave(found.x), end.code, end.k, end.norm, None), basis.leave(end.direction)
    if unroll:
        x, end = unrolled.run(method, options, adjoint, system)
    else:
        x, end = adjoints.solved(method, options, adjoint, basis, system, limits_of_derivatives(*limits))
    norms = end.norms if options.history_length else None
    return Solution(basis.leave(x), end.code, end.k, end.norm, norms), None


def _product(A: Any, dtype: Any, in_one_pass: bool = True) -> Map:
    """v -> A·v in `dtype`, with vᴴ·A·v from the same pass if `in_one_pass` and A can compute it."""
    apply = lambda v: arguments.apply(A, v).astype(dtype)  # noqa: E731
    in_one_pass &= hasattr(A, "matvec_dot") and jnp.result_type(A.dtype, dtype) == dtype
    return Product(apply, lambda v: A.matvec_dot(v, v)) if in_one_pass else apply


def _examples(plan: Plan, b: Array) -> tuple[Any, Any, Any]:
    narrow = b if plan.options.dtype is None else mesh_axes.shaped_like(b, plan.options.dtype)
    return b, narrow, narrow


def _shardings(plan: Plan, b: Array) -> tuple[Solution, Any]:
    x: Any = mesh_axes.spec_like(b)
    columns: Any = mesh_axes.spec_like(b, None)
    one: Any = PartitionSpec(*columns[1:])
    return Solution(x, one, one, one, columns if plan.options.history_length else None), x


_solve = Entry(_in_basis, _examples, _shardings)
