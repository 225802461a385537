"""The set-up of multigrid where A lies on an accelerator: the large levels of `_hierarchy`, found there.

For a real symmetric A with one unknown a point and one near-null vector. Sizes, row pointers and a few numbers come to
the host, which makes the small levels. The host's greedy aggregation takes points in their order, one after the other;
here they have hashed priorities, so that roots are found in few rounds, and a cycle takes as many steps or one more or
less.

XLA would compile for seconds for the sizes of each level. So arrays have rooms of few sizes, which levels and similar
matrices share, and their programs are compiled side by side while the first ones run. Only matrices for which the host
takes about as long come here, and later set-ups take a fraction of the host's time.
"""

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding

from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.algebra.on_device import on_accelerator
from jaxsparse_fmt.core.matrix import SparseMatrix
from solvers.precond import _device_programs as programs
from solvers.precond._hierarchy import DENSEST, ROUNDING, STRICTER, WEAKER, largest_value

MANY = 2**22  # entries of a matrix up to which the host makes all levels
FEW = 2**20  # entries of a level up to which the host makes it, and those below it
SHARED = 2**28  # products of two entries: up to so many, all levels share rooms, since a program costs more than room
LEAST, MOST = 12, 2**31 - 1  # rooms are multiples of 2**LEAST, but for the largest that int32 counts


class Rooms(NamedTuple):
    """Sizes that programs are made for: of one level, or of all levels below it too up to `SHARED` products."""

    rows: int
    entries: int  # of A, P and A·P
    products: int  # of two entries, in A·P and in R·A·P

    def of(self, kind: str, size: int) -> int:
        room = getattr(self, kind)
        return room if size <= room else ladder(size)


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
      known: as of `programs.measured`, if that is at hand.
    """

    A: Any
    near: Array
    unit: Array
    theta: float
    definite: bool
    rows: int
    entries: int
    rooms: Rooms
    known: Any = None

    def at_hand(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """A, near and unit on the host."""
        A, near, unit = programs.cut((self.rows, self.rows), self.entries, self.A, self.near, self.unit)
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
    sizes = rooms.of("rows", n), rooms.of("entries", nnz)
    padding = _in_thread(programs.padded.lower(*sizes, A, near).compile)
    ahead = _compiled(rooms, _place(A))
    padded, near = padding.result()(A, near)
    wait(ahead[:1])
    known = programs.measured(padded, near, jnp.zeros_like(near), n)
    usual, *divides = np.asarray(known.numbers)[4:8]
    if not usual or any(programs.is_blocks(padded, b) for b in programs.BLOCKS[np.array(divides) > 0]):
        return None
    wait(ahead)
    return Descent(padded, near, known.unit, theta, True, n, nnz, rooms, known)


def descended(at: Descent) -> tuple[Descent, Callable[[], list[Any]], tuple[float, float]] | None:
    """The next level; what gives A, R, P, the inverse diagonal and the bound of the spectrum of this one; its largest
    numbers.

    None where no coarser level can be made here.
    """
    A, theta, n, weaker, rooms = at.A, at.theta, at.A.shape[0], True, at.rooms
    known = at.known or programs.measured(A, at.near, at.unit, at.rows)
    upper, lowest, negative, *largest = _bounds(np.asarray(known.numbers))
    while True:
        agg, numbers = programs.aggregated(A, known, theta)
        count, left = map(int, np.asarray(numbers))
        if weaker and 2 * left > at.rows:
            theta *= WEAKER
            continue
        if not 0 < count < at.rows:
            return None
        found = programs.prolonged(A, at.near, known, agg, count, theta, upper)
        inside, products = map(int, np.asarray(found.numbers))
        P = programs.compressed(*found.terms, n, (n, rooms.of("rows", count)), rooms.of("entries", inside))
        R, below, unit = programs.transposed(P, found.below, at.unit)
        try:
            AP, _, products = _product(A, P, products, P, rooms)
            coarse, entries, _ = _product(R, AP, products, R, rooms)
        except ValueError:  # the lists of products are too large for the device, or for indices of 32 bits
            return None
        if entries <= DENSEST * at.entries or not 0 < theta < 1:
            break
        theta, weaker = STRICTER * theta, False
    definite = at.definite and not negative and lowest >= -ROUNDING * upper
    # The next level does not wait for the program that cuts off the padding.
    arrays = A, R, P, known.inverse
    trimmed = _in_thread(programs.trimmed.lower(at.rows, count, at.entries, inside, *arrays).compile)
    if rooms.products > SHARED:
        rooms = rooms_of(count, entries)
        ahead = _compiled(rooms, _place(A))
        sizes = rooms.of("rows", count), rooms.of("entries", entries)
        coarse, below, unit = programs.padded(*sizes, coarse, below, unit)
        wait(ahead)
    next_level = Descent(coarse, below, unit, WEAKER * theta, definite, count, entries, rooms)
    return next_level, lambda: [*trimmed.result()(*arrays), upper], (largest[0], largest[1])


def _bounds(numbers: np.ndarray) -> tuple[float, ...]:
    """The bound of the spectrum, its least value, whether some inverse is negative, and the largest numbers of A and of
    the inverse diagonal; from those of `measured`.
    """
    bound, negative, *largest = numbers[:4].tolist()
    alphas, betas = numbers[8:].reshape(2, -1)
    end = np.flatnonzero(~(betas > 1e-10 * bound))[:1] + 1  # an invariant subspace, or NaN
    k = int(end[0]) if end.size else alphas.size
    ritz = np.zeros(1)
    if not negative and np.all(np.isfinite(numbers)):
        ritz = np.linalg.eigvalsh(np.diag(alphas[:k]) + np.diag(betas[: k - 1], 1) + np.diag(betas[: k - 1], -1))
    upper = largest_value(ritz, bound)
    return upper if upper > 0 else 1.0, -np.inf if negative else float(ritz[0]), negative, *largest


def _place(A: Any) -> Any:
    """The sharding of arrays that are committed to their device, else None."""
    return A.values.sharding if A.values.committed else None


def _in_thread(f: Callable[[], Any]) -> Future[Any]:
    threads = ThreadPoolExecutor(1)
    result = threads.submit(f)
    threads.shutdown(wait=False)
    return result


def rooms_of(rows: int, entries: int) -> Rooms:
    """With room for A·P and for the products of two levels of 7-point and 27-point grids, or of one if it is large."""
    if 7 * entries <= SHARED:
        return Rooms(ladder(rows), ladder(2 * entries), ladder(7 * entries))
    return Rooms(ladder(rows), ladder(3 * entries // 2), ladder(5 * entries))


def ladder(size: int) -> int:
    """The room for `size` numbers: four sizes an octave, so that similar matrices share programs."""
    step = 1 << max(size.bit_length() - 3, LEAST)
    return min(-(-size // step) * step, MOST)


@functools.lru_cache(64)
def _compiled(rooms: Rooms, where: Any) -> list[Future[Any]]:
    """Compiles side by side the programs for levels in these rooms, that of `measured` first.

    Args:
      where: the sharding of arrays that are committed to their device, else None.
    """
    if where is not None and not isinstance(where, SingleDeviceSharding):
        return []
    ahead, threads = [], ThreadPoolExecutor()
    n, nnz = rooms.rows, rooms.entries

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    def results(program: Any, *args: Any) -> Any:
        ahead.append(threads.submit(program.lower(*args).compile))  # a call of it finds it, or meets its error
        return like(program.eval_shape(*args))

    like = functools.partial(jax.tree.map, lambda a: array(a.shape, a.dtype))
    vector, arrays = array((n,), np.float64), ((nnz, np.float64), (nnz, np.int32), (n + 1, np.int32))
    A = like(jax.eval_shape(lambda *a: programs.csr(a, (n, n)), *(array((size,), kind) for size, kind in arrays)))
    known = results(programs.measured, A, vector, vector, 1)
    agg, _ = results(programs.aggregated, A, known, 0.5)
    found = results(programs.prolonged, A, vector, known, agg, 1, 0.5, 1.0)
    P = results(programs.compressed, *found.terms, n, (n, n), nnz)
    results(programs.transposed, P, found.below, vector)
    *terms, _ = results(programs.multiplied, A, P, P, rooms.products)
    results(programs.compressed, *terms, n, (n, n), nnz)
    threads.shutdown(wait=False)
    return ahead


def _product(A: Any, B: Any, products: int, then: Any, rooms: Rooms) -> tuple[Any, int, int]:
    """A @ B of so many products of two entries, and the numbers of `programs.summed`.

    TooLarge, ValueError: the device, or int32, does not hold that many.
    """
    room = rooms.of("products", products)
    on_device.check_list(max(products, room), "products of two entries")
    *terms, found = programs.multiplied(A, B, then, room)
    entries, products = map(int, np.asarray(found))
    C = programs.compressed(*terms, B.shape[1], (A.shape[0], B.shape[1]), rooms.of("entries", entries))
    return C, entries, products
