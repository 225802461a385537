"""Around the loop: arguments checked, the matrix's basis entered and left, and implicit differentiation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt.basis import IDENTITY, Basis
from solvers import _arguments as arguments
from solvers import _iterate
from solvers import _opaque as opaque
from solvers import _precision as precision
from solvers._iterate import End, Limits, Map, Method, Options, Product
from solvers.solution import Solution, Status

Array = jax.Array

# Steps between two looks at the stopping rule. On a GPU a look waits for the host, about 50 µs; of the steps between
# two looks half are taken for nothing in the end.
STEPS_PER_CHECK = {"cpu": 1}
STEPS_PER_CHECK_DEFAULT = 10
STEPS_PER_CHECK_SMALL, SMALL = 40, 250_000  # unknowns, whose steps take less than 10 µs
# A derivative has no status: where its own system ends with one of these, it is NaN rather than wrong.
NO_DERIVATIVE = (
    Status.BREAKDOWN,
    Status.NOT_POSITIVE_DEFINITE,
    Status.NOT_SYMMETRIC,
    Status.NON_FINITE,
    Status.DIVERGED,
    Status.PRECISION,
)
# A default history holds this many iterations.
MAX_HISTORY = 10_000


def solve(
    method: Method,
    A: Any,
    b: Any,
    x0: Any,
    M: Any,
    rtol: float,
    atol: float,
    maxiter: int | None,
    history: bool | int,
    callback: Callable[[Array], None] | None,
    progress: Callable[[int, float], None] | None,
    check_every: int | None,
    *,
    parameters: tuple[Any, ...] = (),
    narrow: Any = None,
    inner: Any = None,
    drop: float = 0.0,
) -> Solution:
    """Checks the arguments, enters the matrix's basis, solves, and leaves it. See `cg` for the arguments.

    Args:
      parameters: of the method, arrays.
      narrow, inner, drop: of a refinement: the dtype of the inner matrix, that matrix where it is given, and the factor
        by which the residual falls until the true one is taken.
    """
    b = arguments.vectors(b, "b")
    n = b.shape[0]
    if b.size == 0:
        raise ValueError(f"b is empty, of shape {b.shape}; a system needs at least one unknown")
    x0 = None if x0 is None else arguments.vectors(x0, "x0")
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"x0 has shape {x0.shape}; it must have b's, {b.shape}")
    many = STEPS_PER_CHECK_SMALL if n <= SMALL else STEPS_PER_CHECK_DEFAULT
    steps = STEPS_PER_CHECK.get(jax.default_backend(), many)
    traced = isinstance(maxiter, Tracer)
    limit = min(10 * n, 2**31 - 1) if maxiter is None else maxiter if traced else arguments.count(maxiter, "maxiter", 0)
    options = Options(
        arguments.history_length(history, None if traced else limit, MAX_HISTORY),
        steps if check_every is None else arguments.count(check_every, "check_every", 1),
        arguments.function_or_none(callback, "callback"),
        arguments.function_or_none(progress, "progress"),
    )
    limits = Limits(
        arguments.tolerance(rtol, "rtol"),
        arguments.tolerance(atol, "atol"),
        arguments.integer(limit),
        arguments.tolerance(drop, "drop"),
    )
    A = arguments.linear_map(A, n, "A")
    inner = None if narrow is None else precision.given(A, inner, n)
    # An inner matrix of the user's is in the user's order.
    own, basis = (getattr(A, "in_basis", A), getattr(A, "basis", IDENTITY)) if inner is None else (A, IDENTITY)
    if callback is not None and basis.devices > 1:
        raise ValueError(
            f"A lies on {basis.devices} devices, over which JAX calls nothing in order; pass progress=, or history=True"
        )
    b, x0 = basis.accept(b), basis.accept(x0)
    dtype = arguments.result_dtype(own, b, "A")
    dtype = jnp.result_type(dtype, b.dtype, *(() if x0 is None else (x0.dtype,)))
    dtype = jnp.promote_types(dtype, jnp.float32)  # a square of b's norm is beyond 16 bits
    b, x0 = b.astype(dtype), None if x0 is None else x0.astype(dtype)
    if narrow is not None:
        options = options._replace(values=narrow, dtype=precision.inner_dtype(narrow, dtype))
    if M is not None:
        M = arguments.linear_map(M, n, "M")
        arguments.result_dtype(M, b, "M")
    maps = own, inner, M
    if not any(arguments.is_function(f) for f in maps):
        return _compiled(method, options, maps, basis, b, x0, limits, parameters)
    # A function is traced anew at every call, since what it closes over may have changed, and so is what holds it.
    likes = b, _narrow(b, options), _narrow(b, options)
    maps = tuple(
        arguments.traced(arguments.over_columns(f), like) if arguments.is_function(f) else f
        for f, like in zip(maps, likes, strict=True)
    )
    return jax.jit(_solve, static_argnums=(0, 1))(method, options, maps, basis, b, x0, limits, parameters)


def _solve(
    method: Method,
    options: Options,
    maps: tuple[Any, Any, Any],
    basis: Basis,
    b: Array,
    x0: Any,
    limits: Limits,
    parameters: tuple[Any, ...],
) -> Solution:
    """`A` works in the basis. `M` enters it where it can (`entered`); where not, it costs two permutations a step."""
    with basis.scope():
        return _solve_in_basis(method, options, maps, basis, b, x0, limits, parameters)


def _solve_in_basis(method, options, maps, basis, b, x0, limits, parameters) -> Solution:
    A, inner, M = maps
    dtype = b.dtype
    matvec = lambda v: arguments.apply(A, v).astype(dtype)  # noqa: E731
    start = None if x0 is None else basis.enter(x0)
    if options.values is not None:
        inner = precision.narrowed(A, options.values, options.dtype) if inner is None else inner
        M = precision.cast(M, options.dtype)
    M_inner = lambda r: r  # noqa: E731
    if hasattr(M, "entered"):
        entered = M.entered(basis)
        M_inner = lambda r: arguments.apply(entered, r).astype(r.dtype)  # noqa: E731
    elif M is not None:
        M_inner = lambda r: basis.enter(arguments.apply(M, basis.leave(r))).astype(r.dtype)  # noqa: E731
    b = basis.enter(b)
    with_dot = arguments.traced(lambda v: A.matvec_dot(v, v), b) if _in_one_pass(A, dtype) else None
    x, end = _differentiable(method, options, basis, matvec, with_dot, inner, M_inner, b, start, limits, parameters)
    return Solution(basis.leave(x), end.code, end.k, end.norm, end.norms if options.history_length else None)


_compiled = jax.jit(_solve, static_argnums=(0, 1))


def _in_one_pass(A: Any, dtype: Any) -> bool:
    return hasattr(A, "matvec_dot") and jnp.result_type(A.dtype, dtype) == dtype


def _differentiable(
    method, options, basis, matvec, with_dot, inner, precondition, b, x0, limits, parameters
) -> tuple[Array, End]:
    """x with A·x = b, differentiable in b and in whatever `matvec` depends on, to any order.

    The loop itself is not differentiated. From A·x = b follows A·dx = db − dA·x: one more system with the same matrix,
    through `lax.custom_linear_solve`, whose transpose is a solve too: with the same matrix where the method takes only
    Hermitian ones, else with the transposed of A and of M. x0 and M do not bear on the solution and get no derivative;
    the tangent system starts from zero, with rtol of its own right-hand side and without atol, so that a cotangent of
    any size is answered to the same relative accuracy.
    """
    narrow = _narrow(b, options)
    A, M = arguments.traced(matvec, b), arguments.traced(precondition, narrow)
    shown = IDENTITY if options.callback is None else basis
    frozen = lax.stop_gradient((M, with_dot, inner, x0, limits, parameters, shown))
    options_of_tangent = options._replace(history_length=0, callback=None, progress=None)

    def run(options, A, M, b, x0, limits, with_dot, inner, parameters, shown=IDENTITY):
        own = None if inner is None else _map_of(inner)
        A = A if with_dot is None else Product(A, with_dot)
        with basis.scope():  # a derivative is traced later
            return _iterate.run(method, options, A, M, b, x0, limits, own, parameters, shown.leave)

    def primal(A, b, frozen):
        M, with_dot, inner, x0, limits, parameters, shown = frozen
        return run(options, A, M, b, x0, limits, with_dot, inner, parameters, shown)

    def solution(A, b, frozen):
        return opaque.apply(primal, tangent, A, b, frozen)

    def tangent(primals, tangents):
        (A, b, frozen), (dA, db, _) = primals, tangents
        M, with_dot, inner, _, limits, parameters, _ = frozen
        x, end = solution(A, b, frozen)
        _, dA_x = jax.jvp(lambda A: A(x), (A,), (dA,))

        def from_zero(A, M, with_dot, inner, rhs):
            relative = limits._replace(atol=jnp.zeros_like(limits.atol))
            dx, end = run(options_of_tangent, A, M, rhs, None, relative, with_dot, inner, parameters)
            return jnp.where(jnp.isin(end.code, jnp.array(NO_DERIVATIVE)), jnp.nan, dx)

        def transposed_from_zero(_, c):
            # For a Hermitian matrix Aᵀ is its conjugate, so Aᵀ·λ = c is A·λ̄ = c̄: solved with the fast product. The
            # system differentiated further is Aᵀ's, since a single entry of A may be perturbed without its mirror
            # image.
            if method.self_adjoint:
                return jnp.conj(from_zero(A, M, with_dot, inner, jnp.conj(c)))
            A_T, M_T = arguments.transposed(A, b), arguments.transposed(M, narrow)
            try:
                jax.eval_shape(M_T, narrow)
            except NotImplementedError:  # an inner solve; without M the derivative is the same, if dearer
                M_T = lambda r: r  # noqa: E731
            inner_T = None if inner is None else inner.T if hasattr(inner, "T") else arguments.transposed(inner, narrow)
            return from_zero(A_T, M_T, None, inner_T, c)

        solve = lambda _, rhs: from_zero(A, M, with_dot, inner, rhs)  # noqa: E731
        dx = lax.custom_linear_solve(A, db - dA_x, solve, transposed_from_zero)
        return (x, end), (dx, jax.tree.map(no_tangent, end))

    return solution(A, b, frozen)


def _map_of(A: Any) -> Map:
    """What a method multiplies with, out of a matrix or a function."""
    apply = lambda v: arguments.apply(A, v).astype(v.dtype)  # noqa: E731
    return Product(apply, lambda v: A.matvec_dot(v, v)) if hasattr(A, "matvec_dot") else apply


def _narrow(b: Array, options: Options) -> jax.ShapeDtypeStruct:
    """Vectors as the method has them."""
    return jax.ShapeDtypeStruct(b.shape, b.dtype if options.dtype is None else options.dtype)


def no_tangent(a: Array) -> Any:
    """The zero tangent of an output that has no derivative."""
    return jnp.zeros_like(a) if jnp.issubdtype(a.dtype, jnp.inexact) else np.zeros(a.shape, jax.dtypes.float0)
