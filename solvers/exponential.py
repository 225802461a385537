"""exp(t·A)·v by Taylor sums in steps, as Al-Mohy and Higham (2011), with lengths of steps judged by what came out.

A step takes h·B with B = t·(A − μ), μ the mean diagonal, and adds (h·B)ᵏ·x/k! up to rounding. It is taken again with a
smaller h where the terms do not fall within DEGREE of them, or rise so far above their sum that rounding would show. A
norm of B is not needed, so A may be a function and far from normal; its terms are its norms of powers.

Beside x moves a random vector e, in units of eps·‖x‖. It takes part in the judgement of a step, so that a v in a
special subspace hides nothing; and each step adds its own rounding errors to it, in a random direction. So at the end
e is about as long as the errors that rounding made of A, of v and in all steps, after A has amplified them.

Traffic of a term, in vectors of n: a product, and about 8; e takes some 20 terms a step, and x up to DEGREE.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from solvers.core.space import Map, Space
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import exponent_of, ratio, scaled
from solvers.solution import Status

DEGREE = 80  # of the Taylor sum, at most
REACH = 0.7  # times log(1/eps): h·‖B‖ that is tried, where the sum grows to eps^−0.7
HUMP = 0.2  # terms may be eps^−0.2 times as long as their sum
ERRORS = 4  # the units in which e counts: roundings of a product and of a sum
DIAGONAL = 0.7  # of ‖A·e‖, at least ‖μ·e‖
ROUGH = 0.03  # of the sum, the last terms of e
PROOF = 5  # terms after which they show ‖h·B‖
SUMMED, FAR = 1, 2  # how a sum ended, if not by DEGREE terms
LN2 = 0.693359375, -2.1219444005469057e-4  # log 2, in two parts; small integers times the first are exact
LOST = 0.1  # of ‖x‖, an error with which x says nothing


class Past(NamedTuple):
    """What earlier steps tell.

    Attributes:
      errors: [n] or [n, k] the random vector e, in units of eps·‖v‖.
      sizes: ‖v‖ at time 0, by column.
      rate: ‖A‖ as far as steps have shown it, or 0.
    """

    errors: Array
    sizes: Array
    rate: Array


class End(NamedTuple):
    code: Array  # by column
    steps: Array
    products: Array
    error_norm: Array  # by column
    mu: Array  # by which the steps shifted A; past.rate is that of A − μ
    past: Past


class State(NamedTuple):
    x: Array
    e: Array
    left: Array  # of the time, from 1 down to 0
    h: Array
    rate: Array  # ‖t·A‖ as the last step showed it
    steps: Array
    products: Array
    code: Array
    power: Array  # of two, by which x and e were divided, so that no square over- or underflows


def unmoved(space: Space, v: Array) -> Past:
    sizes, noise = space.length(v), space.probe(v)
    return Past(jnp.where(sizes > 0, noise / space.norm(noise), 0), sizes, jnp.zeros((), sizes.dtype))


def exp_of(z: Array) -> tuple[Array, Array]:
    """(f, m) with exp(z) = f·2ᵐ and |f| about 1, also where exp(z) is beyond the dtype."""
    m = jnp.round(jnp.clip(z.real / sum(LN2), -(2.0**24), 2.0**24))  # no sum of a few powers leaves int32
    return jnp.exp(z - m * LN2[0] - m * LN2[1]), m.astype(jnp.int32)


def restored(a: Array, power: Array) -> Array:
    """2ᵖ·a for any p: beyond what `scaled` can do, zeros and infinities."""
    limit = 2 * (jnp.finfo(a.dtype).maxexp - 8)
    return scaled(a, jnp.clip(power, -limit, limit))


def _another(space: Space, noise: Array, number: Array) -> Array:
    """A random vector of length 1, for each number and each noise."""
    fresh = noise.real * (noise.shape[0] ** 0.5 * (2 + number))
    fresh = fresh - 2 * jnp.round(fresh / 2)
    return ratio(fresh, space.norm(fresh)).astype(noise.dtype)


def run(space: Space, A: Map, t: Array, maxiter: Array, past: Past | None, v: Array) -> tuple[Array, End]:
    """exp(t·A)·v, and how the steps ended."""
    past = past or unmoved(space, v)
    noise, top = unmoved(space, v).errors, exponent_of(jnp.max(space.largest(v)))
    v, sizes, zero = scaled(v, -top), scaled(past.sizes, -top), jnp.int32(0)
    real, eps = sizes.dtype, jnp.finfo(sizes.dtype).eps
    y = A(noise)
    mu = ratio(jnp.sum(space.inner_product(noise, y)), jnp.sum(space.norm(noise) ** 2).astype(y.dtype))
    # The mean of the diagonal, or far from it where A has large numbers elsewhere.
    mu = jnp.where(jnp.abs(mu) > DIAGONAL * jnp.max(space.norm(y)), mu, 0)
    A_norm = jnp.max(space.norm(y - mu * noise)) * jnp.abs(t)
    most, hump_most = -jnp.log(eps) * REACH, -jnp.log(eps) * HUMP
    h = jnp.minimum(1, ratio(most, past.rate * jnp.abs(t)))
    h = jnp.where(h > 0, h, 1).astype(real)

    def norm_of(j: Array, last: Array, first: Array) -> Array:
        """‖(h·B)ʲ‖^(1/j), as far as the term j shows it."""
        largest = jnp.max(jnp.where(first > 0, jnp.log(ratio(last, first)), -jnp.inf))
        return jnp.exp((largest + lax.lgamma(j.astype(real) + 1)) / j)

    def attempt(state: State) -> State:
        """A step, or the length of another one."""
        count = jnp.ceil(state.left / state.h * (1 - 1e-3))
        h = state.left / count

        def summed(x: Array, first: Array, least: Any, is_small: Callable[..., Array]) -> Any:
            """The terms and their sum, from term `least` on until they are small: their number, and their norms."""

            def add(carry: Any) -> Any:
                j, term, total, last, hump, _ = carry
                term = (A(term) - mu * term) * (h * t / (j + 1)).astype(v.dtype)
                size, total, j = space.norm(term), total + term, j + 1
                hump = jnp.maximum(hump, size)
                reached = (j > PROOF) & (norm_of(j, size, first) > most)
                is_far = reached | jnp.any((first > 0) & (size * eps > first)) | ~jnp.all(jnp.isfinite(size))
                ends = (j >= least) & jnp.all((size <= last / 2) & is_small(last + size, hump, total))
                return j, term, total, size, hump, status_of((ends, SUMMED), (is_far, FAR), otherwise=0)

            goes_on = lambda carry: (carry[-1] == 0) & (carry[0] < DEGREE)  # noqa: E731
            j, _, total, last, hump, how = lax.while_loop(goes_on, add, (zero, x, x, first, first, zero))
            above = jnp.log(jnp.max(ratio(hump, space.norm(total))))
            return total, j, norm_of(j, last, first), hump, above, how == SUMMED, jnp.all(jnp.isfinite(first + last))

        # Rounding errors of products are errors of A, which the step amplifies.
        fresh, x_norm = _another(space, noise, state.steps), space.norm(state.x)
        e = state.e + fresh * ratio((1 + A_norm * h) * x_norm, sizes)
        e, j_e, norm, _, above_e, is_summed, is_finite = summed(
            e, space.norm(e), 1, lambda size, hump, total: size <= ROUGH * space.norm(total)
        )
        goes_on = is_summed & (above_e <= 1.5 * hump_most)
        x = jnp.where(goes_on, state.x, 0)  # else one term, since h is too long
        x, j, norm_x, hump, above, is_whole, is_sound = summed(
            x, space.norm(x), jnp.where(goes_on, j_e, 1), lambda size, hump, total: size <= eps / 2 * hump
        )
        (factor, of_factor), size = exp_of(mu * (h * t).astype(v.dtype)), space.norm(x)
        own = jnp.abs(factor) * (hump + jnp.abs(mu * h * t) * size)  # the rounding errors of this step
        above, norm = jnp.where(goes_on, above, above_e), jnp.maximum(norm, norm_x)
        is_whole, is_sound = is_whole & is_summed, is_sound & is_finite & jnp.all(jnp.isfinite(own))
        taken = is_whole & (above <= hump_most) & is_sound
        by_hump = 0.9 * hump_most / jnp.maximum(above, 0.1)
        longer = jnp.clip(jnp.minimum(by_hump, 0.9 * DEGREE / j), 0.125, 2)
        shorter = jnp.where(is_whole, jnp.clip(by_hump, 0.125, 0.9), jnp.minimum(0.9 * most / norm, 0.9))
        new_h, steps = h * jnp.where(taken, longer, shorter), state.steps + 1
        left = jnp.where(count <= 1, 0, state.left - h)
        code = status_of(
            (~is_sound & (is_whole | (j_e == 1)), Status.NON_FINITE),
            (taken & (left <= 0), Status.CONVERGED),
            ((steps >= maxiter) | taken & (steps + left / new_h > maxiter), Status.MAXITER),
        )
        moved = x * factor, e * factor + fresh * ratio(own, sizes)
        x, e = (jnp.where(taken, new, old) for new, old in zip(moved, (state.x, state.e), strict=True))
        own_power = exponent_of(jnp.max(space.largest(x)))
        x, e = scaled(x, -own_power), scaled(e, -own_power)
        power = jnp.clip(state.power + own_power + jnp.where(taken, of_factor, 0), -(2**28), 2**28)
        left = jnp.where(taken, left, state.left)
        return State(x, e, left, new_h, norm / h, steps, state.products + j_e + j, code, power)

    state = State(v, past.errors, jnp.ones((), real), h, past.rate, zero, zero + 1, zero + RUNNING, top)
    state = lax.while_loop(lambda state: state.code == RUNNING, attempt, mesh_axes.varying(state, v))
    error = ERRORS * eps * space.norm(state.e) * sizes
    rounded = status_of(
        (error <= eps**0.5 * space.norm(state.x), Status.CONVERGED),
        (error <= LOST * space.norm(state.x), Status.ROUNDED),
        otherwise=Status.PRECISION,
    )
    x, error = restored(state.x, state.power), restored(error, state.power)
    code = jnp.where(state.code == Status.CONVERGED, rounded, state.code)
    code = jnp.where(jnp.isfinite(space.largest(x)), code, jnp.int32(Status.NON_FINITE))
    rate = ratio(jnp.where(jnp.isfinite(state.rate), state.rate, 0), jnp.abs(t))
    past = Past(restored(state.e, state.power - top), past.sizes, rate)
    return jnp.where(jnp.isfinite(x), x, 0), End(code, state.steps, state.products, error, mu, past)
