"""The set-up of multigrid where A lies on an accelerator: the large levels of `_hierarchy`, found there.

For a real symmetric A with one unknown a point and one near-null vector, or with levels whose P stay. Sizes, row
pointers and a few scalars come to the host, which makes the small levels. The host's greedy aggregation takes points in
their order, one after the other; here they have hashed priorities, so that roots are found in few rounds, and a cycle
takes as many steps or one more or less.

Compiling for each level's exact sizes would take seconds, so arrays are padded to a few sizes (`Rooms`), which levels
and similar matrices share. Their programs are compiled side by side while the first ones run. Only matrices for which
the host takes about as long come here, and later set-ups take a fraction of the host's time.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.algebra.on_device import on_accelerator
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import BSR
from solvers.precond import _device_programs as programs
from solvers.precond._cycles import Level
from solvers.precond._hierarchy import DENSEST, ROUNDING, STRICTER, WEAKER, Aggregation, Start, largest_value
from solvers.precond._rows import Rows, of_one_shard

MANY = 2**22  # entries of a matrix up to which the host makes all levels
FEW = 2**20  # entries of a level up to which the host makes it, and those below it
SHARED = 2**29  # products of two entries up to which a level has room for those of all levels below it
LARGE = 2**28  # products above which a level of few entries gets smaller rooms, whose programs compile ahead too
LEAST, MOST = 12, 2**31 - 1  # rooms are multiples of 2**LEAST, except the largest that int32 counts


class Rooms(NamedTuple):
    """Sizes to which the arrays of all levels are padded; an array that is longer has a size of its own."""

    rows: int
    entries: int  # of A, P and A·P
    products: int  # of two entries, in A·P and in R·A·P


class Matrix(NamedTuple):
    """The matrix of a level that is still to be coarsened.

    Attributes:
      A: [n, n] in CSR, float64, padded.
      near: [n] the near-null vector, padded by its first entry.
      known: as of `programs.measured`.
      theta: of strong couplings.
      definite: whether the set-up found no sign that A is indefinite.
      rows, entries: of A without padding.
    """

    A: Any
    near: Array
    known: programs.Known
    theta: float
    definite: bool
    rows: int
    entries: int


class Prolongation(NamedTuple):
    """P of a level, padded.

    Attributes:
      below: [n] the near-null vector of the next level, in the first `count`.
      count, entries: P's columns and entries without padding.
      products: of two entries, in A·P.
      theta: by which P was found.
    """

    P: Any
    below: Array
    count: int
    entries: int
    products: int
    theta: float


class Made(NamedTuple):
    """A level. `arrays()` waits for A, R, P and the inverse diagonal [n], without padding."""

    arrays: Callable[[], list[Any]]
    upper: float  # bound of the spectrum of D⁻¹A
    largest: tuple[float, float]  # absolute values of A and of the inverse diagonal


def serves(A: Any, B: Any) -> bool:
    """Whether the type and sizes of A and B allow a set-up here."""
    return renews(A) and is_vector(B, A.shape[0]) and not isinstance(A, BSR)


def renews(A: Any) -> bool:
    """Whether the type and size of A allow that its coarse matrices are made here, by P that is there."""
    is_real = isinstance(A, SparseMatrix) and jnp.issubdtype(A.dtype, jnp.floating)
    return is_real and A.shape[0] == A.shape[1] and MANY < A.nnz <= MOST and on_accelerator(A.values)


def is_vector(B: Any, n: int) -> bool:
    """Whether the near-null space is one real vector."""
    return B is None or (np.shape(B) in {(n,), (n, 1)} and not np.iscomplexobj(B))


def large_levels(
    A: Any, B: Any, theta: float, most: int, keep: Callable[[Made, int], Any], given: Iterable[Level] | None = None
) -> tuple[Rows, Aggregation, Start] | None:
    """Sets up the levels of more than `FEW` entries and `most` rows, of which `keep` makes those of the `Start`.

    Args:
      given: levels whose P stay, with R = Pᵀ, and theta is 0; None: P are made of aggregates.

    Returns:
      The matrix below them, on the host, with how to go on; None if there is no such level, or the host has to set A
      up.
    """
    rooms, levels = rooms_of(A.shape[0], A.nnz), []
    matrix = _finest(A, B, theta, rooms, given is not None)
    find = _of_aggregates if given is None else functools.partial(_of_level, iter(given))
    while matrix is not None and matrix.entries > FEW and matrix.rows > most:
        if (step := _coarsened(matrix, rooms, find)) is None:
            break
        matrix, made, rooms = step
        levels.append(made)
    if matrix is None or not levels:
        return None
    n, vectors = matrix.rows, (matrix.near, matrix.known.unit)
    S, near, unit = programs.cut((n, n), matrix.entries, matrix.A, *vectors)
    rows, near, unit = of_one_shard(S.to_scipy()), np.asarray(near)[:, None], np.asarray(unit)
    start = Start([keep(made, k) for k, made in enumerate(levels)], {0: unit}, matrix.definite)
    return rows, Aggregation({0: near}, matrix.theta, most), start


def _finest(A: Any, B: Any, theta: float, rooms: Rooms, is_given: bool) -> Matrix | None:
    """None if the host has to look: it refuses A in words, or finds blocks, which do not matter to P that are given."""
    near = None if B is None else jnp.asarray(B, np.float64).reshape(-1)
    padding = _in_thread(programs.padded.lower(rooms.rows, rooms.entries, A, near).compile)
    ahead = _compiled(rooms, place := _place(A))
    if rooms.products > LARGE:
        _compiled(_smaller(rooms), place)
    padded, near, zeros = padding.result()(A, near)
    wait(ahead[:1])
    known = programs.measured(padded, near, zeros, A.shape[0])
    usual, *divides = np.asarray(known.scalars)[4:8]
    blocks = () if is_given else programs.BLOCKS[np.array(divides) > 0]
    if not usual or any(programs.is_blocks(padded, b) for b in blocks):
        return None
    wait(ahead)
    return Matrix(padded, near, known, theta, True, A.shape[0], A.nnz)


def _coarsened(fine: Matrix, rooms: Rooms, find: Callable[..., Any]) -> tuple[Matrix, Made, Rooms] | None:
    """The matrix of the next level, this level, and rooms for the next; None if no coarser level can be made here.

    Args:
      find: gives the prolongation of `fine`, or None, as `_of_aggregates`.
    """
    (A, _, known, theta, definite, rows, entries), weaker = fine, True
    upper, lowest, negative, *largest = _bounds(np.asarray(known.scalars))
    while True:
        found = find(fine, rooms, theta, weaker, upper)
        if found is None:
            return None
        P, below, count, inside, products, theta = found
        R, below, unit = programs.transposed(P, below, known.unit)
        try:
            AP, _, products = _product(A, P, products, P, rooms)
            coarse, n_coarse, _ = _product(R, AP, products, R, rooms)
        except ValueError:  # the lists of products are too large for the device, or for indices of 32 bits
            return None
        if n_coarse <= DENSEST * entries or not 0 < theta < 1:
            break
        theta, weaker = STRICTER * theta, False
    # The next level does not wait for the program that cuts off the padding.
    arrays = A, R, P, known.inverse
    trimmed = compiled_once(programs.trimmed, (rows, count, entries, inside), *structure(arrays))
    made = Made(lambda: trimmed.result()(*arrays), upper, (largest[0], largest[1]))
    definite = definite and not negative and lowest >= -ROUNDING * upper
    smaller = _smaller(rooms)
    # A level has some ten products for each of its entries.
    if rooms.products > LARGE and FEW < n_coarse <= smaller.products // 10 and count <= smaller.rows:
        rooms = smaller
        coarse, below, unit = programs.cut((rooms.rows, rooms.rows), rooms.entries, coarse, below, unit)
        wait(_compiled(rooms, _place(A)))
    known = programs.measured(coarse, below, unit, count)
    return Matrix(coarse, below, known, WEAKER * theta, definite, count, n_coarse), made, rooms


def _of_aggregates(fine: Matrix, rooms: Rooms, theta: float, weaker: bool, upper: float) -> Prolongation | None:
    """The prolongation of aggregates, whose theta may be quartered if `weaker`; None: there are none."""
    A, near, known = fine[:3]
    agg, scalars = programs.aggregated(A, known, theta)
    count, left = map(int, np.asarray(scalars))
    if weaker and 2 * left > fine.rows:
        return _of_aggregates(fine, rooms, WEAKER * theta, weaker, upper)
    if not 0 < count < fine.rows:
        return None
    found = programs.prolonged(rooms.rows, A, near, known, agg, count, theta, upper)
    entries, products = map(int, np.asarray(found.scalars))
    P = programs.compressed(rooms.rows, A.shape, _room(rooms.entries, entries), *found.terms)
    return Prolongation(P, found.below, count, entries, products, theta)


def _of_level(levels: Iterator[Level], fine: Matrix, rooms: Rooms, *_: Any) -> Prolongation | None:
    """That of the next of these levels; its near-null vector is not used."""
    level = next(levels, None)
    if level is None or level.P.shape[1] >= fine.rows:
        return None
    P, products = programs.kept(rooms.rows, _room(rooms.entries, level.P.nnz), level.P, fine.A)
    return Prolongation(P, fine.near, level.P.shape[1], level.P.nnz, int(products), 0.0)


def _bounds(scalars: np.ndarray) -> tuple[float, ...]:
    """The bound of the spectrum, its least value, whether some inverse is negative, and the largest absolute values of
    A and of the inverse diagonal; from those of `measured`.
    """
    bound, negative, *largest = scalars[:4].tolist()
    alphas, betas = scalars[8:].reshape(2, -1)
    end = np.flatnonzero(~(betas > 1e-10 * bound))[:1] + 1  # an invariant subspace, or NaN
    k = int(end[0]) if end.size else alphas.size
    ritz = np.zeros(1)
    if not negative and np.all(np.isfinite(scalars)):
        ritz = np.linalg.eigvalsh(np.diag(alphas[:k]) + np.diag(betas[: k - 1], 1) + np.diag(betas[: k - 1], -1))
    upper = largest_value(ritz, bound)
    return upper if upper > 0 else 1.0, -np.inf if negative else float(ritz[0]), negative, *largest


def structure(arrays: Any) -> tuple[tuple[Any, ...], Any]:
    """What a program is compiled for: shapes, dtypes and shardings of the arrays of a pytree, and the tree."""
    leaves, tree = jax.tree.flatten(arrays)
    places = (a.sharding if a.committed else None for a in leaves)
    shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=at) for a, at in zip(leaves, places, strict=True))
    return tuple(shapes), tree


@remembered(64, "programs of multigrid")
def compiled_once(program: Any, statics: tuple[Any, ...], leaves: tuple[Any, ...], tree: Any) -> Future[Any]:
    """The program for arrays of this structure, compiled in a thread; lowering it again would take 50 ms."""
    return _in_thread(program.lower(*statics, *jax.tree.unflatten(tree, leaves)).compile)


def _in_thread(f: Callable[[], Any]) -> Future[Any]:
    threads = ThreadPoolExecutor(1)
    result = threads.submit(f)
    threads.shutdown(wait=False)
    return result


def rooms_of(rows: int, entries: int) -> Rooms:
    """With room for A·P and for the products of two levels of 7-point and 27-point grids, or of one if it is large."""
    if 7 * entries <= SHARED:
        return Rooms(_room(0, rows), _room(0, 2 * entries), _room(0, 7 * entries))
    return Rooms(_room(0, rows), _room(0, 3 * entries // 2), _room(0, 5 * entries))


def _smaller(rooms: Rooms) -> Rooms:
    """For the third level of a grid: that has 0.01 of its points, 0.13 of its entries and 0.16 of the products."""
    return Rooms(_room(0, rooms.rows // 8), _room(0, rooms.entries // 4), _room(0, rooms.products // 4))


def _place(A: Any) -> Any:
    """The sharding of arrays that are committed to their device, else None."""
    return A.values.sharding if A.values.committed else None


def _room(usual: int, size: int) -> int:
    """The usual room if it holds `size` elements, else one of four sizes an octave."""
    step = 1 << max(size.bit_length() - 3, LEAST)
    return usual if size <= usual else min(-(-size // step) * step, MOST)


@remembered(64, "programs of multigrid")
def _compiled(rooms: Rooms, place: Any) -> list[Future[Any]]:
    """The programs for levels in these rooms, `measured` first; they compile side by side, and the slowest begin first.

    Args:
      place: the sharding of arrays that are committed to their device, else None.
    """
    if place is not None and not isinstance(place, SingleDeviceSharding):
        return []
    threads = ThreadPoolExecutor()
    n, nnz = rooms.rows, rooms.entries

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def compiling(program: Any, *args: Any) -> Future[Any]:
        return threads.submit(program.lower(*args).compile)  # a call of it finds it, or meets its error

    def results(program: Any, *args: Any) -> Any:
        return like(program.eval_shape(*args))

    like = functools.partial(jax.tree.map, lambda a: array(a.shape, a.dtype))
    vector, arrays = array((n,), np.float64), ((nnz, np.float64), (nnz, np.int32), (n + 1, np.int32))
    A = like(jax.eval_shape(lambda *a: programs.csr(a, (n, n)), *(array((size,), kind) for size, kind in arrays)))
    # P, R, A·P and R·A·P are padded as A is.
    to_measure = A, vector, vector, 1
    measured, known = compiling(programs.measured, *to_measure), results(programs.measured, *to_measure)
    aggregated = compiling(programs.aggregated, A, known, 0.5)
    to_prolong = n, A, vector, known, results(programs.aggregated, A, known, 0.5)[0], 1, 0.5, 1.0
    prolonged, found = compiling(programs.prolonged, *to_prolong), results(programs.prolonged, *to_prolong)
    *terms, _ = results(programs.multiplied, rooms.products, A, A, A)
    compressed = [compiling(programs.compressed, n, (n, n), nnz, *t) for t in (terms, found.terms)]
    multiplied = compiling(programs.multiplied, rooms.products, A, A, A)
    transposed = compiling(programs.transposed, A, found.below, vector)
    threads.shutdown(wait=False)
    return [measured, aggregated, multiplied, prolonged, *compressed, transposed]


def _product(A: Any, B: Any, products: int, then: Any, rooms: Rooms) -> tuple[Any, int, int]:
    """A @ B of so many products of two entries, and the scalars of `programs.summed`.

    TooLarge, ValueError: the device, or int32, does not hold that many.
    """
    room = _room(rooms.products, products)
    on_device.check_list(max(products, room), "products of two entries")
    *terms, found = programs.multiplied(room, A, B, then)
    entries, products = map(int, np.asarray(found))
    C = programs.compressed(B.shape[1], (A.shape[0], B.shape[1]), _room(rooms.entries, entries), *terms)
    return C, entries, products
