"""The body of the solvers of A·x = b: checks the arguments, enters the matrix's basis and leaves it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis, within
from solvers.core import arguments, nullspaces, unrolled
from solvers.core.iterate import Method, System
from solvers.core.linear_solve import Solve
from solvers.core.operators import Function, UserFunction, Wrapped, operator, preconditioner, product_dtype, promoted
from solvers.core.program import Entry
from solvers.core.settings import NUMBERS, Adjoint, Settings, as_preconditioner
from solvers.core.space import outside
from solvers.core.stopping import Limits
from solvers.solution import Solution


def by_method(
    method: Method, A: Any, b: Any, x0: Any, settings: Settings, narrow: Any = None, drop: float = 0.0
) -> Any:
    """Checks the arguments, enters the matrix's basis, solves, and leaves it. See `cg` for the arguments.

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
            settings = dataclasses.replace(settings, callback=arguments.Raveled(settings.callback, ravel))
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
        adjoint = unrolled.count(settings, narrow)
    # JAX differentiates unrolled steps through M, so that M's own solves must be as accurate as any other.
    elif isinstance(M, UserFunction):
        M = as_preconditioner(M)
    if spaces is not None:
        spaces, arrays = nullspaces.found(A, basis, b, spaces), None
    calls = settings.callback is not None or settings.progress is not None
    static = Solve(method, options, adjoint)
    sol = _solve(static, (A, M), basis, b, x0, limits, spaces, calls=calls, arrays=arrays)
    return sol if ravel is None else dataclasses.replace(sol, x=ravel.pytree(sol.x))


def _inner_dtype(A: Any, values: Any, wide: Any) -> Any:
    """The dtype of the vectors over A with narrow values: float32, or complex64.

    TypeError: A has no values to narrow. ValueError: these are not narrower than `wide`.
    """
    if not hasattr(A.A if isinstance(A, Wrapped) else A, "astype"):
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


def _narrowed(a: Any, dtype: Any) -> Any:
    """An array of M in a narrow type, if it has floats or complex numbers."""
    real = jnp.finfo(dtype).dtype
    return a.astype(dtype if jnp.iscomplexobj(a) else real) if jnp.issubdtype(a.dtype, jnp.inexact) else a


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


def _in_basis(
    solve: Solve, maps: tuple[Any, ...], basis: Basis, b: Array, x0: Any, limits: Limits, spaces: Any
) -> Solution:
    options, (A, M), inner, narrow = solve.options, maps, None, solve.options.dtype or b.dtype
    b, x0 = basis.enter(b), None if x0 is None else basis.enter(x0)
    if options.values is not None:
        values = options.dtype if options.values == jnp.float32 else options.values
        inner = Wrapped(A.A.astype(values)) if isinstance(A, Wrapped) else A.astype(values)
        M = M if isinstance(M, Function) else jax.tree.map(functools.partial(_narrowed, dtype=options.dtype), M)
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


def _examples(solve: Solve, b: Array) -> tuple[Any, Any]:
    return b, b if solve.options.dtype is None else mesh_axes.shaped_like(b, solve.options.dtype)


def _shardings(solve: Solve, b: Array) -> Solution:
    x: Any = mesh_axes.spec_like(b)
    columns: Any = mesh_axes.spec_like(b, None)
    one: Any = PartitionSpec(*columns[1:])
    return Solution(x, one, one, one, columns if solve.options.history_length else None)


_solve = Entry(_in_basis, _examples, _shardings)
