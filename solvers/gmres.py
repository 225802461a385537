"""Restarted GMRES, flexible or not (Saad and Schultz 1986; Saad 1993; Saad, Iterative Methods, Algorithms 6.9 and 9.6).

Preconditioned from the right, it minimises the true residual. Classical Gram-Schmidt, applied twice
(Giraud et al. 2005: twice is enough), makes Arnoldi's vectors orthogonal by products with the whole basis: two
reductions for each, whereas the modified process takes one for every vector of the basis.

Apart from the product and M, step j of a cycle moves about 4·j vectors of n, with j rounded up to a power of two, and
all of a basis below a megabyte. The memory is `restart` + 1 vectors, twice that when flexible. One more product, for
the true residual, ends a cycle.
"""

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt._tracing import PROGRAMS
from solvers.core import arguments
from solvers.core.iterate import Method, holding
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.core.space import Map, Space
from solvers.core.stopping import FULL, status_of
from solvers.core.vectors import linear_combination, products, ratio
from solvers.solution import Solution, Status

CACHED = 2**20  # bytes of a basis that lies in a cache: to read all of it costs less than to compile parts


class Work(NamedTuple):
    """Vectors and scalars between steps, m = restart + 1; for several systems all have one more axis, the last.

    Row by row, rotations make the matrix H of the orthogonalisation triangular: Q·H = R. Row j of Q is unfinished.
    """

    columns_first = "V", "Z", "Q", "columns"  # of these fields that axis is the first

    V: Array  # [m, n] orthonormal basis of the Krylov space
    Z: Array | None  # [m, n] M·V, if M changes
    Q: Array  # [m, m] the rotations, multiplied; zero from row j on
    row: Array  # [m] row j of Q before its rotation
    first: Array  # row[0]; |first|·‖r‖ is the residual norm
    columns: Array  # [m, m] the columns of R above the diagonal, each divided by its diagonal number
    diagonal: Array  # [m] of R; 1 from place j on
    most: Array  # the largest number of R
    g: Array  # [m] the column Q[:, 0]
    j: Array  # steps done
    size: Array  # ‖r‖ of the residual that the cycle started from


@solver()
def gmres(
    A: Any, b: Any, x0: Any = None, *, restart: int = 30, flexible: bool = False, **settings: Unpack[Keywords]
) -> Solution:
    """Solves A·x = b for any square A; the residual never grows from one cycle to the next.

    If a cycle gains nothing, the next one would repeat it, and the solve ends with the status STAGNATION. Then a larger
    restart, or, for a symmetric A, `cg` or `minres` with the same M may get further.

    Args:
      M: an approximation of A⁻¹: anything with `@`, or a function r -> M·r.
      restart: steps of a cycle; with a smaller restart, a step takes less memory and time, and the solve takes more
        steps.
      flexible: allow an M that changes from step to step, such as an inner solve.

    Other arguments are those of `cg`; maxiter counts steps, not cycles.

    Returns:
      A `Solution`, differentiable as that of `cg`; a derivative solves with the transposes of A and M.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.

    Examples:
      >>> js.gmres(A, b, M=js.precond.ilu(A), rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    if not isinstance(flexible, bool):
        raise TypeError(f"flexible must be True or False; got {flexible!r}")
    n, numbers = arguments.unknowns(A, b), jax.tree.leaves(b)
    restart = min(arguments.int_at_least(restart, "restart", 1), n)
    vectors = (1 + flexible) * (restart + 1)
    arguments.check_free_memory(
        int(vectors * sum(map(np.size, numbers)) * jnp.result_type(*numbers, jnp.float32).itemsize * arguments.part(A)),
        f"restart={restart}: {vectors} vectors of {n} unknowns",
        "use a smaller restart, or bicgstab, which needs no more vectors with every step",
        functools.partial(arguments.memory.free, A, b),
    )
    return by_method(method(restart, flexible), A, b, x0, Settings(**settings))


@remembered(PROGRAMS, "methods with options")
def method(restart: int, flexible: bool = False) -> Method:
    start_ = functools.partial(start, restart=restart, flexible=flexible)
    return Method(start_, holding(step, scratch=Work.columns_first), iterate, self_adjoint=False, unrolled=1)


def start(space: Space, A: Map, M: Map, r: Array, squared: Array, last: None, *, restart: int, flexible: bool) -> Work:
    size, m = jnp.sqrt(squared), restart + 1
    zeros = jnp.zeros((m, *size.shape), r.dtype)
    none, square = (jnp.zeros((*size.shape, m, width), r.dtype) for width in (r.shape[0], m))
    zero = jnp.zeros_like(size)
    V, Z, j = _put(none, ratio(r, size), 0), none if flexible else None, zero.astype(jnp.int32)
    row, one = zeros + _is_place(0, zeros), 1 + zero.astype(r.dtype)
    return Work(V, Z, square, row, one, square, zeros + 1, zero, zeros, j, size)


def _is_place(t: Any, like: Array) -> Array:
    """Whether a place is t, for the places of `like`, [m] or [m, k]."""
    return (lax.iota(jnp.int32, like.shape[0]) == t).reshape(-1, *(1,) * (like.ndim - 1))


def _put(rows: Array, row: Array, place: Any) -> Array:
    """`rows` with row `place` replaced; an index past the end replaces the last row, which no result reads."""
    return lax.dynamic_update_index_in_dim(rows, row.T, place, rows.ndim - 2, allow_negative_indices=False)


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    V, Z, Q, row, first, columns, diagonal, most, g, j, size = work
    t, restart = lax.reduce_max(j, [*range(j.ndim)]), V.shape[-2] - 1  # every column that still moves is at step t
    v = lax.dynamic_index_in_dim(V, t, V.ndim - 2, keepdims=False, allow_negative_indices=False).T
    z = M(v)
    w, h = orthogonal(space, V, A(z), t)
    # The rotation of rows t and t + 1, of which the second is a row of the identity, makes `below` zero.
    below, length, cos, sin, new_first = _rotation(space.dot(w, w), jnp.sum(row * h, axis=0), first)
    V = _put(V, ratio(w, below), t + 1)
    Z = None if Z is None else _put(Z, z, t)
    here, following = _is_place(t, row), _is_place(t + 1, row)
    Q = _put(Q, jnp.conj(cos) * row + jnp.where(following, sin, 0), t)
    column = products(Q, h)  # of the new Q, which is then written in place; number t of it is read by nothing
    column = ratio(column, length)
    columns = _put(columns, jnp.where(jnp.isfinite(column), column, 0), t)  # times zero in a column that is over
    g, diagonal = jnp.where(here, jnp.conj(cos) * first, g), jnp.where(here, length.astype(V.dtype), diagonal)
    row = jnp.where(following, cos, 0) - sin * row
    largest = jnp.max(jnp.abs(column), axis=0)
    most, r_norm, code = _ended(restart, jnp.finfo(V.dtype).eps, length, most, largest, new_first, size, j)
    work = Work(V, Z, Q, row, new_first, columns, diagonal, most, g, j + 1, size)
    return work, r_norm, code


@one_kernel
def _rotation(squared: Array, a: Array, first: Array) -> tuple[Array, ...]:
    below = jnp.sqrt(squared)
    length = jnp.hypot(jnp.abs(a), below)
    cos, sin = ratio(a, length), ratio(below, length)
    return below, length, cos, sin, -sin * first


@functools.partial(one_kernel, statics=2)
def _ended(restart: int, eps: float, length, most, largest, first, size, j) -> tuple[Array, Array, Array]:
    """The largest number of R, the residual norm, and RUNNING, FULL or the code of a failure."""
    most = jnp.maximum(most, length * jnp.maximum(1, largest))
    code = status_of(
        (~jnp.isfinite(length), Status.NON_FINITE), (length <= eps * most, Status.BREAKDOWN), (j + 1 >= restart, FULL)
    )
    return most, jnp.abs(first) * size, code


@functools.partial(jax.jit, static_argnums=0)
def orthogonal(space: Space, V: Array, w: Array, t: Array) -> tuple[Array, Array]:
    """w without its parts along V[0], …, V[t], and those parts [m], by classical Gram-Schmidt, applied twice.

    It reads t + 1 vectors, rounded up to a power of two, or all that a cache holds; those after V[t] are zero.
    """
    m = V.shape[-2]
    sizes = [s for s in (4, 8, 16, 32, 64, 128, 256, 512) if s < m and V.nbytes > CACHED] + [m]

    def against(size: int, V: Array, w: Array) -> tuple[Array, Array]:
        V = V[..., :size, :]
        once = space.sum(jnp.conj(products(V, jnp.conj(w))))
        w = w - linear_combination(V, once)
        again = space.sum(jnp.conj(products(V, jnp.conj(w))))
        parts = jnp.pad(once + again, ((0, m - size), *((0, 0) for _ in once.shape[1:])))
        return w - linear_combination(V, again), parts

    which = sum(((t >= s).astype(jnp.int32) for s in sizes[:-1]), jnp.int32(0))
    return lax.switch(which, [functools.partial(against, size) for size in sizes], V, w)


def iterate(M: Map, work: Work) -> Array:
    """M·V·y, or Z·y if flexible, with the y that minimises the residual: R·y = Q·e₁·‖r‖."""
    R, g = jnp.swapaxes(work.columns, -1, -2), (work.g * work.size).T[..., None]
    y = jax.scipy.linalg.solve_triangular(R, g, unit_diagonal=True)[..., 0].T / work.diagonal
    if work.Z is not None:
        return linear_combination(work.Z, y)
    return M(linear_combination(work.V, y))
