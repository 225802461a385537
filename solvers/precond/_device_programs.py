"""The programs of `_device_hierarchy`, over matrices in CSR, float64, that are padded to few sizes.

Padding is past the last row pointer, and zero: no product reads it. Rows of padding are empty.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import CsrArrays, Target
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.matrix import build
from jaxsparse_fmt.kernels.layout.address import expand_ptr, put, row_pointers, take
from solvers.core.space import HERE
from solvers.precond._hierarchy import DAMPING, LANCZOS_STEPS
from solvers.precond._inverse import NULL

ROOT = np.uint32(2**32 - 1)
BLOCKS = np.array([2, 3, 5], np.int32)  # a block of 4 or 6 holds blocks of 2
SECOND = 3  # neighbours left over that a root of the second pass has, at least


class Known(NamedTuple):
    diagonal: Array  # [n]
    inverse: Array  # [n] of the diagonal
    sums: Array  # [n] of the absolute values in each row
    unit: Array  # [n] sum of the absolute values that add up to each diagonal entry
    scalars: Array


class Found(NamedTuple):
    terms: tuple[Array, Array]  # keys and values of P's entries, as of `multiplied`
    below: Array  # [n] norm of the near-null vector on each aggregate, in the first `count`
    scalars: Array


def csr(arrays: Any, shape: tuple[int, int]) -> Any:
    return build(CsrArrays(*arrays, shape=shape), "csr", Target(np.dtype(np.float64)))


def _live(A: Any) -> Array:
    """Which entries are not padding."""
    return lax.iota(np.int32, A.nnz) < A.csr_arrays().indptr[-1]


def _pointers(A: Any) -> Array:
    """A's row pointers, those of the empty rows at the end out of range, where atomics would meet at one place."""
    ptr = A.csr_arrays().indptr
    return jnp.where(ptr < ptr[-1], ptr, A.nnz)


@functools.partial(jax.jit, static_argnums=(0, 1))
def padded(n: int, nnz: int, A: Any, near: Array | None) -> tuple[Any, Array, Array]:
    """A padded to n rows and nnz entries; `near`, of ones if None, padded by its first entry; and zeros [n]."""

    def fitted(a: Array, size: int, fill: Any = 0) -> Array:
        return jnp.pad(a, (0, size - a.shape[0]), constant_values=fill)

    data, col, ptr = A.csr_arrays()
    near = jnp.ones(A.shape[0]) if near is None else near
    arrays = fitted(data.astype(np.float64), nnz), fitted(col, nnz), fitted(ptr, n + 1, ptr[-1])
    return csr(arrays, (n, n)), fitted(near, n, near[0]), jnp.zeros(n)


@functools.partial(jax.jit, static_argnums=(0, 1))
def cut(shape: tuple[int, int], nnz: int, S: Any, *vectors: Array) -> list[Any]:
    """Without padding."""
    data, col, ptr = S.csr_arrays()
    return [csr((data[:nnz], col[:nnz], ptr[: shape[0] + 1]), shape), *(v[: shape[0]] for v in vectors)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def trimmed(n: int, count: int, nnz: int, inside: int, A: Any, R: Any, P: Any, inverse: Array) -> list[Any]:
    A, inverse = cut((n, n), nnz, A, inverse)
    return [A, *cut((count, n), inside, R), *cut((n, count), inside, P), inverse]


@jax.jit
def measured(A: Any, near: Array, unit: Array, n: Array) -> Known:
    """What decides on a level of n rows.

    `scalars` holds ‖D⁻¹A‖∞; whether some inverse is negative; the largest absolute values of A and of the inverse;
    whether A is symmetric and finite without a zero on its diagonal; whether A may consist of blocks of each of
    `BLOCKS`; α and β of Lanczos' process as in `_hierarchy.extremes`.

    Args:
      unit: zeros stand for the absolute diagonal.
    """
    (data, col, ptr), size, live = A.csr_arrays(), A.shape[0], _live(A)
    row = expand_ptr(jnp, _pointers(A), A.nnz)
    d = put("set", jnp.zeros(size), row, data, (row == col) & live, unique_indices=True)
    unit = jnp.where(jnp.any(unit > 0), unit, jnp.abs(d))
    regular = jnp.abs(d) > NULL * unit
    inverse = jnp.where(regular, 1 / jnp.where(regular, d, 1), 0)
    sums = A.with_data(jnp.abs(data)) @ jnp.ones(size)
    root, largest = jnp.sqrt(jnp.abs(inverse)), jnp.max(jnp.abs(data))
    noise = HERE.probe(d)

    across = put("add", jnp.zeros(size), col, data * take(noise, row), live)
    # Comparisons find a NaN, and sums of absolute values pass it on; the largest of numbers need not.
    symmetric = jnp.abs(A @ noise - across) <= 1e-12 * largest + 1e-15 * jnp.max(sums)
    divisible = (d != 0) | (lax.iota(np.int32, size) >= n)
    usual = jnp.all(symmetric & divisible & jnp.isfinite(sums) & jnp.isfinite(near))
    # lax.rem for row lengths, which are not negative: `%` compiles twice the operations.
    lengths = jnp.append(jnp.diff(ptr), n.astype(np.int32))
    divides = jnp.all(lax.rem(*jnp.broadcast_arrays(lengths, BLOCKS[:, None])) == 0, axis=1)

    def normalized(w: Array) -> tuple[Array, Array]:
        size = jnp.sqrt(jnp.vdot(w, w))
        return w / jnp.where(size > 0, size, 1), size

    def step(state: tuple[Array, Array, Array], _: None) -> Any:
        before, v, beta = state
        w = root * (A @ (root * v)) - beta * before
        alpha = jnp.vdot(v, w)
        after, beta = normalized(w - alpha * v)
        return (v, after, beta), (alpha, beta)

    start = normalized(noise * (root > 0))[0]
    _, (alphas, betas) = lax.scan(step, (jnp.zeros(size), start, jnp.zeros(())), length=LANCZOS_STEPS)
    most = jnp.max(jnp.abs(inverse) * sums), jnp.any(inverse < 0), largest, jnp.max(jnp.abs(inverse))
    return Known(d, inverse, sums, unit, jnp.concatenate([_stacked(*most, usual, *divides), alphas, betas]))


def _stacked(*scalars: Array) -> Array:
    """In one array, since a transfer to the host takes as long for one scalar."""
    return jnp.stack([x.astype(np.float64) for x in scalars])


@jax.jit
def is_blocks(A: Any, b: Array) -> Array:
    """Whether each entry stands next to the first of its b columns, and below the first of its b rows."""
    (_, col, ptr), live, number = A.csr_arrays(), _live(A), lax.iota(np.int32, A.nnz)
    row = expand_ptr(jnp, _pointers(A), A.nnz)
    k = number - take(ptr, row)
    above = jnp.minimum(take(ptr, row - row % b) + k, A.nnz - 1)
    dense = (take(col, number - k % b) + k % b == col) & (col % b == k % b) & (take(col, above) == col)
    return jnp.all(dense | ~live)


@jax.jit
def aggregated(A: Any, known: Known, theta: Array) -> tuple[Array, Array]:
    """The aggregate of each point, as of `aggregates`; the number of them, and of coupled points that are in none."""
    (data, col, _), n = A.csr_arrays(), A.shape[0]
    row = expand_ptr(jnp, _pointers(A), A.nnz)
    agg, count = aggregates(row, col, _strong(A, row, known, theta), jnp.abs(data), n)
    left = jnp.sum((agg < 0) & (known.sums > 1.5 * jnp.abs(known.diagonal)))
    return agg, _stacked(count, left)


def _strong(A: Any, row: Array, known: Known, theta: Array) -> Array:
    """Strong couplings with others."""
    (data, col, _), root = A.csr_arrays(), jnp.sqrt(jnp.abs(known.diagonal))
    return (jnp.abs(data) >= theta * take(root, row) * take(root, col)) & (row != col) & _live(A)


@jax.jit
def prolonged(A: Any, near: Array, known: Known, agg: Array, count: Array, theta: Array, upper: Array) -> Found:
    """P from aggregates; `scalars` are those of `summed`."""
    (data, col, _), n, live, inverse = A.csr_arrays(), A.shape[0], _live(A), known.inverse
    row, number = expand_ptr(jnp, _pointers(A), A.nnz), lax.iota(np.int32, n)
    diagonal = (row == col) & live
    # A' is A itself unless the near-null vector is the same at all points.
    kept = (_strong(A, row, known, theta) | diagonal | jnp.any(near != near[0])) & live
    weak = A.with_data(jnp.where(kept, 0, data)) @ jnp.ones(n)
    scale = DAMPING / upper * inverse
    step = jnp.where(kept, -take(scale, row) * data, 0) + jnp.where(diagonal, 1 - take(scale * weak, row), 0)
    # The columns of T are the normalized parts of the near-null vector, whose squares are added in the points' order.
    column = jnp.where(agg >= 0, agg, n)
    order = entry_index.sorted_by(column, number)
    ptr = row_pointers(take(column, order), n)
    below = jnp.sqrt(csr((take(near, order) ** 2, order, ptr), (n, n)) @ jnp.ones(n))
    values = near / take(jnp.where(below > 0, below, 1), jnp.minimum(column, n - 1))
    inside = kept & (take(agg, col) >= 0)
    key, terms, found = summed(inside, row, take(agg, col), step * take(values, col), (n, n), A)
    return Found((key, terms), jnp.where(number < count, below, below[0]), found)


def aggregates(
    row: Array,  # [nnz] rising
    col: Array,  # [nnz]
    strong: Array,  # [nnz] couplings with others
    size: Array,  # [nnz]
    n: int,
) -> tuple[Array, Array]:
    """The aggregate of each point, -1 without strong neighbours, and the number of aggregates.

    A root forms an aggregate with its strong neighbours. Points with strong neighbours become roots by falling
    priority, unless they share a neighbour with an earlier root: a maximal independent set of distance two. A second
    such set among the points left over, of those with `SECOND` neighbours there, keeps aggregates as small as a greedy
    pass in the order of a grid (Kelley and Rajamanickam 2022). Each remaining point joins the neighbour with the
    strongest coupling, the first of equal ones.
    """
    number, priority = lax.iota(np.int32, n), _priorities(lax.iota(np.uint32, n))

    def roots(inside: Array, eligible: Array) -> Array:
        """A maximal set of eligible points of which no two share a neighbour, where each is its own neighbour too."""

        def step(key: Array) -> Array:  # 0 for points that are out, `ROOT` for those that are in
            of_row = take(key, row)  # each entry that is left out saves an atomic
            nearest = put("max", key, col, of_row, inside & (of_row > 0))
            found = put("max", nearest, row, take(nearest, col), inside & (of_row > 0) & (of_row < ROOT))
            decided = jnp.where(found == ROOT, 0, jnp.where(found == key, ROOT, key))
            return jnp.where((key > 0) & (key < ROOT), decided, key)

        start = jnp.where(eligible, priority, 0)
        return lax.while_loop(lambda key: jnp.any((key > 0) & (key < ROOT)), step, start) == ROOT

    def covered(root_of: Array, least: Array) -> tuple[Array, None]:
        inside = strong & take(root_of < 0, row) & take(root_of < 0, col)
        others = put("add", jnp.zeros(n, np.int32), row, 1, inside)
        new = roots(inside, (root_of < 0) & (others >= least))
        return put("max", jnp.where(new, number, root_of), col, row, inside & take(new, row)), None

    root_of, _ = lax.scan(covered, jnp.full(n, -1, np.int32), jnp.array([1, SECOND]))
    is_root = root_of == number
    joins = strong & take(root_of < 0, row) & take(root_of >= 0, col)
    strongest = put("max", jnp.zeros(n), row, size, joins)
    first = put("max", jnp.full(n, -1, np.int32), row, n - 1 - col, joins & (size == take(strongest, row)))
    joined = jnp.where(first >= 0, take(root_of, n - 1 - jnp.maximum(first, 0)), root_of)
    agg = jnp.where(joined < 0, -1, take(jnp.cumsum(is_root, dtype=np.int32) - 1, jnp.maximum(joined, 0)))
    return agg, jnp.sum(is_root)


def _priorities(number: Array) -> Array:
    """A priority for each number [n] uint32: all differ, and none is 0 or `ROOT` below 2³¹."""
    h = number + np.uint32(2**30)  # the finalizer of MurmurHash3, a bijection
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


@functools.partial(jax.jit, static_argnums=3)
def multiplied(A: Any, B: Any, then: Any, room: int) -> tuple[Array, Array, Array]:
    a, b = A.csr_arrays(), B.csr_arrays()
    row, col, left, right = on_device.expanded(a, b, room)
    terms = take(a.data, left) * take(b.data, right)
    return summed(row < A.shape[0], row, col, terms, (A.shape[0], B.shape[1]), then)


def summed(
    inside: Array, row: Array, col: Array, terms: Array, shape: tuple[int, int], then: Any
) -> tuple[Array, Array, Array]:
    """Rising keys of the entries that the terms `inside` add up to, and the terms in that order, others last.

    And the number of these entries, and that of the products of two entries in then.T @ them.
    """
    row, terms, padded = jnp.where(inside, row, shape[0]), jnp.where(inside, terms, 0), (shape[0] + 1, shape[1])
    key, terms, _ = on_device.sorted_keys(row, jnp.where(inside, col, 0), padded, terms)
    row = on_device.coordinates(key, padded)[0]
    new, lengths = on_device.flags(key) & (row < shape[0]), jnp.diff(then.csr_arrays().indptr)
    uses = jnp.where(new, take(lengths, jnp.minimum(row, shape[0] - 1)), 0)
    return key, terms, jnp.stack([jnp.sum(new, dtype=np.float64), jnp.sum(uses, dtype=np.float64)])


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def compressed(key: Array, terms: Array, n_cols: int, shape: tuple[int, int], room: int) -> Any:
    """The matrix of `summed`, whose keys are those of `n_cols` columns."""
    rows, padded, end = shape[0], (shape[0] + 1, n_cols), key.shape[0]
    live = on_device.coordinates(key, padded)[0] < rows
    new, ends = on_device.flags(key) & live, jnp.sum(live, dtype=np.int32)
    number = jnp.cumsum(new, dtype=np.int32) - 1
    first = put("set", jnp.full(room + 1, ends), number, lax.iota(np.int32, end), new, unique_indices=True)
    row, col = on_device.coordinates(take(key, jnp.minimum(first[:-1], end - 1)), padded)
    ptr = row_pointers(jnp.where(first[:-1] < ends, row, rows), rows)
    values = csr((terms, jnp.zeros(end, np.int32), first), (room, 1)) @ jnp.ones(1)
    return csr((values, col, ptr), shape)


@jax.jit
def transposed(P: Any, below: Array, unit: Array) -> tuple[Any, Array, Array]:
    """R = Pᵀ; the near-null vector of R·A·P, and its `Known.unit`."""
    (data, col, _), m = P.csr_arrays(), P.shape[1]
    columns, _ = entry_index.transposed(CsrArrays(data, jnp.where(_live(P), col, m), _pointers(P), P.shape))
    R = csr(columns, P.shape[::-1])
    return R, below[:m], R.with_data(R.data**2) @ unit
