"""The common part of `spmv.py` and `sddmm.py`: one kernel launch over the rows of a matrix stored by a `Rule`.

A block is a tile of lanes. Each lane visits the entries of one storage row (a `Walk` of the address rule), and loads
several entries a trip before it uses the first.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype, x64_enabled
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.backends import launch, pairs, tuning
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.layout.address import Bisected, Slices, Subwarp
from jaxsparse_fmt.kernels.layout.columns import Blocked, Delta, Diagonal, Rule


def supported(backend: str, *operands: Array, size: int = 0) -> str:
    """`backend`, or "xla" if a Pallas kernel would need 64-bit addresses in 32-bit JAX."""
    reals = max(pairs.reals(a.dtype) for a in operands)
    wide = reals * max(size, *(a.size for a in operands)) >= 2**31 and not x64_enabled()
    return "xla" if wide else backend


@dataclasses.dataclass(frozen=True)
class Pack:
    """`length` neighbouring right-hand sides that a lane loads at once, a second axis [lanes, length]; none for one."""

    length: int

    @classmethod
    def of(cls, dialect: str, p: int, dtype: Any) -> Self:
        """The longest pack that divides p. Mosaic GPU loads one right-hand side at a time."""
        most = max(tuning.LAUNCH.pack_bytes // jnp.dtype(dtype).itemsize, 1)
        return cls(1 if dialect == "mosaic" else math.gcd(p, most, tuning.LAUNCH.columns_a_lane))

    def columns(self, first: jax.Array, count: int, p: int, lanes: int = 1) -> list[tuple[Any, Any]]:
        """(first right-hand side, whether it exists) of each pack of `lanes` lanes that share `count` of p of them."""
        exact = p % count == 0
        return [(first + q, exact or first + q < p) for q in range(0, count, lanes * self.length)]

    def places(self, first: jax.Array) -> jax.Array:
        """The indices of the packs that begin at `first` [lanes]."""
        return first if self.length == 1 else first[:, None] + jnp.arange(self.length, dtype=first.dtype)

    def load(
        self, d: Any, ref: Any, base: jax.Array, columns: list[tuple[Any, Any]], live: jax.Array
    ) -> list[jax.Array]:
        """The packs `columns` of the rows of `ref` that begin at `base` [lanes]."""
        return [d.load(ref, self.places(base + q), self.of_lanes(live & inside), 0) for q, inside in columns]

    def of_lanes(self, a: Any) -> Any:
        """a [lanes] in a shape that broadcasts against packs."""
        return a if self.length == 1 else jax.tree.map(lambda part: part[:, None], a)

    def repeated(self, a: Any) -> Any:
        """a [lanes], repeated for each right-hand side of a pack."""
        if self.length == 1:
            return a
        return jax.tree.map(lambda part: jnp.broadcast_to(part[:, None], (*part.shape, self.length)), a)


class LaneGroups:
    """The dialect `d` in groups of n neighbouring lanes: `lanes()` numbers the groups, `column()` the lanes of each."""

    def __init__(self, d: Any, n: int):
        self._d, self._n, self.rows = d, n, d.rows // n
        self.full, self.load, self.store, self.sum_threads = d.full, d.load, d.store, d.sum_threads

    def lanes(self) -> jax.Array:
        return lax.div(self._d.lanes(), self._d.full(self._n, jnp.int32))

    def column(self) -> jax.Array:
        return lax.rem(self._d.lanes(), self._d.full(self._n, jnp.int32))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of one launch. Its blocks are tiles × blocks of columns × members of the batch, tiles fastest."""

    rule: Rule
    p: int  # right-hand sides
    rows: int  # storage rows of a tile
    tiles: int
    lanes_a_row: int  # neighbouring lanes that take different right-hand sides of one row
    block_columns: int  # right-hand sides of a block, of which a lane loads one pack at once
    pack: Pack
    column_blocks: int
    blocks: int
    unroll: int  # entries that a lane loads before it uses the first
    acc: Any  # the dtype of sums
    address_dtype: Any

    def position(self, block):
        """The tile, the block of columns and the member of the batch of a block."""
        rest, zero = jnp.int32(0), jnp.int32(0)
        if self.blocks > self.tiles:
            block, rest = lax.rem(block, jnp.int32(self.tiles)), lax.div(block, jnp.int32(self.tiles))
        if self.column_blocks == 1:
            return block, zero, rest.astype(self.address_dtype)
        count = jnp.int32(self.column_blocks)
        return block, lax.rem(rest, count), lax.div(rest, count).astype(self.address_dtype)

    def columns(self, d, column_block):
        """The right-hand sides of each lane, as `Pack.columns` gives them."""
        first = column_block * self.block_columns
        if self.lanes_a_row > 1:
            first = first + d.column() * jnp.int32(self.pack.length)
        return self.pack.columns(first, self.block_columns, self.p, self.lanes_a_row)

    def walks(self, d, arrays, tile):
        """The walks of a tile; each knows the matrix row of its lanes."""
        for walk in self.rule.address.walks(d, arrays, tile, self.rule.n_stored, self.address_dtype):
            inside, perm = walk.row < self.rule.shape[0], arrays.get("perm")
            walk.matrix_row = walk.row if perm is None else d.load(perm, walk.row, inside, 0)
            yield walk

    def trips(self, walk):
        return lax.div(walk.longest + jnp.int32(self.unroll - 1), jnp.int32(self.unroll))

    def entries(self, walk, trip):
        """(index in the row, address, whether it exists) of each entry of a trip."""
        return [(e, *walk.entry(e)) for e in (trip * self.unroll + u for u in range(self.unroll))]


def launch_rows(
    kernel: Callable[..., None],
    backend: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    rule: Rule,
    loops_over_columns: bool = False,
) -> tuple[Array, ...]:
    """Flattens every array, chooses the blocks and the width of addresses, and runs `kernel(d, sizes=..., **refs)`.

    Args:
      inputs: arrays, "x" [b, n_cols, p] among them, or None.
      outputs: by name, each a shape and dtype or the array that is updated; the first decides the dtype of sums.
      loops_over_columns: whether each lane goes through all right-hand sides by itself.
    """
    out = next(iter(outputs.values()))
    flat = {k: a.reshape(-1) for k, a in inputs.items() if a is not None}
    (batch, _, p), unit = inputs["x"].shape, rule.column.unit
    alone, shared = not loops_over_columns and p == 1, 1 if loops_over_columns else p
    load = kind_of_loads(rule, "perm" in inputs, jnp.dtype(out.dtype).itemsize <= 4, alone)
    block = tuning.block(backend, load, rule.address.lanes)
    pack = Pack.of(backend, shared, inputs["x"].dtype)
    lanes_a_row, block_columns = _columns_of_block(rule, shared, pack)
    if lanes_a_row > 1:
        block = tuning.columns_block(backend, load, lanes_a_row)
    elif block_columns > 1 and load in ("shared", "very long shared"):
        block = tuning.block(backend, "columns", 0)
    tiles = -(-rule.address.width * lanes_a_row // block.rows)
    column_blocks = -(-shared // block_columns)
    sizes = Sizes(
        rule=rule,
        p=p,
        rows=block.rows,
        tiles=tiles,
        lanes_a_row=lanes_a_row,
        block_columns=block_columns,
        pack=pack,
        column_blocks=column_blocks,
        blocks=tiles * column_blocks * batch,
        unroll=unit * max(block.unroll // unit, 1),
        acc=accumulator(out.dtype),
        address_dtype=index_dtype(pairs.reals(out.dtype) * max(out.size, *(a.size for a in flat.values()))),
    )
    return launch.launch(
        functools.partial(kernel, sizes=sizes),
        backend,
        block=block,
        blocks=sizes.blocks,
        inputs=flat,
        outputs={k: _flat(o) for k, o in outputs.items()},
    )


def _flat(out: Any) -> Any:
    return out.reshape(-1) if isinstance(out, jax.Array) else jax.ShapeDtypeStruct((out.size,), out.dtype)


def _columns_of_block(rule: Rule, p: int, pack: Pack) -> tuple[int, int]:
    """The number of lanes that share a row's right-hand sides, and of those that they take at once, whole packs.

    A lane reads an index and a value once for the right-hand sides that it has in registers. A lane with many of them
    would read a sector of 32 bytes at a time; neighbouring lanes with a few each read whole sectors together.
    """
    if isinstance(rule.address, Subwarp | Bisected) or rule.address.threads > 1:
        return 1, min(p, tuning.LAUNCH.columns_alone)
    most = tuning.LAUNCH.columns_a_lane
    lanes = -(-p // most)
    lanes = min(1 << (lanes - 1).bit_length(), tuning.LAUNCH.lanes_a_row)
    packs = -(-p // (lanes * pack.length))
    return lanes, lanes * min(packs * pack.length, most)


def kind_of_loads(rule: Rule, permuted: bool, narrow: bool, alone: bool) -> str:
    """The kind of a lane's loads, without its values: a key of `tuning.LAUNCH.loads`.

    Sums may go to their rows through a permutation, be narrow (4 bytes or fewer), or be alone in their lane.
    """
    full = "permuted" if permuted and narrow else "full"
    if not isinstance(rule.address, Slices):
        return full
    if isinstance(rule.column, Blocked) and alone:
        return "blocks"
    if rule.address.lanes >= rule.shape[0]:
        whole = "narrow whole diagonals" if narrow else "whole diagonals"
        return whole if isinstance(rule.column, Diagonal) and alone else full
    mean = rule.n_stored / rule.shape[0]
    if rule.address.threads > 1:
        return "very long shared" if mean >= tuning.LAUNCH.very_long_rows else "shared"
    long_rows = mean >= tuning.LAUNCH.long_rows
    if isinstance(rule.column, Delta):
        very_short = mean < tuning.LAUNCH.very_short_rows
        return "long deltas" if long_rows else "very short deltas" if very_short else "deltas"
    return "diagonals" if isinstance(rule.column, Diagonal) and not long_rows else full
