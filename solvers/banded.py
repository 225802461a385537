"""Banded and block tridiagonal systems, one or many, by elimination with row interchanges on the device.

Both are block banded: `bands` [w, n, m, m], w = lower + upper + 1, has block (I, J) of A at bands[upper + I − J, J];
places outside A are not read. A native kernel for CPUs eliminates column after column. Elsewhere block rows are joined
to panels of M ≥ max(lower, upper)·m rows, so that A is block tridiagonal: a scan over the n·m/M panels factors
[2·M, 2·M], with interchanges among all rows that reach the panel's columns, and a second scan substitutes. Tridiagonal
systems go to LAPACK or cuSPARSE. Not all of cuSPARSE's methods interchange rows, so systems whose residuals are above
rounding are solved by panels.
"""

import functools
import string
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.interpreters import batching

from jaxsparse_fmt._arguments import as_floating, whole_number
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.core import form, mesh_axes
from jaxsparse_fmt.core.vector_passes import platform_primitive
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.backends import selection

LEAST_PANEL = 8  # rows; a step of a scan on a GPU takes as long for 8 as for 1
ROUNDING = 32  # times eps: the largest residual of a tridiagonal solve that counts as rounding


@standard_promotion
def solve_banded(l_and_u: Sequence[int], ab: Any, b: Any) -> Array:
    """Solves A·x = b for banded A, as SciPy's function of this name; one system or many. Differentiable to any order.

    Elimination interchanges rows, as LAPACK's gbsv, so A may have any scale and need not be dominant. It runs on the
    device of the arrays, in jit, vmap and shard_map too, without a call of the host.

    Args:
      l_and_u: (lower, upper), the numbers of diagonals below and above the main one.
      ab: [..., lower + upper + 1, n], A[i, j] at ab[upper + i - j, j]; places outside A are not read.
      b: [..., n] or [..., n, k]. It has vectors [..., n] if it has one axis, or one less than ab. The leading axes of
        ab and b are broadcast against each other; one A serves all its b with one elimination.

    Returns:
      x, like b with the leading axes of both, in the dtype to which ab and b promote. Outside jit too, a system whose A
      is singular (a pivot is 0) or not finite has NaN for x and its derivatives; the others are not touched.

    Raises:
      ValueError: a shape does not fit. TypeError: not numeric, or numbers of diagonals that are not whole.

    Examples:
      >>> ab = np.array([[0.0, -1, -1], [2, 2, 2], [-1, -1, 0]])
      >>> js.solve_banded((1, 1), ab, np.ones(3))
      Array([1.5, 2. , 1.5], dtype=float64)
    """
    if not isinstance(l_and_u, tuple | list) or len(l_and_u) != 2:
        raise TypeError(f"l_and_u must be a pair of numbers of diagonals, (lower, upper); got {l_and_u!r}")
    lower, upper = whole_number("lower", l_and_u[0]), whole_number("upper", l_and_u[1])
    ab, b = as_floating(ab, "ab"), as_floating(b, "b")
    if ab.ndim < 2 or ab.shape[-2] != lower + upper + 1:
        wanted = f"(..., {lower + upper + 1}, n) for {lower} diagonals below and {upper} above the main one"
        raise ValueError(f"ab must be of shape {wanted}; got {ab.shape}")
    return _solution(ab[..., None, None], lower, upper, b, (ab.shape[-1],), ab.ndim - 2)


@standard_promotion
def solve_block_tridiagonal(lower: Any, diagonal: Any, upper: Any, b: Any) -> Array:
    """Solves A·x = b for block tridiagonal A, one system or many. Differentiable to any order.

    Rows are interchanged among all that reach a column, also between blocks, so that blocks on the diagonal may be
    singular. Otherwise as `solve_banded`.

    Args:
      lower, diagonal, upper: [..., n, m, m], block row i of A has lower[i] at column i - 1, diagonal[i] at column i and
        upper[i] at column i + 1. lower[0] and upper[n - 1] are not read.
      b: [..., n, m] or [..., n, m, k]. It has vectors [..., n, m] if it has two axes, or one less than the blocks. All
        leading axes are broadcast against each other.

    Returns:
      x, like b with the leading axes of all; NaN of a system whose A is singular or not finite, as are its derivatives.

    Raises:
      ValueError: a shape does not fit. TypeError: not numeric.

    Examples:
      >>> I = np.broadcast_to(np.eye(2), (3, 2, 2))
      >>> js.solve_block_tridiagonal(-I, 2 * I, -I, np.ones((3, 2)))
      Array([[1.5, 1.5],
             [2. , 2. ],
             [1.5, 1.5]], dtype=float64)
    """
    named = {"lower": lower, "diagonal": diagonal, "upper": upper}
    blocks, b = [as_floating(a, name) for name, a in named.items()], as_floating(b, "b")
    given = ", ".join(str(a.shape) for a in blocks)
    if any(a.ndim < 3 or a.shape[-3:] != blocks[1].shape[-3:] or a.shape[-1] != a.shape[-2] for a in blocks):
        raise ValueError(f"lower, diagonal and upper must all be of shape (..., n, m, m); got {given}")
    leading = _broadcast("lower, diagonal and upper", *(a.shape[:-3] for a in blocks))
    low, d, up = (jnp.broadcast_to(a, (*leading, *a.shape[-3:])) for a in blocks)
    bands = jnp.stack([jnp.roll(up, 1, -3), d, jnp.roll(low, -1, -3)], -4)
    return _solution(bands, 1, 1, b, d.shape[-3:-1], len(leading))


def _solution(bands: Array, lower: int, upper: int, b: Array, core: tuple[int, ...], leading: int) -> Array:
    """x like b, which has vectors [..., *core] if its axes are those of one or of one for each A, and else columns."""
    is_vector = b.ndim in (len(core), leading + len(core))
    end = max(b.ndim - len(core) - (not is_vector), 0)
    before, own = b.shape[:end], b.shape[end:]
    if own[: len(core)] != core:
        sizes, kind = ", ".join(map(str, core)), "vectors" if is_vector else "columns"
        raise ValueError(
            f"b must be of shape (..., {sizes}) or (..., {sizes}, k); got {b.shape}, read as {kind}; pass many vectors "
            "for one A as its columns, and one array of columns for many A as b[None]"
        )
    shape = *_broadcast("A and b", bands.shape[:-4], before), *own
    columns = b.reshape(*before, *bands.shape[-3:-1], *(own[len(core) :] or (1,)))
    return solved(bands, lower, upper, columns).reshape(shape)


def _broadcast(what: str, *leading: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return jnp.broadcast_shapes(*leading)
    except ValueError:
        given = ", ".join(map(str, leading))
        raise ValueError(f"the leading axes of {what} cannot be broadcast against each other: {given}") from None


@functools.partial(jax.jit, static_argnames=("lower", "upper"))
def solved(
    bands: Array,  # [..., w, n, m, m]
    lower: int,
    upper: int,
    b: Array,  # [..., n, m, k], whose leading axes are broadcast against those of bands
) -> Array:
    """x of A·x = b, [..., n, m, k]. Differentiable to any order."""
    dtype = jnp.result_type(bands, b)
    wide = jnp.promote_types(dtype, jnp.float32)

    @functools.partial(jnp.vectorize, signature="(w,n,m,m),(n,m,k)->(n,m,k)")
    def each(bands: Array, b: Array) -> Array:
        def inverse(is_transposed: bool, _: Any, r: Array) -> Array:
            columns = r.reshape(1, r.shape[0] * r.shape[1], r.shape[2])
            return _bind(bands[None], columns, kind=(lower, upper, is_transposed)).reshape(r.shape)

        ways = functools.partial(inverse, False), functools.partial(inverse, True)
        return lax.custom_linear_solve(functools.partial(product, bands, upper), b, ways[0], ways[1])

    # Over explicit mesh axes every device solves its own systems. An axis of size 1 ("_") is broadcast.
    leading = bands.shape[:-4], b.shape[:-3]
    letters = string.ascii_letters[: max(map(len, leading))]
    labels = ["".join("_" if k == 1 else c for c, k in zip(letters[-len(a) :], a, strict=False)) for a in leading]
    operands = bands.astype(wide), b.astype(wide)
    return mesh_axes.by_pieces(each, operands, (labels[0] + "....", labels[1] + "..."), letters + "...").astype(dtype)


def product(bands: Array, upper: int, x: Array) -> Array:
    """A·x, for x of [..., n, m, k]."""
    terms = jnp.sum(bands[..., None] * x[..., None, :, None, :, :], -2)  # [..., w, n, m, k]
    return jnp.sum(_rows_aligned(terms, upper), -4)


def transposed_bands(bands: Array, upper: int) -> Array:
    """The bands of Aᵀ, which has `upper` block diagonals below the main one."""
    return jnp.flip(_rows_aligned(bands, upper), -4).swapaxes(-1, -2)


def _rows_aligned(a: Array, upper: int) -> Array:
    """What lies at [d, J] put to [d, I], its block row I = J + d − upper; zeros where a row has no such block."""
    (*leading, w, n, p, q), more = a.shape, a.ndim - 4
    # Row d of an array [w, n + w], read as [w, n + w − 1], moves by d to the right.
    padded = jnp.pad(a, [(0, 0)] * (more + 1) + [(0, w), (0, 0), (0, 0)]).reshape(*leading, w * (n + w), p, q)
    return padded[..., : w * (n + w - 1), :, :].reshape(*leading, w, n + w - 1, p, q)[..., upper : upper + n, :, :]


# ------------------------------------------------------------------------------------------------------- the primitive


def _bind(bands: Array, b: Array, **static: Any) -> Array:
    if 0 in b.shape:
        return b
    return banded_p.bind(*mesh_axes.varying((bands, b)), backend=selection.in_use.value, **static)[0]


def _by_backend(
    bands: Array,  # [s, w, n, m, m]
    b: Array,  # [s, n·m, k]
    *,
    backend: str,
    kind: tuple[int, int, bool],  # lower, upper, and whether Aᵀ·x = b is solved
) -> Array:
    lower, upper, is_transposed = kind
    is_tridiagonal = (lower, upper, bands.shape[-1]) == (1, 1, 1)
    if backend == "numba" and not is_tridiagonal:
        bandwidths = (upper, lower) if is_transposed else (lower, upper)
        if (x := spmv_cpu.of_bands(bands, b, *bandwidths, is_transposed)) is not None:
            return x
    if is_transposed:
        bands, lower, upper = transposed_bands(bands, upper), upper, lower
    return _tridiagonal(bands, b, backend == "numba") if is_tridiagonal else _by_panels(bands, b, lower, upper)


def tridiagonal(
    bands: Array,  # [s, 3, n]
    b: Array,  # [s, n, k]
) -> Array:
    """x by `lax.linalg.tridiagonal_solve`, which interchanges rows in LAPACK, and in cuSPARSE not always."""
    return lax.linalg.tridiagonal_solve(_shifted(bands[:, 2], 1), bands[:, 1], _shifted(bands[:, 0], -1), b)


def _shifted(a: Array, k: int) -> Array:
    """[s, n, ...], what was one place before (k = 1) or after (−1), and a zero."""
    a, padding = (a[:, :-1], (1, 0)) if k > 0 else (a[:, 1:], (0, 1))
    return jnp.pad(a, ((0, 0), padding, *(((0, 0),) * (a.ndim - 2))))


def _tridiagonal(bands: Array, b: Array, interchanges: bool) -> Array:
    three = bands[..., 0, 0]
    x = tridiagonal(three, b)
    if interchanges:
        read = three[:, 0, 1:], three[:, 1], three[:, 2, :-1]  # places outside A are not
        finite = functools.reduce(jnp.logical_and, (jnp.all(jnp.isfinite(a), 1) for a in read))
        return jnp.where(finite[:, None, None], x, jnp.nan)
    up, d, low = (three[:, i, :, None] for i in range(3))
    terms = d * x, _shifted(up * x, -1), _shifted(low * x, 1)  # whose sum is A·x
    r, sizes = jnp.abs(sum(terms) - b), sum(map(jnp.abs, (*terms, b)))
    r, sizes = jnp.max(r, 1), jnp.max(sizes, 1)
    good = jnp.all(r <= ROUNDING * jnp.finfo(x.dtype).eps * sizes, 1)[:, None, None]
    return lax.cond(jnp.all(good), lambda: x, lambda: jnp.where(good, x, _by_panels(bands, b, 1, 1)))


def _by_panels(bands: Array, b: Array, lower: int, upper: int) -> Array:
    (s, w, n, m, _), k = bands.shape, b.shape[-1]
    q = max(lower, upper, -(-LEAST_PANEL // m))
    M, count = q * m, -(-n // q)
    row, at = jnp.arange(count * q)[:, None], jnp.arange(3 * q)  # block rows; block columns from the panel before on
    column = (row // q - 1) * q + at
    d = upper + row - column
    is_block = (row < n) & (column >= 0) & (column < n) & (d >= 0) & (d < w)
    blocks = bands[:, jnp.clip(d, 0, w - 1), jnp.clip(column, 0, n - 1)]
    rows = jnp.where(is_block[..., None, None], blocks, 0)
    rows += jnp.where((row >= n) & (row == column), 1, 0)[..., None, None] * jnp.eye(m, dtype=rows.dtype)
    rows = rows.reshape(s, count, q, 3 * q, m, m).transpose(1, 0, 2, 4, 3, 5).reshape(count, s, M, 3 * M)
    rhs = jnp.pad(b, ((0, 0), (0, count * M - n * m), (0, 0))).reshape(s, count, M, k).swapaxes(0, 1)
    rows = jnp.concatenate([rows, rhs], -1)  # [count, s, M, 3·M + k], columns of the panel before, its own, the next

    def eliminated(left: Array, below: Array) -> tuple[Array, Array]:
        """What is left of the rows [s, 2·M, ...] that reach a panel's columns, without these; the panel's rows of U."""
        padded = [left[..., : 2 * M], jnp.zeros_like(left[..., :M]), left[..., 2 * M :]]
        window = jnp.concatenate([jnp.concatenate(padded, -1), below], -2)
        lu, _, order = lax.linalg.lu(window[..., : 2 * M])  # square, since cuBLAS factors many of these at once
        window = jnp.take_along_axis(window, order[..., None], -2)
        L, U = lu[..., :M], lu[..., :M, :M]
        top = _triangle(U, window[..., :M, M:], lower=True, unit_diagonal=True)
        rest = window[..., M:, M:] - jnp.matmul(L[..., M:, :], top, precision="highest")
        return rest, jnp.concatenate([U, top], -1)

    below = jnp.concatenate([rows[1:], jnp.zeros_like(rows[:1])])
    _, upper_rows = lax.scan(eliminated, rows[0, ..., M:], below)

    def substituted(after: Array, U: Array) -> tuple[Array, Array]:
        r = U[..., 3 * M :] - jnp.matmul(U[..., M : 3 * M], after, precision="highest")
        x = _triangle(U[..., :M], r)
        return jnp.concatenate([x, after[..., :M, :]], -2), x

    zeros = jnp.zeros_like(jnp.concatenate([rhs[0], rhs[0]], -2))
    _, x = lax.scan(substituted, zeros, upper_rows, reverse=True)
    pivots = jnp.diagonal(upper_rows, 0, -2, -1)[..., :M]
    regular = jnp.all(jnp.isfinite(upper_rows[..., : 3 * M]), (0, 2, 3)) & jnp.all(pivots != 0, (0, 2))
    return jnp.where(regular[:, None, None], x.swapaxes(0, 1).reshape(s, count * M, k)[:, : n * m], jnp.nan)


_triangle = functools.partial(lax.linalg.triangular_solve, left_side=True)
banded_p = platform_primitive("banded_solve", _by_backend)


@standard_promotion
def _batch(operands: Any, dims: Any, *, backend: str, **static: Any) -> Any:
    del backend
    (bands, b), (bands_dim, b_dim) = operands, dims
    columns = bands_dim is None  # one A for many b: more columns of one system
    x = form.batched(functools.partial(_bind, **static), bands, b, bands_dim, b_dim, columns)
    return [x], [2 if columns else 0]


batching.primitive_batchers[banded_p] = _batch
