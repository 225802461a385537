"""IDR(s) with bi-orthogonal vectors (van Gijzen and Sonneveld 2011, Algorithm 913), preconditioned from the right.

A cycle is s products, each of which adds a direction within the current space G, and one more product, which moves the
residual into the next, smaller space. A step of this module is one product. The same code computes both kinds of step,
since an empty combination of old directions is zero.

Traffic of a step in vectors of n, apart from the product and M: 2·s for the shadows P and 4·s for the directions and
their products, all read twice, and about 12 more. Memory: 3·s + 3 vectors.
"""

import functools
from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt._tracing import PROGRAMS
from solvers.core import arguments
from solvers.core.iterate import Method, holding
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.core.space import Map, Space
from solvers.core.stopping import RESTART, status_of
from solvers.core.vectors import EXACT, linear_combination, ratio
from solvers.solution import Solution, Status

# The cosine of A·M·r and r below which the step along it is lengthened (Sleijpen and van der Vorst 1995).
ANGLE = 0.7


class Work(NamedTuple):
    """Vectors and scalars between steps; for several systems the scalars have one more axis, the last."""

    x: Array  # [n] what is added to x
    r: Array  # [n] residual
    P: Array  # [s, n], or [s, n, 1], real shadows, of length about 1
    U: Array  # [s, n] directions
    G: Array  # [s, n] A·U; G[i] is orthogonal to P[:i]
    C: Array  # [s, s] P·Gᵀ, a lower triangle
    omega: Array
    j: Array  # steps done
    first: Array  # whether no step has been made


@solver()
def idrs(A: Any, b: Any, x0: Any = None, *, s: int = 4, **settings: Unpack[Keywords]) -> Solution:
    """Solves A·x = b for any square A, mostly in fewer products than bicgstab, with 3·s + 3 vectors.

    On most unsymmetric matrices of the tests' collection s = 4 takes fewer products than bicgstab (on memplus a sixth
    more), and it solves some that bicgstab does not. Where A is nearly skew-symmetric, take a larger s or gmres.

    Args:
      M: an approximation of A⁻¹: anything with `@`, or a function r -> M·r.
      s: the number of directions kept; more take fewer products, and more time and memory for each.

    Other arguments, the `Solution` and the errors are those of `cg`; maxiter counts products, and a derivative solves
    with the transposes of A and M.

    Examples:
      >>> js.idrs(A, b, s=2, rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    chosen = method(min(arguments.int_at_least(s, "s", 1), arguments.unknowns(A, b)))
    return by_method(chosen, A, b, x0, Settings(**settings))


@remembered(PROGRAMS, "methods with options")
def method(s: int) -> Method:
    held = holding(step, scratch=("P", "U", "G"))
    return Method(functools.partial(start, s=s), held, self_adjoint=False, unrolled=1)


def start(space: Space, A: Map, M: Map, r: Array, squared: Array, last: None, *, s: int) -> Work:
    scale = (3 / space.places(r)) ** 0.5  # noise has a mean square of 1/3
    P = jnp.stack([scale * space.noise(r, seed) for seed in range(1, s + 1)])
    P = P.reshape(*P.shape, *(1,) * (r.ndim - 1))
    zero, columns = jnp.zeros((s, *r.shape), r.dtype), r.shape[1:]
    C = jnp.broadcast_to(jnp.eye(s, dtype=r.dtype).reshape(s, s, *(1,) * len(columns)), (s, s, *columns))
    one, j = jnp.ones(columns, r.dtype), jnp.zeros(columns, jnp.int32)
    return Work(jnp.zeros_like(r), r, P, zero, zero, C, one, j, jnp.ones(columns, bool))


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, P, U, G, C, omega, j, first = work
    s = P.shape[0]
    k = lax.reduce_max(j, [*range(j.ndim)]) % (s + 1)  # every column that still moves is at the same step
    inside = k < s  # else the step that enters the next space
    f = space.sum(_onto(P, r))  # a recursion would keep the rounding errors of a cycle's largest residual
    c, scale = _within(C, f, omega, k)
    u = _combined(U, c) + scale * M(r - _combined(G, c))
    g = A(u)
    h = space.sum(_onto(P, g))
    c, h = _apart(C, h, k)
    u, g = u - _combined(U, c), g - _combined(G, c)
    rr, gg, along = space.dot(r, r), space.dot(g, g), space.inner_product(g, r)
    length, omega, h, code = _ended(k, f, h, omega, rr, gg, along, first)
    slot = jnp.where(inside, k, s)  # s is dropped
    U, G, C = U.at[slot].set(u, mode="drop"), G.at[slot].set(g, mode="drop"), C.at[:, slot].set(h, mode="drop")
    x, r = x + length * u, r - length * g
    return Work(x, r, P, U, G, C, omega, j + 1, jnp.zeros_like(first)), space.norm(r), code


@one_kernel
def _within(C: Array, f: Array, omega: Array, k: Array) -> tuple[Array, Array]:
    """The combination of old directions that lies within the space, and the factor of M·r."""
    s = C.shape[0]
    return _substituted(C, f, jnp.arange(s) >= k)[0], jnp.where(k < s, omega, 1)


@one_kernel
def _apart(C: Array, h: Array, k: Array) -> tuple[Array, Array]:
    """The combination that makes A·u orthogonal to the shadows before k, and h without it."""
    s = C.shape[0]
    return _substituted(C, h, (jnp.arange(s) < k) & (k < s))


@one_kernel
def _ended(k: Array, f: Array, h: Array, omega: Array, rr: Array, gg: Array, along: Array, first: Array) -> Any:
    """The length of the step, the next ω, column k of C, and RUNNING or the code of a step that is not taken."""
    s = f.shape[0]
    inside, last = k < s, jnp.minimum(k, s - 1)
    r_norm, g_norm = jnp.sqrt(rr), jnp.sqrt(gg)
    cosine = ratio(jnp.abs(along), r_norm * g_norm)
    phase = jnp.where(cosine > 0, ratio(along, jnp.abs(along)), 1)
    omega_new = phase * jnp.maximum(cosine, ANGLE) * ratio(r_norm, g_norm)
    length = jnp.where(inside, ratio(f[last], h[last]), omega_new)
    lost = jnp.where(inside, jnp.abs(h[last]), g_norm) <= jnp.finfo(h.dtype).eps * g_norm
    code = status_of(
        (~jnp.isfinite(g_norm) | ~jnp.isfinite(length), Status.NON_FINITE),
        (lost & first, Status.BREAKDOWN),
        (lost, RESTART),
    )
    above = jnp.arange(s).reshape(s, *(1,) * (h.ndim - 1)) < k
    return length, jnp.where(inside, omega, omega_new), jnp.where(above, 0, h), code


def _substituted(C: Array, f: Array, live: Array) -> tuple[Array, Array]:
    """c with C·c = f in the `live` rows and columns, which are the first or the last, else 0; and f − C·c."""
    c = []
    for i in range(f.shape[0]):
        c.append(jnp.where(live[i], ratio(f[i], C[i, i]), 0))
        f = f - C[:, i] * c[-1]
    return jnp.stack(c), f


def _combined(U: Array, c: Array) -> Array:
    return linear_combination(U, c) if U.ndim == 2 else jnp.sum(U * c[:, None], axis=0)


def _onto(P: Array, v: Array) -> Array:
    return jnp.einsum("in,n...->i...", P.reshape(P.shape[:2]).astype(v.dtype), v, precision=EXACT)
