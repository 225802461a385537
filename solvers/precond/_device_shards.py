"""The set-up of multigrid where the shards of a matrix lie on accelerators: their large levels, made by all at once.

The programs of `_device_programs` and `_shard_programs` run on every device inside shard_map, in the same sizes for all
levels and devices. Columns of P, A·P and R·A·P are numbered through all devices until the host, which knows what each
device needs, has planned an exchange; then they are places of [own | halo]. Only sizes and the numbers of halos come to
hosts.

    A [own | halo]   P = T − ω·D⁻¹·A'·T, with T of the halo           exchange of aggregates
                     A·P, with P's rows of the halo                   exchange of rows
                     R·A·P, whose rows of the halo go to their owners exchange of rows, back
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.distributed import halo
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.halo import Exchange
from jaxsparse_fmt.distributed.processes import everyones
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.precond import _device_hierarchy as one
from solvers.precond import _device_programs as programs
from solvers.precond._device_programs import Links
from solvers.precond._hierarchy import DENSEST, ROUNDING, STRICTER, WEAKER, Aggregation, Start
from solvers.precond._rows import Cut, Rows
from solvers.precond._shard_programs import (
    begun,
    folded,
    joined,
    longest_row,
    moved,
    outside,
    own_rows,
    placed,
    shrunk,
    trimmed,
)

EACH = 32  # entries of a row of the halo, on average at most
USUAL = ((8, False), (16, False), (64, True), (128, True))  # bounds of lengths of rows that travel, compiled ahead


class Matrix(NamedTuple):
    """The matrix of a level that is still to be coarsened: arrays [devices, …], each device's padded.

    Attributes:
      A: [n, n] in CSR, in places of [own | halo].
      numbered: the same with columns that are numbered through all devices.
      near: [n] the near-null vector.
      entries: of each device.
      The rest as in `_device_hierarchy.Matrix`.
    """

    A: Any
    numbered: Any
    near: Array
    known: programs.Known
    links: Links
    over: Distribution
    theta: float
    definite: bool
    entries: np.ndarray


class Made(NamedTuple):
    """A level. `arrays()` waits for A, R, P, as `_sharded.Crossing` takes them, and the inverse diagonal, unpadded."""

    arrays: Callable[[], tuple[Any, ...]]
    upper: float
    largest: tuple[float, float]
    over: Distribution
    coarse: Distribution | None  # None: the next level is whole on every device
    links: Links  # of A
    below: Links  # of P and R
    nnz: int


class Setup:
    """The sizes and the devices of one set-up.

    Attributes:
      n, size, width: places of a device's vectors, those of its own unknowns, and numbers for columns of all devices.
      halo, extra: places for halos, and for the entries of their rows.
      like: the exchange of the finest level, which has places for those of the others.
    """

    def __init__(self, A: Any, whole: int):
        self.over, self.whole, self.like = A.range.over, whole, A.shards.halo
        self.parts, self.finest = len(self.over.counts), A
        self.rooms = one.rooms_of(self.over.size, max(A.data_basis.over.counts))
        self.size = self.rooms.rows
        self.halo = one._room(0, 2 * max(self.like.width, 1))
        self.extra = one._room(0, EACH * max(self.like.width, 1))
        self.n, self.width = self.size + self.halo, self.parts * self.size
        self.place = dataclasses.replace(self.over, counts=(1,) * self.parts, size=1)

    def each(self, f: Any, *statics: Any) -> Callable[..., Any]:
        """f(*statics, *arrays) on every device, for arrays [devices, …] and numbers."""
        mapped = _mapped(f, statics, self.place)
        return lambda *args: mapped(*jax.tree.map(self._for_each, args))

    def ahead(self) -> list[Future[Any]]:
        """The programs of the large levels, which compile side by side."""
        sizes = self.n, self.size, self.width, self.halo, self.extra, self.rooms, self.place
        return _compiled(sizes, self.finest.domain.over.size, *one.structure(self.finest.shards))

    def links(self, over: Distribution, how: Any) -> Links:
        return Links(how, jnp.asarray(over.counts, np.int32), self.size, over.axis)

    def _for_each(self, a: Any) -> Any:
        return np.full(self.parts, a) if np.ndim(a) == 0 else a

    def of_all(self, a: Array) -> np.ndarray:
        """[devices, …] on the host of every process."""
        found = everyones(lambda: {k: part[0] for k, part in self.over.on_host(a).items()}, self.over.mesh)
        return np.stack([*found.values()])

    def start(self, B: Any, theta: float) -> Matrix | None:
        """None: hosts have to look at A."""
        A, over = self.finest, self.over
        counts = np.array(over.counts, np.int32)
        links, entries = self.links(over, self.like), np.array(A.data_basis.over.counts, np.int32)
        key, terms = self.each(own_rows, self.n, A.domain.over.size)(A.shards, links, entries)
        matrix = self.each(programs.compressed, self.n, (self.n, self.n), self.rooms.entries)(key, terms)
        pieces = None if B is None else A.domain.enter(A.domain.accept(B)).reshape(self.parts, over.size)
        near, zeros = self.each(begun, self.n)(pieces, links)
        known = self.each(programs.measured)(matrix, near, zeros, counts, links)
        usual, *divides = self.of_all(known.scalars)[0][4:8]
        if not usual or any(divides):
            return None
        return Matrix(matrix, None, near, known, links, over, theta, True, entries.astype(np.int64))

    def coarsened(self, fine: Matrix) -> tuple[Matrix, Made] | None:
        """The matrix of the next level, and this level; None if no coarser level can be made here."""
        A, _, near, known, links, over, theta, definite, entries = fine
        n, width, rooms, weaker, rows = self.n, self.width, self.rooms, True, sum(over.counts)
        upper, lowest, negative, *largest = one._bounds(self.of_all(known.scalars)[0])
        while True:
            agg, scalars = self.each(programs.aggregated)(A, known, theta, links)
            counts, left = self.of_all(scalars).T.astype(int)
            if weaker and 2 * left.sum() > rows:
                theta *= WEAKER
                continue
            if not 0 < counts.sum() < rows:
                return None
            coarse = Distribution.of(over.mesh, over.axis, counts)
            counts, first = counts.astype(np.int32), coarse.starts[:-1].astype(np.int32)
            found = self.each(programs.prolonged, width)(A, near, known, agg, counts, theta, upper, links, first)
            inside = int(self.of_all(found.scalars)[:, 0].max())
            numbered = self.each(programs.compressed, width, (n, width), one._room(rooms.entries, inside))(*found.terms)
            P, below, longest = self.planned(numbered, coarse)
            R, near_below, unit = self.each(programs.transposed)(P, found.below, known.unit, below)
            extended, found = self.each(joined)(numbered, A, *self.moved(longest, False)(numbered, links))
            products, received = self.of_all(found).max(axis=0).astype(int).tolist()
            self.check_halo(received, self.extra)
            AP, products = self.product(A, extended, products, P)
            C, _ = self.product(R, AP, products, None)
            longest = 1 << int(self.of_all(self.each(longest_row)(C)).max()).bit_length()
            *terms, found_below = self.each(folded)(np.int32(self.size), C, *self.moved(longest, True)(C, below))
            entries_below, _, received = self.of_all(found_below).astype(int).T
            self.check_halo(received.max(), self.extra)
            if entries_below.sum() <= DENSEST * entries.sum() or not 0 < theta < 1:
                break
            theta, weaker = STRICTER * theta, False
        room = one._room(rooms.entries, int(entries_below.max()))
        C = self.each(programs.compressed, width, (n, width), room)(*terms)
        m = sum(coarse.counts) if sum(coarse.counts) <= self.whole else 0
        sizes = self.size, over.size, coarse.size, links.how.width, below.how.width, m, int(entries.max()), inside
        arrays = A, R, numbered if m else P, known.inverse
        # The next level does not wait for the program that cuts off the padding.
        cut = one.compiled_once(_mapped(trimmed, sizes, self.place), (), *one.structure(arrays))
        made = Made(
            lambda: cut.result()(*arrays),
            upper,
            (largest[0], largest[1]),
            over,
            None if m else coarse,
            links,
            below,
            int(entries.sum()),
        )
        definite = definite and not negative and lowest >= -ROUNDING * upper
        A, links, _ = self.planned(C, coarse)
        known = self.each(programs.measured)(A, near_below, unit, counts, links)
        return Matrix(A, C, near_below, known, links, coarse, WEAKER * theta, definite, entries_below), made

    def moved(self, longest: int, back: bool) -> Any:
        return self.each(moved, longest, self.extra, back)

    def check_halo(self, size: int, places: int) -> None:
        if size > places:
            raise ValueError("there is more of a halo than room for it")

    def product(self, A: Any, B: Any, products: int, then: Any) -> tuple[Any, int]:
        """A @ B of so many products of two entries on a device at most, and those in then.T @ it.

        TooLarge, ValueError: the device, or int32, does not hold that many.
        """
        room = one._room(self.rooms.products, products)
        on_device.check_list(max(products, room), "products of two entries")
        *terms, found = self.each(programs.multiplied, room)(A, B, then)
        entries, products = self.of_all(found).max(axis=0).astype(int).tolist()
        room = one._room(self.rooms.entries, entries)
        return self.each(programs.compressed, self.width, (self.n, self.width), room)(*terms), products

    def planned(self, S: Any, columns: Distribution) -> tuple[Any, Links, int]:
        """S with its columns in places of [own | halo], the halo's exchange, and a bound of the length of S's rows.

        ValueError: the halo is longer than its places.
        """
        counts, first = (a.astype(np.int32) for a in (np.array(columns.counts), columns.starts[:-1]))
        ids, entry, scalars = self.each(outside, self.halo, self.extra)(S, first, counts)
        found, entries, longest = self.of_all(scalars).astype(int).T
        self.check_halo(found.max(), self.halo)
        self.check_halo(entries.max(), self.extra)
        needs = {k: a[0][: found[k]].astype(np.int64) for k, a in self.over.on_host(ids).items()}
        plan = halo.plan(needs, columns)
        made = {k: _roomy(plan.how[k], plan.slots[k], self.like, k) for k in needs}
        self.check_halo(next(iter(made.values()))[0].width, self.halo)
        slots = self.over.spread({k: np.pad(s, (0, self.halo - len(s))).astype(np.int32) for k, (_, s) in made.items()})
        links = self.links(columns, self.over.spread({k: how for k, (how, _) in made.items()}))
        placed_S = self.each(placed, (self.n, self.n))(S, first, ids, entry, slots, links)
        return placed_S, links, 1 << int(longest.max()).bit_length()


def large_levels(
    A: Any, B: Any, theta: float, most: int, whole: int, keep: Callable[[Made, int], Any]
) -> tuple[Rows, Aggregation, Start] | None:
    """As `_device_hierarchy.large_levels`, of a sharded matrix, down to the first level of at most `whole` rows."""
    setup, levels = Setup(A, whole), []
    wait_for = setup.ahead()
    matrix = setup.start(B, theta)
    wait(wait_for)
    while matrix is not None and sum(matrix.over.counts) > max(whole, most) and matrix.entries.sum() > one.FEW:
        try:
            step = setup.coarsened(matrix)
        except ValueError:  # lists of products or halos are too large
            step = None
        if step is None:
            break
        matrix, made = step
        levels.append(made)
    if matrix is None or not levels:
        return None
    over, m = matrix.over, sum(matrix.over.counts)
    rows = setup.each(shrunk, setup.width, over.size, m, (over.size, m), int(matrix.entries.max()))(matrix.numbered)
    data, col, ptr = (over.on_host(a) for a in (rows.values, rows.col_idx, rows.row_ptr))
    near, unit = (over.on_host(v) for v in (matrix.near, matrix.known.unit))

    def part(k: int) -> Any:
        count, nnz = over.counts[k], matrix.entries[k]
        S = scipy.sparse.csr_array((data[k][0][:nnz], col[k][0][:nnz], ptr[k][0][: count + 1]), shape=(count, m))
        return aggregation.points(S, 1)

    B, unit = ({k: v[0][: over.counts[k]] for k, v in of.items()} for of in (near, unit))
    start = Start([keep(made, k) for k, made in enumerate(levels)], unit, matrix.definite)
    coarsening = Aggregation({k: v[:, None] for k, v in B.items()}, matrix.theta, most)
    return Rows.of({k: part(k) for k in over.mine}, Cut(over.starts, over)), coarsening, start


@remembered(64, "programs of multigrid")
def _compiled(sizes: tuple[Any, ...], columns: int, leaves: tuple[Any, ...], tree: Any) -> list[Future[Any]]:
    """The programs of `Setup.coarsened` for shards of this structure, in the order of their calls."""
    n, size, width, halo, extra, rooms, place = sizes
    shards, count = jax.tree.unflatten(tree, leaves), np.zeros(len(place.counts), np.int32)
    piece, threads = NamedSharding(place.mesh, PartitionSpec(place.axis)), ThreadPoolExecutor()
    made: list[Future[Any]] = []

    def results(f: Any, *statics: Any) -> Callable[..., Any]:
        def traced(*args: Any) -> Any:
            args = jax.tree.map(lambda a: np.full(count.size, a) if np.ndim(a) == 0 else a, args)
            program = _mapped(f, statics, place).trace(*args)
            made.append(threads.submit(lambda: program.lower().compile()))  # a call finds it, or meets its error
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=piece), program.out_info)

        return traced

    counts: Any = jax.ShapeDtypeStruct(count.shape, np.int32)
    links = Links(shards.halo, counts, size, place.axis)
    entries = rooms.entries
    matrix = results(programs.compressed, n, (n, n), entries)(*results(own_rows, n, columns)(shards, links, count))
    near, zeros = results(begun, n)(None, links)
    known = results(programs.measured)(matrix, near, zeros, count, links)
    agg, _ = results(programs.aggregated)(matrix, known, 0.5, links)
    found = results(programs.prolonged, width)(matrix, near, known, agg, count, 0.5, 1.0, links, count)
    P = results(programs.compressed, width, (n, width), entries)(*found.terms)
    ids, entry, _ = results(outside, halo, extra)(P, count, count)
    slots = jax.ShapeDtypeStruct((count.size, halo), np.int32, sharding=piece)
    placed_P = results(placed, (n, n))(P, count, ids, entry, slots, links)
    R, *_ = results(programs.transposed)(placed_P, found.below, zeros, links)
    sent = [results(moved, longest, extra, back)(P, links) for longest, back in USUAL]
    extended, _ = results(joined)(P, matrix, *sent[0])
    *terms, _ = results(programs.multiplied, rooms.products)(matrix, extended, placed_P)
    AP = results(programs.compressed, width, (n, width), entries)(*terms)
    results(programs.multiplied, rooms.products)(R, AP, None)
    results(longest_row)(AP)
    *terms, _ = results(folded)(np.int32(size), AP, *sent[-1])
    results(programs.compressed, width, (n, width), entries)(*terms)
    threads.shutdown(wait=False)
    return made


@remembered(256, "programs of multigrid")
def _mapped(f: Any, statics: tuple[Any, ...], over: Distribution) -> Any:
    piece = PartitionSpec(over.axis)

    def body(*args: Any) -> Any:
        out = f(*statics, *jax.tree.map(lambda a: a[0], args))
        return jax.tree.map(lambda a: a[None], out)

    return jax.jit(lambda *args: over.mapped(body, piece, piece, check_vma=False)(*args))


def _roomy(how: Exchange, slots: np.ndarray, like: Exchange, k: int) -> tuple[Exchange, np.ndarray]:
    """The exchange in the places of a longer one between the same devices, so that both have one program.

    Args:
      how, slots: of device k, in NumPy.
    """
    fits = (
        how.send is not None
        and how.pairs == like.pairs
        and all(a <= b for a, b in zip(how.sizes, like.sizes, strict=True))
    )
    if not fits:
        return how, slots
    repeats = like.width // like.sizes[0] if like.pairs is None else 1  # lists of an all_to_all
    old, new = (np.cumsum([0, *(repeats * of.sizes)]) for of in (how, like))
    list_of = np.searchsorted(old, slots, side="right") - 1
    sent: Any = how.send
    send = np.zeros(like.width, sent.dtype)
    for begin, end, place in zip(old[:-1], old[1:], new[:-1], strict=True):
        send[place : place + end - begin] = sent[begin:end]
    made: Any = send
    return dataclasses.replace(like, send=made), slots - old[list_of] + new[list_of]
