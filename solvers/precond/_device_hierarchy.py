"""The set-up of multigrid where A lies on an accelerator: the large levels of `_hierarchy`, found there.

For a real symmetric A with one unknown a point and one near-null vector. Sizes, row pointers and a few numbers come to
the host, which makes the small levels. The host's greedy aggregation takes points in their order, one after the other;
here they have hashed priorities, so that roots are found in few rounds, and a cycle takes as many steps or one more or
less.

XLA would compile for seconds for the sizes of each level. So arrays have rooms of few sizes, and levels and similar
matrices share programs, which are compiled side by side where all levels share them. Only matrices for which the host
takes about as long come here, and later set-ups take a fraction of the host's time.
"""

import functools
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import SingleDeviceSharding

from jaxsparse_fmt._types import CsrArrays, Target
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.algebra.on_device import on_accelerator
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.matrix import SparseMatrix, build
from jaxsparse_fmt.kernels.layout.address import expand_ptr, row_pointers, take
from solvers.core.spectrum import spectrum
from solvers.precond._hierarchy import DAMPING, DENSEST, LANCZOS_STEPS, ROUNDING, STRICTER, WEAKER
from solvers.precond._inverse import NULL

MANY = 2**22  # entries of a matrix up to which the host makes all levels
FEW = 2**18  # entries of a level up to which the host makes it, and those below it
SHARED = 2**27  # products of two entries: up to so many cost less in a larger room than a program for a smaller one
LEAST, MOST = 12, 2**31 - 1  # rooms are multiples of 2**LEAST, but for the largest that int32 counts
ROOT = np.uint32(2**32 - 1)
SECOND = 3  # neighbours left over that a root of the second pass has, at least


class Rooms(NamedTuple):
    """Sizes that programs are made for: of one level, or of all levels below it too where these are small."""

    rows: int
    entries: int  # of A, P and A·P
    products: int  # of two entries, in A·P and in R·A·P

    def of(self, kind: str, size: int) -> int:
        room = getattr(self, kind)
        return room if size <= room and self.products <= SHARED else ladder(size)


class Descent(NamedTuple):
    """A level to go on from.

    Attributes:
      A: [n, n] in CSR, float64, padded.
      near: [n] the near-null vector, padded by its first number.
      unit: [n] size of the sums behind A's diagonal.
      theta: of strong couplings.
      definite: whether nothing was seen that tells A indefinite.
      rows, entries: of A without padding.
      rooms: for this level.
    """

    A: Any
    near: Array
    unit: Array
    theta: float
    definite: bool
    rows: int
    entries: int
    rooms: Rooms

    def at_hand(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """A, near and unit on the host."""
        A, near, unit = _cut((self.rows, self.rows), self.entries, self.A, self.near, self.unit)
        return A.to_scipy(), np.asarray(near), np.asarray(unit)


def serves(A: Any, B: Any) -> bool:
    """Whether A may be set up here, as far as its type tells."""
    if not isinstance(A, SparseMatrix) or not jnp.issubdtype(A.dtype, jnp.floating):
        return False
    vector = B is None or (np.shape(B) in {A.shape[:1], (A.shape[0], 1)} and not np.iscomplexobj(B))
    sized = A.shape[0] == A.shape[1] and MANY < A.nnz <= MOST
    return sized and vector and not hasattr(A, "block_shape") and on_accelerator(A.values)


def begun(A: Any, B: Any, theta: float) -> Descent | None:
    """The finest level; None where the host has to look: it refuses A in words, or finds blocks."""
    n, nnz = A.shape[0], A.nnz
    near = None if B is None else jnp.asarray(B, np.float64).reshape(-1)
    rooms = rooms_of(n, nnz)
    where = A.values.sharding if A.values.committed else None
    shares = rooms.products <= SHARED and (where is None or isinstance(where, SingleDeviceSharding))
    ahead = _compiled(rooms, where) if shares else []
    padded, near = _padded(A, near, rooms.of("rows", n), rooms.of("entries", nnz))
    wait(ahead[:1])
    usual, unit = _looked(padded, near, n)
    if not usual:
        return None
    wait(ahead)
    return Descent(padded, near, unit, theta, True, n, nnz, rooms)


def descended(at: Descent) -> tuple[Descent, tuple[Any, ...], tuple[float, float]] | None:
    """The next level; A, R, P, the inverse diagonal and the bound of the spectrum of this one; its largest numbers.

    None where no coarser level can be made here.
    """
    A, theta, n, weaker, rooms = at.A, at.theta, at.A.shape[0], True, at.rooms
    while True:
        found = _coarsened(A, at.near, at.unit, theta)
        numbers = np.asarray(found.numbers).tolist()
        count, left, negative, inside, products = map(int, numbers[:5])
        lowest, upper, *largest = numbers[5:]
        if weaker and 2 * left > at.rows:
            theta *= WEAKER
            continue
        if not 0 < count < at.rows:
            return None
        P = _compressed(*found.terms, n, (n, rooms.of("rows", count)), rooms.of("entries", inside))
        R, below, unit = _transposed(P, found.below, at.unit)
        try:
            AP, _, products = _product(A, P, products, P, rooms)
            coarse, entries, _ = _product(R, AP, products, R, rooms)
        except ValueError:  # the lists of products are too large for the device, or for indices of 32 bits
            return None
        if entries <= DENSEST * at.entries or not 0 < theta < 1:
            break
        theta, weaker = STRICTER * theta, False
    definite = at.definite and not negative and lowest >= -ROUNDING * upper
    made = _trimmed(at.rows, count, at.entries, inside, A, R, P, found.inverse)
    if rooms.products > SHARED:
        rooms = rooms_of(count, entries)
        coarse, below = _padded(coarse, below, coarse.shape[0], rooms.of("entries", entries))
    next_level = Descent(coarse, below, unit, WEAKER * theta, definite, count, entries, rooms)
    return next_level, (*made, upper), (largest[0], largest[1])


def rooms_of(rows: int, entries: int) -> Rooms:
    """With room for A·P and for the products of two levels of 7-point and 27-point grids."""
    return Rooms(ladder(rows), ladder(2 * entries), ladder(7 * entries))


def ladder(size: int) -> int:
    """The room for `size` numbers: four sizes an octave, so that similar matrices share programs."""
    step = 1 << max(size.bit_length() - 3, LEAST)
    return min(-(-size // step) * step, MOST)


@functools.lru_cache(64)
def _compiled(rooms: Rooms, where: Any) -> list[Future[Any]]:
    """Compiles side by side the programs for rooms that all levels share, that of `_looked` first.

    Args:
      where: the sharding of arrays that are committed to their device, else None.
    """
    ahead, threads = [], ThreadPoolExecutor()
    n, nnz = rooms.rows, rooms.entries

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    def results(program: Any, *args: Any) -> Any:
        ahead.append(threads.submit(program.lower(*args).compile))  # a call of it finds it, or meets its error
        return like(program.eval_shape(*args))

    like = functools.partial(jax.tree.map, lambda a: array(a.shape, a.dtype))
    vector, arrays = array((n,), np.float64), ((nnz, np.float64), (nnz, np.int32), (n + 1, np.int32))
    A = like(jax.eval_shape(lambda *a: _csr(a, (n, n)), *(array((size,), kind) for size, kind in arrays)))
    results(_looked, A, vector, n)
    found = results(_coarsened, A, vector, vector, 0.5)
    P = results(_compressed, *found.terms, n, (n, n), nnz)
    results(_transposed, P, found.below, vector)
    *terms, _ = results(_multiplied, A, P, P, rooms.products)
    results(_compressed, *terms, n, (n, n), nnz)
    threads.shutdown(wait=False)
    return ahead


# ----------------------------------------------------------------------------------------------------------- programs
#
# Padding is past the last row pointer, and zero: no product reads it. Rows of padding are empty.


class Found(NamedTuple):
    terms: tuple[Array, Array]  # keys and values of P's entries, as of `_multiplied`
    below: Array  # [n] lengths of the parts of the near-null vector, in the first `count`
    inverse: Array  # [n] of the diagonal
    numbers: Array


def _csr(arrays: Any, shape: tuple[int, int]) -> Any:
    return build(CsrArrays(*arrays, shape=shape), "csr", Target(np.dtype(np.float64)))


def _live(A: Any) -> Array:
    """Which entries are none of padding."""
    return lax.iota(np.int32, A.nnz) < A.csr_arrays().indptr[-1]


def _pointers(A: Any) -> Array:
    """A's row pointers, out of its room for the empty rows at the end: atomics would count these at one place."""
    ptr = A.csr_arrays().indptr
    return jnp.where(ptr < ptr[-1], ptr, A.nnz)


def _diagonal(A: Any, row: Array) -> tuple[Array, Array]:
    """The diagonal, and which entries are on it."""
    data, col, _ = A.csr_arrays()
    own = (row == col) & _live(A)
    return jnp.zeros(A.shape[0]).at[jnp.where(own, row, A.shape[0])].set(data, mode="drop", unique_indices=True), own


@functools.partial(jax.jit, static_argnums=(2, 3))
def _padded(A: Any, near: Array | None, n: int, nnz: int) -> tuple[Any, Array]:
    data, col, ptr = A.csr_arrays()
    data, col = (jnp.pad(a, (0, nnz - A.nnz)) for a in (data.astype(np.float64), col))
    near = jnp.ones(A.shape[0]) if near is None else near
    ptr, near = (jnp.pad(a, (0, n - A.shape[0]), constant_values=a[i]) for a, i in ((ptr, -1), (near, 0)))
    return _csr((data, col, ptr), (n, n)), near


@functools.partial(jax.jit, static_argnums=(0, 1))
def _cut(shape: tuple[int, int], nnz: int, S: Any, *vectors: Array) -> list[Any]:
    """Without padding."""
    data, col, ptr = S.csr_arrays()
    return [_csr((data[:nnz], col[:nnz], ptr[: shape[0] + 1]), shape), *(v[: shape[0]] for v in vectors)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _trimmed(n: int, count: int, nnz: int, inside: int, A: Any, R: Any, P: Any, inverse: Array) -> list[Any]:
    A, inverse = _cut((n, n), nnz, A, inverse)
    return [A, *_cut((count, n), inside, R), *_cut((n, count), inside, P), inverse]


@jax.jit
def _looked(A: Any, near: Array, n: Array) -> tuple[Array, Array]:
    """Whether A is symmetric, has no zero on its diagonal, is not made of blocks, and all is finite; |diagonal|."""
    (data, col, ptr), size, live = A.csr_arrays(), A.shape[0], _live(A)
    row, number = expand_ptr(jnp, _pointers(A), A.nnz), lax.iota(np.int32, A.nnz)
    diagonal, largest = _diagonal(A, row)[0], jnp.max(jnp.abs(data))
    place = entry_index.sorted_by(jnp.where(live, col, size), number)
    same = (take(row, place) == col) & (take(col, place) == row) | ~live
    usual = jnp.all(same & (jnp.abs(take(data, place) - data) <= 1e-12 * largest)) & jnp.isfinite(largest)
    usual &= jnp.all((diagonal != 0) | (lax.iota(np.int32, size) >= n)) & jnp.all(jnp.isfinite(near))
    lengths, k = jnp.diff(ptr), number - take(ptr, row)

    def blocks(b: Array) -> Array:
        """Whether each entry is beside the first of its b columns, and below the first of its b rows."""
        above = jnp.minimum(take(ptr, row - row % b) + k, A.nnz - 1)
        dense = (take(col, number - k % b) + k % b == col) & (col % b == k % b) & (take(col, above) == col)
        return (n % b == 0) & jnp.all(lengths % b == 0) & jnp.all(dense | ~live)

    usual &= ~jnp.any(jax.vmap(blocks)(jnp.array([2, 3, 5], np.int32)))  # a block of 4 or 6 holds blocks of 2
    return usual, jnp.abs(diagonal)


@jax.jit
def _coarsened(A: Any, near: Array, unit: Array, theta: Array) -> Found:
    (data, col, _), n, live = A.csr_arrays(), A.shape[0], _live(A)
    row, number, size = expand_ptr(jnp, _pointers(A), A.nnz), lax.iota(np.int32, n), jnp.abs(data)
    d, own = _diagonal(A, row)
    regular = jnp.abs(d) > NULL * unit
    inverse = jnp.where(regular, 1 / jnp.where(regular, d, 1), 0)
    sums = A.with_data(size) @ jnp.ones(n)
    bound = jnp.max(jnp.abs(inverse) * sums)
    lowest, largest = spectrum(lambda z: A @ z, lambda w: inverse * w, near, LANCZOS_STEPS)
    upper = jnp.where((largest > 0) & jnp.isfinite(lowest), jnp.minimum(largest, bound), bound)
    upper = jnp.where(upper > 0, upper, 1)
    root = jnp.sqrt(jnp.abs(d))
    strong = (size >= theta * take(root, row) * take(root, col)) & ~own & live
    agg, count = aggregates(row, col, strong, size, n)
    # A' is A itself where the near-null vector is not the same at all points.
    kept = (strong | own | jnp.any(near != near[0])) & live
    weak = A.with_data(jnp.where(kept, 0, data)) @ jnp.ones(n)
    scale = DAMPING / upper * inverse
    step = jnp.where(kept, -take(scale, row) * data, 0) + jnp.where(own, 1 - take(scale * weak, row), 0)
    # The columns of T are the normalized parts of the near-null vector: those of an aggregate are added in their order.
    at = jnp.where(agg >= 0, agg, n)
    order = entry_index.sorted_by(at, number)
    below = jnp.sqrt(_csr((take(near, order) ** 2, order, row_pointers(take(at, order), n)), (n, n)) @ jnp.ones(n))
    values = near / jnp.where(below > 0, below, 1)[jnp.minimum(at, n - 1)]
    inside = kept & (take(agg, col) >= 0)
    key, terms, found = _sums(inside, row, take(agg, col), step * take(values, col), (n, n), A)
    left = jnp.sum((agg < 0) & (sums > 1.5 * jnp.abs(d)))
    numbers = count, left, jnp.any(inverse < 0), *found, lowest, upper, jnp.max(size), jnp.max(jnp.abs(inverse))
    numbers = jnp.stack([x.astype(np.float64) for x in numbers])  # a transfer to the host takes as long for one number
    return Found((key, terms), jnp.where(number < count, below, below[0]), inverse, numbers)


def aggregates(
    row: Array,  # [nnz] rising
    col: Array,  # [nnz]
    strong: Array,  # [nnz] couplings with others
    size: Array,  # [nnz]
    n: int,
) -> tuple[Array, Array]:
    """The aggregate of each point, -1 without strong neighbours, and the number of aggregates.

    A root forms an aggregate with its strong neighbours. Roots are those points, of all with strong neighbours and by
    falling priority, that share no neighbour with a root before: a maximal independent set of distance two. A second
    such set among the points left over, of those with `SECOND` neighbours there, keeps aggregates as small as a greedy
    pass in the order of a grid (Kelley and Rajamanickam 2022). The rest joins the neighbour with the strongest
    coupling, the first of equal ones.
    """
    number, priority = lax.iota(np.int32, n), _priorities(lax.iota(np.uint32, n))

    def most(start: Array, at: Array, values: Array, among: Array) -> Array:
        """The largest of the values, of those `among`, at each point; each that is left out saves an atomic."""
        return start.at[jnp.where(among, at, n)].max(values, mode="drop")

    def roots(inside: Array, eligible: Array) -> Array:
        """A maximal set of eligible points of which no two share a neighbour, where each is its own neighbour too."""

        def step(key: Array) -> Array:  # 0 for points that are out, `ROOT` for those that are in
            own = take(key, row)
            nearest = most(key, col, own, inside & (own > 0))
            found = most(nearest, row, take(nearest, col), inside & (own > 0) & (own < ROOT))
            decided = jnp.where(found == ROOT, 0, jnp.where(found == key, ROOT, key))
            return jnp.where((key > 0) & (key < ROOT), decided, key)

        open_ = lambda key: jnp.any((key > 0) & (key < ROOT))  # noqa: E731
        return lax.while_loop(open_, step, jnp.where(eligible, priority, 0)) == ROOT

    def covered(root_of: Array, least: Array) -> tuple[Array, None]:
        inside = strong & take(root_of < 0, row) & take(root_of < 0, col)
        others = jnp.zeros(n, np.int32).at[jnp.where(inside, row, n)].add(1, mode="drop")
        new = roots(inside, (root_of < 0) & (others >= least))
        return most(jnp.where(new, number, root_of), col, row, inside & take(new, row)), None

    root_of, _ = lax.scan(covered, jnp.full(n, -1, np.int32), jnp.array([1, SECOND]))
    is_root = root_of == number
    joins = strong & take(root_of < 0, row) & take(root_of >= 0, col)
    strongest = most(jnp.zeros(n), row, size, joins)
    first = most(jnp.full(n, -1, np.int32), row, n - 1 - col, joins & (size == take(strongest, row)))
    joined = jnp.where(first >= 0, take(root_of, n - 1 - jnp.maximum(first, 0)), root_of)
    agg = jnp.where(joined < 0, -1, take(jnp.cumsum(is_root, dtype=np.int32) - 1, jnp.maximum(joined, 0)))
    return agg, jnp.sum(is_root)


def _priorities(number: Array) -> Array:
    """A priority for each number [n] uint32: all differ, and none is 0 or `ROOT` below 2³¹."""
    h = number + np.uint32(2**30)  # the finalizer of MurmurHash3, a bijection
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _product(A: Any, B: Any, products: int, then: Any, rooms: Rooms) -> tuple[Any, int, int]:
    """A @ B of so many products of two entries, and the numbers of `_sums`.

    TooLarge, ValueError: the device, or int32, does not hold that many.
    """
    room = rooms.of("products", products)
    on_device.check_list(max(products, room), "products of two entries")
    *terms, found = _multiplied(A, B, then, room)
    entries, products = map(int, np.asarray(found))
    C = _compressed(*terms, B.shape[1], (A.shape[0], B.shape[1]), rooms.of("entries", entries))
    return C, entries, products


@functools.partial(jax.jit, static_argnums=3)
def _multiplied(A: Any, B: Any, then: Any, room: int) -> tuple[Array, Array, Array]:
    a, b = A.csr_arrays(), B.csr_arrays()
    row, col, left, right = on_device.expanded(a, b, room)
    terms = take(a.data, left) * take(b.data, right)
    return _sums(row < A.shape[0], row, col, terms, (A.shape[0], B.shape[1]), then)


def _sums(
    inside: Array, row: Array, col: Array, terms: Array, shape: tuple[int, int], then: Any
) -> tuple[Array, Array, Array]:
    """Keys of the entries that the terms `inside` add up to, with the terms in their order; other terms come last.

    And two numbers: of these entries, and of the products of two entries in then.T @ them.
    """
    row, terms, of = jnp.where(inside, row, shape[0]), jnp.where(inside, terms, 0), (shape[0] + 1, shape[1])
    key, terms, _ = on_device.sorted_keys(row, jnp.where(inside, col, 0), of, beside=terms)
    row = on_device.coordinates(key, of)[0]
    new, lengths = on_device.flags(key) & (row < shape[0]), jnp.diff(then.csr_arrays().indptr)
    uses = jnp.where(new, take(lengths, jnp.minimum(row, shape[0] - 1)), 0)
    return key, terms, jnp.stack([jnp.sum(new, dtype=np.float64), jnp.sum(uses, dtype=np.float64)])


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _compressed(key: Array, terms: Array, n_cols: int, shape: tuple[int, int], room: int) -> Any:
    """The matrix of `_sums`, whose keys are those of `n_cols` columns."""
    rows, of, end = shape[0], (shape[0] + 1, n_cols), key.shape[0]
    live = on_device.coordinates(key, of)[0] < rows
    new, ends = on_device.flags(key) & live, jnp.sum(live, dtype=np.int32)
    at = jnp.where(new, jnp.cumsum(new, dtype=np.int32) - 1, room + 1)
    first = jnp.full(room + 1, ends).at[at].set(lax.iota(np.int32, end), mode="drop", unique_indices=True)
    row, col = on_device.coordinates(take(key, jnp.minimum(first[:-1], end - 1)), of)
    ptr = row_pointers(jnp.where(first[:-1] < ends, row, rows), rows)
    values = _csr((terms, jnp.zeros(end, np.int32), first), (room, 1)) @ jnp.ones(1)
    return _csr((values, col, ptr), shape)


@jax.jit
def _transposed(P: Any, below: Array, unit: Array) -> tuple[Any, Array, Array]:
    """R = Pᵀ; the near-null vector of R·A·P, and the sizes of the sums behind its diagonal."""
    (data, col, _), m = P.csr_arrays(), P.shape[1]
    turned, _ = entry_index.transposed(CsrArrays(data, jnp.where(_live(P), col, m), _pointers(P), P.shape))
    R = _csr(turned, P.shape[::-1])
    return R, below[:m], R.with_data(R.data**2) @ unit
