"""The programs of `_device_hierarchy`, over matrices in CSR, float64, that are padded to few sizes.

Padding is past the last row pointer, and zero: no product reads it. Rows of padding are empty.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._types import CsrArrays, Target
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.matrix import build
from jaxsparse_fmt.kernels.layout.address import expand_ptr, put, row_pointers, take
from solvers.core.space import HERE
from solvers.precond._hierarchy import DAMPING, LANCZOS_STEPS
from solvers.precond._inverse import NULL


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Links:
    """How the programs of several devices meet, inside shard_map; None stands for those of one device.

    A device's vectors and rows have places for its own unknowns, and after them for its halo, whose rows are empty.

    Attributes:
      how: the exchange that fills the halo.
      count: of the device's own unknowns.
      own: places for them.
    """

    how: Any
    count: Array
    own: int = dataclasses.field(metadata={"static": True})
    axis: Any = dataclasses.field(metadata={"static": True})


def extended(v: Array, links: Links | None) -> Array:
    """v with the halo's part from its owners."""
    if links is None or links.how.send is None:
        return v
    from jaxsparse_fmt.distributed.halo import exchange

    return lax.dynamic_update_slice_in_dim(v, exchange(v[: links.own], links.how), links.own, 0)


def returned(v: Array, links: Links | None) -> Array:
    """v whose halo's part was added to those of its owners."""
    if links is None or links.how.send is None:
        return v
    from jaxsparse_fmt.distributed.halo import passed

    back = passed(v[links.own :][: links.how.width], links.how, True)
    return jnp.pad(put("add", v[: links.own], links.how.send, back), (0, v.shape[0] - links.own))


def total(x: Array, links: Links | None) -> Array:
    return x if links is None else lax.psum(x, links.axis)


def most(x: Array, links: Links | None) -> Array:
    return x if links is None else lax.pmax(x, links.axis)


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
def kept(n: int, nnz: int, P: Any, A: Any) -> tuple[Any, Array]:
    """P padded to n rows, n columns and nnz entries, and the number of products of two entries in A @ P."""
    P, *_ = padded(n, nnz, P, None)
    return P, on_device.n_products(A.csr_arrays(), P.csr_arrays())


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
def measured(A: Any, near: Array, unit: Array, n: Array, links: Links | None = None) -> Known:
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
    root, largest = jnp.sqrt(jnp.abs(inverse)), most(jnp.max(jnp.abs(data)), links)
    noise = HERE.probe(d)
    if links is not None:
        shift = lax.axis_index(links.axis) * np.float64(0.7)  # no two devices have the same noise
        noise = extended(jnp.where(lax.iota(np.int32, size) < n, noise * jnp.cos(1 + shift), 0), links)

    across = returned(put("add", jnp.zeros(size), col, data * take(noise, row), live), links)
    # Comparisons find a NaN, and sums of absolute values pass it on; the largest of numbers need not.
    symmetric = jnp.abs(A @ noise - across) <= 1e-12 * largest + 1e-15 * most(jnp.max(sums), links)
    divisible = (d != 0) | (lax.iota(np.int32, size) >= n)
    usual = 1 - most(1.0 - jnp.all(symmetric & divisible & jnp.isfinite(sums) & jnp.isfinite(near)), links)
    # lax.rem for row lengths, which are not negative: `%` compiles twice the operations.
    lengths = jnp.append(jnp.diff(ptr), n.astype(np.int32) if links is None else 0)
    divides = 1 - most(1.0 - jnp.all(lax.rem(*jnp.broadcast_arrays(lengths, BLOCKS[:, None])) == 0, axis=1), links)

    def normalized(w: Array) -> tuple[Array, Array]:
        size = jnp.sqrt(total(jnp.vdot(w, w), links))
        return w / jnp.where(size > 0, size, 1), size

    def step(state: tuple[Array, Array, Array], _: None) -> Any:
        before, v, beta = state
        w = root * (A @ extended(root * v, links)) - beta * before
        alpha = total(jnp.vdot(v, w), links)
        after, beta = normalized(w - alpha * v)
        return (v, after, beta), (alpha, beta)

    start = normalized(noise * (root > 0))[0]
    _, (alphas, betas) = lax.scan(step, (jnp.zeros(size), start, jnp.zeros(())), length=LANCZOS_STEPS)
    ends = jnp.max(jnp.abs(inverse) * sums), jnp.any(inverse < 0), largest, jnp.max(jnp.abs(inverse))
    scalars = jnp.concatenate([most(_stacked(*ends), links), _stacked(usual, *divides), alphas, betas])
    return Known(extended(d, links), inverse, sums, unit, scalars)


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
def aggregated(A: Any, known: Known, theta: Array, links: Links | None = None) -> tuple[Array, Array]:
    """The aggregate of each point, as of `aggregates`; the number of them, and of coupled points that are in none.

    A point that only those of other devices couple strongly is an aggregate by itself.
    """
    (data, col, _), n = A.csr_arrays(), A.shape[0]
    row = expand_ptr(jnp, _pointers(A), A.nnz)
    strong = _strong(A, row, known, theta)
    if links is None:
        agg, count = aggregates(row, col, strong, jnp.abs(data), n)
    else:
        agg, count = aggregates(row, col, strong & (col < links.own), jnp.abs(data), n)
        alone = (agg < 0) & put("max", jnp.zeros(n, bool), row, True, strong & (col >= links.own))
        agg = jnp.where(alone, count + jnp.cumsum(alone, dtype=np.int32) - 1, agg)
        count = count + jnp.sum(alone)
    left = jnp.sum((agg < 0) & (known.sums > 1.5 * jnp.abs(known.diagonal)))
    return agg, _stacked(count, left)


def _strong(A: Any, row: Array, known: Known, theta: Array) -> Array:
    """Strong couplings with others."""
    (data, col, _), root = A.csr_arrays(), jnp.sqrt(jnp.abs(known.diagonal))
    return (jnp.abs(data) >= theta * take(root, row) * take(root, col)) & (row != col) & _live(A)


@functools.partial(jax.jit, static_argnums=0)
def prolonged(
    n_cols: int,
    A: Any,
    near: Array,
    known: Known,
    agg: Array,
    count: Array,
    theta: Array,
    upper: Array,
    links: Links | None = None,
    first: Array | None = None,
) -> Found:
    """P from aggregates; `scalars` are those of `summed`. Columns are numbered through all devices, from `first`."""
    (data, col, _), n, live, inverse = A.csr_arrays(), A.shape[0], _live(A), known.inverse
    row, number = expand_ptr(jnp, _pointers(A), A.nnz), lax.iota(np.int32, n)
    diagonal = (row == col) & live
    # A' is A itself unless the near-null vector is the same at all points.
    differs = jnp.any(near != near[0])
    if links is not None:
        inside = number < links.count
        high, low = (most(jnp.max(jnp.where(inside, v, -jnp.inf)), links) for v in (near, -near))
        differs = high != -low
    kept = (_strong(A, row, known, theta) | diagonal | differs) & live
    weak = A.with_data(jnp.where(kept, 0, data)) @ jnp.ones(n)
    scale = DAMPING / upper * inverse
    step = jnp.where(kept, -take(scale, row) * data, 0) + jnp.where(diagonal, 1 - take(scale * weak, row), 0)
    # The columns of T are the normalized parts of the near-null vector, whose squares are added in the points' order.
    column = jnp.where(agg >= 0, agg, n)
    order = entry_index.sorted_by(column, number)
    ptr = row_pointers(take(column, order), n)
    below = jnp.sqrt(csr((take(near, order) ** 2, order, ptr), (n, n)) @ jnp.ones(n))
    values = extended(near / take(jnp.where(below > 0, below, 1), jnp.minimum(column, n - 1)), links)
    agg = agg if first is None else extended(jnp.where(agg >= 0, agg + first, -1), links)
    inside = kept & (take(agg, col) >= 0)
    key, terms, found = summed(inside, row, take(agg, col), step * take(values, col), (n, n_cols), A)
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


@functools.partial(jax.jit, static_argnums=0)
def multiplied(room: int, A: Any, B: Any, then: Any) -> tuple[Array, Array, Array]:
    a, b = A.csr_arrays(), B.csr_arrays()
    row, col, left, right = on_device.expanded(a, b, room)
    terms = take(a.data, left) * take(b.data, right)
    return summed(row < A.shape[0], row, col, terms, (A.shape[0], B.shape[1]), then)


def summed(
    inside: Array, row: Array, col: Array, terms: Array, shape: tuple[int, int], then: Any
) -> tuple[Array, Array, Array]:
    """Rising keys of the entries that the terms `inside` add up to, and the terms in that order, others last.

    And the number of these entries, and that of the products of two entries in then.T @ them; None: it is not asked.
    """
    row, terms, padded = jnp.where(inside, row, shape[0]), jnp.where(inside, terms, 0), (shape[0] + 1, shape[1])
    key, terms, _ = on_device.sorted_keys(row, jnp.where(inside, col, 0), padded, terms)
    row = on_device.coordinates(key, padded)[0]
    new, uses = on_device.flags(key) & (row < shape[0]), jnp.zeros(())
    if then is not None:
        uses = jnp.where(new, take(jnp.diff(then.csr_arrays().indptr), jnp.minimum(row, shape[0] - 1)), 0)
    return key, terms, jnp.stack([jnp.sum(new, dtype=np.float64), jnp.sum(uses, dtype=np.float64)])


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def compressed(n_cols: int, shape: tuple[int, int], room: int, key: Array, terms: Array) -> Any:
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
def transposed(P: Any, below: Array, unit: Array, links: Links | None = None) -> tuple[Any, Array, Array]:
    """R = Pᵀ; the near-null vector of R·A·P, and its `Known.unit`."""
    (data, col, _), m = P.csr_arrays(), P.shape[1]
    columns, _ = entry_index.transposed(CsrArrays(data, jnp.where(_live(P), col, m), _pointers(P), P.shape))
    R = csr(columns, P.shape[::-1])
    return R, below[:m], returned(R.with_data(R.data**2) @ unit, links)
