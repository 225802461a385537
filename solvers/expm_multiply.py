"""exp(t·A)·v: the public function, its result, and its derivatives; `exponential.py` has the steps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from solvers.core import arguments, opaque, operators
from solvers.core.operators import Function, traced
from solvers.core.program import Entry
from solvers.core.space import HERE, Space, outside
from solvers.core.stopping import is_failure
from solvers.core.vectors import exponent_of, scaled
from solvers.exponential import End, exp_of, restored, run, unmoved
from solvers.solution import Outcome, Status

MAXITER = 10_000
CHECKPOINTS, PULLED_DEGREE = 32, 30  # of a derivative in reverse mode: vectors that it keeps, and terms of its steps
FEW = 8  # steps, in which exp(t·(A − μ)) stays within the range of float32
MESSAGES = {
    Status.MAXITER: "maxiter steps do not reach t; raise maxiter, or use a shorter t: a step is about 10 / ‖A‖ "
    "long. For a stiff A implicit steps, each a solve, are cheaper",
    Status.ROUNDED: "x is as accurate as the dtype allows: it is that of an A and v which differ from the given ones "
    "by rounding errors, and these change exp(t·A)·v by more than √eps of its length; a wider dtype gets further",
    Status.PRECISION: "rounding errors of A and v alone change exp(t·A)·v by about its length: x has no correct "
    "digit; use float64 where x is float32, or a shorter t",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A, v and t, or exp(t·A)·v is beyond the dtype",
}


@exportable
@pytree
class FunctionSolution(Outcome):
    """f(A)·v, a pytree.

    Attributes:
      x: of the shape of v, after an axis of several t. Where a failure ended the steps, that of an earlier time.
      code: int32, the `Status` as a number; one for each t and column.
      n_iterations: int32, steps, which maxiter counts, or vectors of the Krylov space.
      n_products: int32, products with A, of x and of e, each with all columns.
      error_norm: an estimate of ‖x − f(A)·v‖₂, of the shape of code.
    """

    x: Array
    code: Array
    n_iterations: Array
    n_products: Array
    error_norm: Array

    _norm = "error_norm"
    _messages = MESSAGES


@arguments.door
def expm_multiply(A: Any, v: Any, t: Any = 1.0, *, maxiter: int | None = None) -> FunctionSolution:
    """exp(t·A)·v: the solution at time t of dx/dt = A·x from x(0) = v. Needs products with A alone.

    As accurate as the dtype allows, as is SciPy's function of this name: x is that of an A and v which differ from the
    given ones by rounding errors. `error_norm` says what these do to x, also where A is far from normal. The number of
    products grows with |t|·‖A‖, some three to five times that. Works inside jit and vmap.

    Differentiable by v, t and A's values: forward to any order, backward once, and forward over backward, as
    `jax.hessian` does.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v.
      v: [n], or [n, k] for k vectors, which share the steps.
      t: a number, or [n_t] numbers in any order, each reached from the one before; −1j with a Hermitian A is
        Schrödinger's equation.
      maxiter: most steps from one t to the next, each of at most 80 products; None allows 10,000.

    Returns:
      A `FunctionSolution` with x [n], [n, k], [n_t, n] or [n_t, n, k]. CONVERGED: the estimated error is at most √eps
      of ‖x‖; ROUNDED: it is larger, by no fault of the steps; PRECISION: above a tenth.

    Raises:
      ValueError, TypeError: shapes that do not fit, or invalid arguments.

    Examples:
      >>> js.expm_multiply(A, b, -0.1).x[:2].round(4).tolist()
      [0.8267, 0.9051]
      >>> js.expm_multiply(A, b, np.linspace(0, 1, 5)).x.shape
      (5, 16)
    """
    v = arguments.nonempty(v, "v", "exp(t·A)·v needs at least one number")
    A = operators.operator(A, v.shape[0], "A")
    t = jnp.asarray(t)
    if t.ndim > 1 or t.size == 0 or not jnp.issubdtype(t.dtype, jnp.number):
        raise ValueError(f"t must be a number, or some [n_t]; got {t.dtype}{list(t.shape)}")
    kind = jnp.complex64 if jnp.iscomplexobj(t) else jnp.float32
    dtype = jnp.result_type(operators.product_dtype(A, v, "A"), v.dtype, kind)
    A.basis.agree(lambda: {"v": v, "t": t, "maxiter": maxiter})
    v = A.basis.placed(v).astype(dtype)
    t = t.astype(dtype if jnp.iscomplexobj(t) else jnp.finfo(dtype).dtype)
    return _solve(None, (A.in_basis,), A.basis, v, t, arguments.maxiter(maxiter, MAXITER))


def _in_basis(_: None, maps: tuple[Any], basis: Basis, v: Array, t: Array, maxiter: Array) -> FunctionSolution:
    start = basis.enter(v)
    A = traced(lambda u: (maps[0] @ u).astype(v.dtype), start)
    return AtTimes()((A, basis, t, maxiter, start))


def _at_times(A: Function, basis: Basis, t: Array, maxiter: Array, start: Array) -> FunctionSolution:
    space, times = outside(basis), jnp.atleast_1d(t)
    order = jnp.lexsort((jnp.abs(times), jnp.angle(times)))  # outwards in each direction

    def onward(carry: Any, t: Array) -> Any:
        x, at, code, past = carry
        goes_on = (at * jnp.conj(t)).real >= (1 - 1e-6) * jnp.abs(at) * jnp.abs(t)
        now, first = (x, at, past), (start, jnp.zeros_like(t), unmoved(space, start))
        x, at, past = jax.tree.map(lambda now, first: jnp.where(goes_on, now, first), now, first)
        x, end = Exponential(space)((A, t - at, maxiter, past, x))
        end = lax.stop_gradient(end)
        code = jnp.where(goes_on & is_failure(code) & (code != Status.PRECISION), code, end.code)
        ends = basis._shared((code, end.steps, end.products, end.error_norm))
        return (x, t, code, end.past), FunctionSolution(basis.leave(x), *ends)

    first = start, jnp.zeros_like(times[0]), jnp.zeros(start.shape[1:], jnp.int32), unmoved(space, start)
    every = lax.scan(onward, mesh_axes.varying(first, start), times[order])[1]
    counts = jnp.cumsum(every.n_iterations), jnp.cumsum(every.n_products)
    every = dataclasses.replace(every, n_iterations=counts[0], n_products=counts[1])
    back = jnp.argsort(order) if t.ndim else 0
    return jax.tree.map(lambda a: a[back], every)


_solve = Entry(_in_basis, lambda _, v: (v if v.ndim == 1 else v[:, 0],))


# ------------------------------------------------------------------------------------------------- differentiation


class AtTimes(opaque.Operation):
    """The result, of (A, basis, t, maxiter, v): one operation, since a loop hides that x is linear in v."""

    def compute(self, inputs: Any) -> FunctionSolution:
        return _at_times(*inputs)

    def jvp(self, inputs: Any, tangents: Any) -> tuple[Any, Any]:
        sol, d_sol = opaque.both(self.compute, inputs, tangents)
        return sol, jax.tree.map(lambda d: None if d.dtype == jax.dtypes.float0 else d, d_sol)

    def linear(self) -> int:
        return self.tree.num_leaves - 1

    def transpose(self, inputs: Any, cotangent: Array) -> Array:
        A, basis, t, maxiter, v = inputs  # v is 0
        return jax.vjp(lambda v: _at_times(A, basis, t, maxiter, v).x, v)[1](cotangent)[0]


class Exponential(opaque.Operation):
    """exp(t·A)·v and how its steps ended, of (A, t, maxiter, what is past, v).

    d(exp(t·A)·v) = exp(t·A)·dv + A·exp(t·A)·v·dt + L·v, with Fréchet's derivative L, a `Change`. Steps are not
    differentiated.
    """

    space: Space = HERE

    def compute(self, inputs: Any) -> tuple[Array, End]:
        A, *others = inputs
        return run(self.space, A.__matmul__, *others)

    def jvp(self, inputs: Any, tangents: Any) -> tuple[Any, Any]:
        (A, t, maxiter, _, v), (dA, dt, *_, dv) = inputs, tangents
        x, end = self(inputs)
        parts: list[Array] = [] if dv is None else [self((A, t, maxiter, None, dv))[0]]
        if dt is not None:
            parts.append(dt * (A @ x))
        if jax.tree.leaves(dA):
            moving = tuple([d is not None for d in jax.tree.leaves(dA, is_leaf=lambda d: d is None)])
            flat = ravel_pytree([d for d in jax.tree.leaves(dA)])[0]
            parts.append(Change(self.space, moving)((A, t, maxiter, v, flat)))
        dx = _or_nan(end, sum(parts[1:], parts[0]), parts) if parts else None
        return (x, end), (dx, opaque.undefined(end, (dA, dt, dv)))

    def linear(self) -> int:
        return self.tree.num_leaves - 1

    def transpose(self, inputs: Any, cotangent: Array) -> Array:
        A, t, maxiter, _, _ = inputs
        A_T = traced(lambda u: jax.linear_transpose(A.__matmul__, u)(u)[0], cotangent)
        x, end = self((A_T, t, maxiter, None, cotangent))
        return _or_nan(end, x, cotangent)


def _or_nan(end: End, result: Array, given: Any) -> Array:
    """The result, linear in `given`; NaN if the steps failed, unless `given` is 0."""
    return jnp.where(jnp.any(is_failure(end.code)), opaque.undefined(result, given), result)


class Change(opaque.Operation):
    """L·v, the change of exp(t·A)·v with A: the upper half of exp(t·[[A, dA], [0, A]])·(0, v) (Van Loan 1978).

    Attributes:
      moving: the leaves of A of which the last input, one vector, holds the changes.
    """

    space: Space
    moving: tuple[bool, ...]

    def compute(self, inputs: Any) -> Array:
        A, t, maxiter, v, flat = inputs
        numbers, rebuilt = self._numbers(A)

        def both(W: Array) -> Array:
            changed, own = W[:, 0], W[:, 1]
            moved = jax.jvp(lambda numbers: rebuilt(numbers) @ own, (numbers,), (flat,))[1]
            return jnp.stack([A @ changed + moved, A @ own], axis=1)

        start = jnp.stack([jnp.zeros_like(v), v], axis=1)
        found, end = Exponential(self.space)((traced(both, start), t, maxiter, None, start))
        return _or_nan(end, found[:, 0], flat)

    def _numbers(self, A: Function) -> tuple[Array, Any]:
        """The moving leaves of A as one vector, and A with another one."""
        leaves, tree = jax.tree.flatten(A)
        numbers, split = ravel_pytree([leaf for leaf, moves in zip(leaves, self.moving, strict=True) if moves])

        def rebuilt(numbers: Array) -> Function:
            new = iter(split(numbers))
            both = zip(leaves, self.moving, strict=True)
            return jax.tree.unflatten(tree, [next(new) if moves else leaf for leaf, moves in both])

        return numbers, rebuilt

    def jvp(self, inputs: Any, tangents: Any) -> tuple[Array, Any]:
        (*others, flat), (*d_others, d_flat) = inputs, tangents
        parts = [] if d_flat is None else [self((*others, d_flat))]
        if jax.tree.leaves(d_others):
            parts.append(opaque.jvp(lambda others: self.compute((*others, flat)), tuple(others), tuple(d_others)))
        return self(inputs), sum(parts) if parts else None

    def linear(self) -> int:
        return self.tree.num_leaves - 1

    def transpose(self, inputs: Any, cotangent: Array) -> Array:
        """∫ λ(s)·x(s)ᵀ ds over A's values, exact for Taylor's sums: reverse mode through each of short steps.

        The steps are short for A − μ, so it is A − μ that they sum, and each multiplies by its part of exp(t·μ). Few
        steps leave this to the end, as a power of two, since exp(t·μ) may be beyond the dtype where its product with v
        and the cotangent is not. Over many steps exp(t·(A − μ)) itself may be. The result does not depend on μ.
        """
        A, t, maxiter, v, _ = inputs
        numbers, rebuilt = self._numbers(A)
        space = self.space

        def at(x: Array, steps: Array, of: Array) -> Array:
            part = jnp.where(of > 0, steps / of, 0).astype(t.dtype)
            return Exponential(space)((near, t * part, maxiter, None, x))[0]

        end = Exponential(space)((A, t, maxiter, None, v))[1]
        reach = -jnp.log(jnp.finfo(v.dtype).eps) / 10
        count = jnp.ceil(jnp.maximum(jnp.abs(t) * end.past.rate / reach, 1))
        mu = lax.stop_gradient(end.mu)
        later = jnp.where(count <= FEW, mu, 0)  # the part of μ that waits for the end
        near = traced(lambda u: A @ u - later * u, v)
        factor, power = exp_of(later * t.astype(mu.dtype))
        c = cotangent * factor
        powers = [exponent_of(jnp.max(space.largest(a))) for a in (v, c)]
        v, c = (scaled(a, -p) for a, p in zip((v, c), powers, strict=True))
        width = jnp.ceil(count / CHECKPOINTS)
        starts = lax.iota(width.dtype, CHECKPOINTS) * width
        _, kept = lax.scan(lambda x, i: (at(x, jnp.clip(count - i, 0, width), count), x), v, starts)

        def step(wide: Array, x: Array) -> Array:
            def add(carry: tuple[Array, Array], j: Array) -> Any:
                term, total = carry
                A = rebuilt(wide.astype(numbers.dtype))  # here, so that cotangents of all products add up in `wide`
                term = (A @ term - mu * term) * (t / (count * j)).astype(term.dtype)
                return (term, total + term), None

            total = lax.scan(add, (x, x), lax.iota(count.dtype, PULLED_DEGREE) + 1)[0][1]
            return total * jnp.exp((mu - later) * (t / count).astype(mu.dtype))

        def back(i: Array, carry: Any) -> Any:
            of_A, c = carry
            j = count - 1 - i.astype(count.dtype)
            group = jnp.floor(j / width)
            x = at(kept[group.astype(jnp.int32)], j - group * width, count)
            more, c = jax.vjp(step, wide, x)[1](c)
            return of_A + more, c

        wide = numbers.astype(jnp.result_type(numbers, v.real))
        of_A, _ = lax.fori_loop(0, count.astype(jnp.int32), back, (jnp.zeros_like(wide), c))
        return _or_nan(end, restored(of_A, power + sum(powers)).astype(numbers.dtype), cotangent)
