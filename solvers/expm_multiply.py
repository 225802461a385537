"""exp(t·A)·v by Krylov spaces, without exp(t·A).

`_exponential` has the loop; this file has the public function, its result and the derivatives.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from jaxsparse_fmt._types import pytree, standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from solvers import _exponential
from solvers._exponential import End, Limits
from solvers.core import arguments, opaque, program
from solvers.core.program import Entry
from solvers.core.scaling import exponent, scaled
from solvers.core.vectors import norm, ratio
from solvers.solution import Outcome, Status

M, MAXITER = 30, 1000
MESSAGES = {
    Status.MAXITER: "maxiter steps did not reach the end; raise maxiter or m, or take a shorter t",
    Status.STAGNATION: "the estimated error is above rtol, which is near the rounding of this dtype for this A and t; "
    "loosen rtol, or take a wider dtype",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A and v, or exp(t·A)·v is beyond the dtype",
}


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExponentialSolution(Outcome):
    """exp(t·A)·v, a pytree.

    Attributes:
      x: of the shape of v; where the status is MAXITER, exp(s·A)·v for an s before t; zero where x is not finite.
      code: int32, the `Status` as a number; CONVERGED refers to the estimated error. For several columns, this and the
        following have one number per column.
      n_iterations: int32, steps, which maxiter counts.
      n_products: int32, products with A.
      error_norm: estimated ‖x − exp(t·A)·v‖₂.
    """

    x: Array
    code: Array
    n_iterations: Array
    n_products: Array
    error_norm: Array

    _norm = "error_norm"
    _messages = MESSAGES


@standard_promotion
def expm_multiply(
    A: Any, v: Any, t: Any = 1.0, *, rtol: float = 1e-6, m: int = M, maxiter: int | None = None
) -> ExponentialSolution:
    """exp(t·A)·v: the solution at time t of dx/dt = A·x from x(0) = v.

    Works inside jit, vmap and grad. Differentiable in v and t to any order, and in A's values and the arrays that a
    function closes over: in forward mode to any order, in reverse mode once, and forward over reverse. Reverse mode in
    A's values stores up to 100 steps and is NaN if the solve takes more; any derivative is NaN where it misses its
    tolerance.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v.
      v: [n], or [n, k] for k vectors, each with steps of its own.
      t: a number, real or complex; −1j with a Hermitian A is Schrödinger's equation, and x complex.
      rtol: the estimated error is at most rtol·‖x‖₂. The estimate includes rounding: 1e-5 is about the least rtol in
        single precision.
      m: vectors in the Krylov space. A larger m takes fewer products and more memory, and the orthogonalisation takes
        time that grows with m².
      maxiter: most steps, of m + 1 products each; None allows 1000.

    Returns:
      An `ExponentialSolution`.

    Raises:
      ValueError, TypeError: invalid arguments.
    """
    v = arguments.nonempty(v, "v", "exp(t·A)·v needs at least one number")
    n = v.shape[0]
    own, basis = arguments.in_basis(arguments.linear_map(A, n, "A"))
    v = basis.accept(v)
    t = jnp.asarray(t)
    if t.ndim != 0 or not jnp.issubdtype(t.dtype, jnp.number):
        raise TypeError(f"t must be one number; got shape {t.shape}, dtype {t.dtype}. For several times use jax.vmap")
    kind = jnp.complex64 if jnp.iscomplexobj(t) else jnp.float32
    dtype = jnp.result_type(arguments.result_dtype(own, v, "A"), v.dtype, kind)
    limits = Limits(arguments.tolerance(rtol, "rtol"), arguments.maxiter(maxiter, MAXITER))
    v, t = v.astype(dtype), t.astype(dtype if jnp.iscomplexobj(t) else jnp.finfo(dtype).dtype)
    return _solve(min(arguments.int_at_least(m, "m", 1), n), (own,), basis, v, t, limits)


def _in_basis(m: int, maps: tuple[Any], basis: Basis, v: Array, t: Array, limits: Limits) -> ExponentialSolution:
    B = program.traced(lambda v: (t * arguments.apply(maps[0], v)).astype(v.dtype), _column(v))
    solve = lambda v: exponential(m, B, v, lax.stop_gradient(limits))  # noqa: E731
    solve = solve if v.ndim == 1 else jax.vmap(solve, 1, (1, 0))
    x, end = solve(basis.enter(v))
    return ExponentialSolution(basis.leave(x), end.code, end.steps, end.products, end.error)


def _column(v: Array) -> Array:
    return v if v.ndim == 1 else v[:, 0]


_solve = Entry(_in_basis, lambda _, v: (_column(v),))


# ------------------------------------------------------------------------------------------------- differentiation


def exponential(m: int, B: Any, v: Array, limits: Limits, checked: bool = False) -> tuple[Array, End]:
    """exp(B)·v and how it ended, differentiable in v and B; linear in v, with a transpose.

    d(exp(B)·v) = exp(B)·dv + L(B, dB)·v with Fréchet's derivative L (`_changed`). Steps and spaces are not
    differentiated.

    Args:
      B: a `program.Function`.
      checked: make the result NaN where it did not converge, as for all derivatives.
    """

    def primal(B, v, limits):
        x, end = _exponential.run(B, v, m, limits)
        return (jnp.where(end.code == Status.CONVERGED, x, jnp.nan) if checked else x), end

    def tangent(primals, tangents):
        (B, v, limits), (dB, dv, _) = primals, tangents
        x, end = exponential(m, B, v, limits, checked)
        parts = [] if dv is None else [_sound(m, B, dv, limits)]
        if jax.tree.leaves(dB):
            parts.append(_changed(m, B, v, dB, limits))
        return (x, end), (sum(parts) if parts else None, opaque.undefined(end, tangents))

    def transpose(args, cotangent):
        B, v, limits = args
        v = mesh_axes.varying(v, cotangent)
        B_T = program.traced(lambda u: jax.linear_transpose(B, v)(u)[0], v)
        return _sound(m, B_T, cotangent, limits)

    return opaque.apply(primal, tangent, B, v, limits, transpose=transpose)


def _sound(m: int, B: Any, v: Array, limits: Limits) -> Array:
    """exp(B)·v alone, NaN where it did not converge; linear in v."""
    return exponential(m, B, v, limits, checked=True)[0]


def _changed(m: int, B: Any, v: Array, dB: Any, limits: Limits) -> Array:
    """L(B, dB)·v, the change of exp(B)·v with B alone, linear in dB.

    Forward it is the upper half of exp([[B, dB], [0, B]])·(0, v) (Van Loan 1978); backward, `_exponential.sensitivity`.
    """
    inside, moves = jax.tree.structure(B), [d is not None for d in jax.tree.leaves(dB, is_leaf=lambda a: a is None)]
    flat, split = ravel_pytree(dB)

    def rebuilt(B: Any, numbers: Array) -> Any:
        new = iter(jax.tree.leaves(split(numbers)))
        leaves = zip(moves, jax.tree.leaves(B), strict=True)
        return jax.tree.unflatten(inside, [next(new) if moving else leaf for moving, leaf in leaves])

    def numbers_of(B: Any) -> Array:
        return ravel_pytree([leaf for moving, leaf in zip(moves, jax.tree.leaves(B), strict=True) if moving])[0]

    def forward(Bv: Any, flat: Array, limits: Limits) -> Array:
        (B, v), n = Bv, Bv[1].shape[0]

        def moved(x: Array) -> Array:
            return jax.jvp(lambda numbers: rebuilt(B, numbers)(x), (numbers_of(B),), (flat,))[1]

        # Both halves of about one size, so that the tolerance holds for the upper one.
        sizes = lax.stop_gradient((v, moved(v)))
        e, e_moved = (exponent(a) for a in sizes)
        scale = ratio(norm(scaled(sizes[0], -e)), norm(scaled(sizes[1], -e_moved)))
        scale = scaled(jnp.where(scale == 0, 1, scale), e - e_moved)
        both = lambda w: jnp.concatenate([B(w[:n]) + scale * moved(w[n:]), B(w[n:])])  # noqa: E731
        w = jnp.concatenate([jnp.zeros_like(v), v])
        return _sound(m, program.traced(both, w), w, limits)[:n] / scale

    def tangent_forward(primals, tangents):
        (Bv, flat, limits), (dBv, dflat, _) = primals, tangents
        moved = opaque.jvp(lambda args: forward(args[0], args[1], limits), (Bv, flat), (dBv, dflat))
        return changed(Bv, flat, limits), moved

    def changed(Bv, flat, limits):
        return opaque.apply(forward, tangent_forward, Bv, flat, limits, transpose=lambda a, c: pulled(a[0], c, a[2]))

    def backward(Bv, cotangent, limits):
        B, v = Bv
        of = lambda numbers, x: rebuilt(B, numbers)(x)  # noqa: E731
        found, trusted = _exponential.sensitivity(of, v, cotangent, m, limits, numbers_of(B))
        return jnp.where(trusted, found, jnp.nan)

    def tangent_backward(primals, tangents):
        (Bv, cotangent, limits), (dBv, dcotangent, _) = primals, tangents
        parts = [] if dcotangent is None else [pulled(Bv, dcotangent, limits)]
        if jax.tree.leaves(dBv):

            def along(numbers):
                f = lambda Bv: _sound(m, Bv[0], Bv[1], limits)  # noqa: E731
                return opaque.jvp(f, (rebuilt(Bv[0], numbers), Bv[1]), dBv)

            parts.append(jax.vjp(along, numbers_of(Bv[0]))[1](cotangent)[0])
        return pulled(Bv, cotangent, limits), sum(parts) if parts else None

    def pulled(Bv, cotangent, limits):
        return opaque.apply(
            backward, tangent_backward, Bv, cotangent, limits, transpose=lambda a, c: changed(a[0], c, a[2])
        )

    return changed((B, v), flat, limits)
