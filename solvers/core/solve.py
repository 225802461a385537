"""The body of the solvers of A·x = b: checks the arguments, enters the matrix's basis and leaves it."""

import dataclasses
import functools
from typing import Any

import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis, within
from solvers.core import arguments, nullspaces, precision, unrolled
from solvers.core.iterate import Method, System
from solvers.core.linear_solve import Solve
from solvers.core.operators import UserFunction, operator, preconditioner, product_dtype, promoted
from solvers.core.precision import Narrow
from solvers.core.program import Entry
from solvers.core.settings import NUMBERS, Adjoint, as_preconditioner, settled
from solvers.core.space import outside
from solvers.core.stopping import Limits
from solvers.solution import Solution


def by_method(method: Method, A: Any, b: Any, x0: Any, settings: Any, narrow: Narrow | None = None) -> Any:
    """Checks the arguments, enters the matrix's basis, solves, and leaves it. See `cg` for the arguments.

    Args:
      settings: all `Settings`, as the decorator `solver` completes them.
      narrow: the inner side of a refinement; None: no refinement.
    """
    M, callback, inner = settings["M"], settings["callback"], None if narrow is None else narrow.inner
    ravel, vectors = arguments.ravel(b, A), {"b": b, "x0": x0}
    if ravel is not None:
        b, x0 = ravel.vector(b, "b"), None if x0 is None else ravel.vector(x0, "x0")
        A, M, inner = ravel.function(A, "A"), ravel.function(M, "M"), ravel.function(inner, "inner")
        callback = arguments.function_or_none(callback, "callback") and arguments.Raveled(callback, ravel)
    b = arguments.vectors(b, "b")
    x0 = None if x0 is None else arguments.vectors(x0, "x0")
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"x0 has shape {x0.shape}; it must have b's, {b.shape}")
    n = b.shape[0]
    options, adjoint, limits = settled(
        settings | {"callback": callback}, (A, b), n, 10 * n, narrow.drop if narrow else 0.0
    )
    if adjoint == "unrolled":
        adjoint = unrolled.steps(settings, narrow)
    A = operator(A, n, "A")
    spaces: Any = nullspaces.given(settings, n, ravel, method.self_adjoint)
    vectors |= {name: settings.get(name) for name in nullspaces.KEYWORDS}
    inner = None if narrow is None else precision.users_inner(A, inner, n)
    # An inner matrix that the user gave is in the user's order, and so the loop is too.
    basis = A.basis if inner is None else IDENTITY
    if not basis.is_identity:
        A = A.in_basis
        if callback is not None and basis.devices > 1:
            raise ValueError(
                f"A lies on {basis.devices} devices, over which JAX calls nothing in order; pass progress=, or "
                "history=True"
            )
        basis.agree(lambda: {**vectors, **_program_of(method, narrow, settings)})
        b, x0 = basis.placed(b), basis.placed(x0)
    # At least 32 bits: ‖b‖² may overflow a 16-bit float.
    dtypes = [b.dtype] if x0 is None else [b.dtype, x0.dtype]
    dtype = promoted(product_dtype(A, b, "A"), *dtypes, np.dtype(np.float32))
    b, x0 = arguments.cast(b, dtype), None if x0 is None else arguments.cast(x0, dtype)
    if narrow is not None:
        options = options._replace(values=narrow.dtype, dtype=precision.inner_dtype(narrow.dtype, dtype))
    M = preconditioner(M, b)
    # JAX differentiates unrolled steps through M, so that M's own solves must be as accurate as any other.
    if isinstance(adjoint, Adjoint) and isinstance(M, UserFunction):
        M = as_preconditioner(M)
    calls = callback is not None or options.progress is not None
    spaces = nullspaces.found(A, basis, b, spaces) if spaces else None
    sol = _solve(Solve(method, options, adjoint), (A, inner, M), basis, b, x0, limits, spaces, calls=calls)
    return sol if ravel is None else dataclasses.replace(sol, x=ravel.pytree(sol.x))


def _program_of(method: Method, narrow: Narrow | None, settings: Any) -> dict[str, Any]:
    """What decides the program and its limits, in words that are the same in all processes."""
    start: Any = method.start
    start, options = (start.func, start.keywords) if isinstance(start, functools.partial) else (start, {})
    words = f"{start.__module__}.{start.__name__}", options, method.keeps
    adjoint = settings["adjoint"]
    if isinstance(adjoint, Adjoint):
        adjoint = adjoint.rtol, adjoint.maxiter, adjoint.truncated
    calls = {name: bool(settings[name]) for name in ("progress", "callback")}
    rest = {"method": words, "adjoint": adjoint, "narrow": narrow and (str(narrow.dtype), narrow.drop)}
    return {name: settings[name] for name in NUMBERS} | calls | rest | {"M": settings["M"]}


def _in_basis(
    solve: Solve, maps: tuple[Any, ...], basis: Basis, b: Array, x0: Any, limits: Limits, spaces: Any
) -> Solution:
    options, (A, inner, M), narrow = solve.options, maps, solve.options.dtype or b.dtype
    b, x0 = basis.enter(b), None if x0 is None else basis.enter(x0)
    if options.values is not None:
        inner = precision.narrowed(A, options.values, options.dtype) if inner is None else inner
        M = precision.cast(M, options.dtype)
    M, singular, rhs = None if M is None else within(M, basis), A, b
    if spaces is not None:
        b, x0 = nullspaces.projected(spaces.L, b), None if x0 is None else nullspaces.projected(spaces.Z, x0)
        A, inner = (nullspaces.deflated(a, spaces, basis.over, dtype) for a, dtype in ((A, b.dtype), (inner, narrow)))
        M = nullspaces.between(M, spaces, basis.over, narrow, solve.method.least_squares)
    system = System(A, M, b, x0, lax.stop_gradient(limits), inner, basis)
    if isinstance(solve.adjoint, int):
        x, end = unrolled.run(outside(basis), solve.method, options, solve.adjoint, system)
    else:
        x, end = solve(system)  # the primitive: see `Solve.compute`
    norms = end.norms if options.history_length else None
    sol = Solution(x, end.code, end.k, end.norm, norms)
    if spaces is not None:
        sol = nullspaces.shortest(sol, singular, rhs, spaces, basis, system.limits)
    return dataclasses.replace(sol, x=basis.leave(sol.x))


def _examples(solve: Solve, b: Array) -> tuple[Any, Any, Any]:
    narrow = b if solve.options.dtype is None else mesh_axes.shaped_like(b, solve.options.dtype)
    return b, narrow, narrow


def _shardings(solve: Solve, b: Array) -> Solution:
    x: Any = mesh_axes.spec_like(b)
    columns: Any = mesh_axes.spec_like(b, None)
    one: Any = PartitionSpec(*columns[1:])
    return Solution(x, one, one, one, columns if solve.options.history_length else None)


_solve = Entry(_in_basis, _examples, _shardings)
