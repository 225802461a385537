"""Sums, scalings and diagonal shifts of sharded matrices, whose entries stay on their devices.

One number for each row or column travels: `scale_cols` exchanges the halo of its vector, as a product does.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._tracing import concrete, is_traced
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.entry_index import index_arrays
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.distributed.halo import exchange
from jaxsparse_fmt.distributed.local import Shards
from jaxsparse_fmt.distributed.processes import named

Array = jax.Array


class ShardedAlgebra(ScipyNames):
    """The operations of `core.scipy_names` that keep the pattern of a sharded matrix; others are refused."""

    shards: Any
    domain: Any
    range: Any
    is_entered: bool
    full_diagonal: bool
    _check_devices: Any

    def _times_matrix(self, other: Any) -> Any:
        raise TypeError(
            f"the product of a sharded matrix with a {type(other).__name__} would move entries between devices, which "
            "no operator does; multiply before `shard`, as in shard(A.to_scipy() @ B.to_scipy(), mesh)"
        )

    def _combined(self, operation: str, other: Any, f: Callable[[Array, Array], Array]) -> Any:
        """f applied, shard by shard, to the values of two matrices with the same pattern.

        Raises:
          ValueError: the patterns or their distributions differ, or are traced and not the same arrays. TypeError: one
            is no sharded matrix, but its transpose, whose entries lie on other devices, or a matrix of one device.
        """
        with self._failing_together(operation):
            for M in (self, other):
                if not isinstance(M, ShardedAlgebra):
                    raise TypeError(
                        f"{operation} of sharded matrices moves no entries, so it takes two of the same pattern, got "
                        f"a {type(M).__name__}; combine the matrices before `shard`, as in shard(S + S.T, mesh)"
                    )
                M._check_devices()
            self._agree(B=other.shards.blocks[0].values)
        mine, others = index_arrays(self), index_arrays(other)
        same = jax.tree.structure(self) == jax.tree.structure(other)
        if same and any(a is not b for a, b in zip(mine, others, strict=True)):
            same = not is_traced(mine, others) and _equal(mine, others)
        if not same:
            raise ValueError(
                f"sharded matrices of shapes {self.shape} and {other.shape} can be combined only if they "
                "have the same pattern, cut and stored in the same way; make one from the other by with_data, or "
                "combine the matrices before `shard`. Patterns that are traced cannot be compared: inside jit take "
                "A.with_data(A.data + B.data)"
            )
        values = zip(*(of_blocks(M, _values_of) for M in (self, other)), strict=True)
        return with_values(self, tuple(f(a, b) for a, b in values))

    def copy(self) -> Any:
        self._check_devices()
        return super().copy()

    def scale_rows(self, d: Any) -> Any:
        """diag(d)·A, of the same pattern; d is [n_rows]."""
        return with_values(self, _scaled(self, self._vector(d, self.range, 0, "scale_rows"), 0))

    def scale_cols(self, d: Any) -> Any:
        """A·diag(d), of the same pattern; d is [n_cols]."""
        return with_values(self, _scaled(self, self._vector(d, self.domain, 1, "scale_cols"), 1))

    def shift(self, s: Any) -> Any:
        """A + s·I, of the same pattern, which must contain the whole diagonal.

        Args:
          s: a number, or [n] for diag(s); may be traced.

        Raises:
          ValueError: the pattern lacks an entry of the diagonal, A is not square, or s has another shape.
        """
        self._check_diagonal("shift")
        return with_values(self, _shifted(self, self._vector(s, self.range, 0, "shift")))

    def _eliminated(self, free: Array, diagonal: Array) -> Any:
        """The entries of rows and columns where `free` holds, both [n], and in the others `diagonal` [n] alone."""
        self._check_diagonal("constrain")
        both = (self._vector(d.astype(self.dtype), self.range, 0, "constrain") for d in (free, diagonal))
        return with_values(self, _of_free(self, *both))

    def data_of(self, gradient: Any) -> Array:
        """The entries [nnz] of a gradient in this whole matrix, in the order of `data`; as `SparseMatrix.data_of`."""
        pairs = zip(jax.tree.leaves(self), jax.tree.leaves(gradient), strict=True)
        leaves = [g if jnp.issubdtype(g.dtype, jnp.inexact) else a for a, g in pairs]
        A: Any = jax.tree.unflatten(jax.tree.structure(self), leaves)
        blocks = zip(A.shards.blocks, of_blocks(A, _shared_out), strict=True)
        return with_blocks(A, (block._with_values(v) for block, v in blocks)).data

    def _check_diagonal(self, name: str) -> None:
        n = self.shape[0]
        if n != self.shape[1]:
            raise ValueError(f"{name} needs a square matrix, got shape {self.shape}")
        if not self.full_diagonal:
            raise ValueError(
                f"{name} of a sharded matrix needs all {n} entries of the diagonal, and its pattern lacks some; use "
                "`shard` with the matrix after A.shift(0)"
            )

    def _vector(self, d: Any, basis: Any, axis: int, name: str) -> Any:
        with self._failing_together(name):
            self._check_devices()
            n = self.shape[axis]
            vector = as_floating(d, "d")
            if vector.ndim == 0 and name == "shift":
                self._agree(vector=d)
                return vector if is_traced(vector) else np.asarray(vector)
            if vector.shape != (n,):
                raise ValueError(f"{name}(d) takes d of shape ({n},), got {vector.shape}")
            vector = basis.accept(vector, d)
        return vector if self.is_entered else basis.enter(vector)


def with_values(A: Any, values: tuple[Array, ...]) -> Any:
    """The sharded matrix with other values of its blocks, each entry in a place of its own."""
    return with_blocks(A, (block._refilled(v) for block, v in zip(A.shards.blocks, values, strict=True)))


def with_blocks(A: Any, blocks: Iterable[Any]) -> Any:
    A = dataclasses.replace(A, shards=dataclasses.replace(A.shards, blocks=tuple(blocks)))
    named(A.shards.blocks[0].values)
    return A


def _values_of(block: Any) -> Array:
    """The values [n_stored], with every entry in its own place."""
    return block.entries()[3]


def _shared_out(block: Any) -> Array:
    return entry_index.shared_out(block).values


@functools.partial(jax.jit, static_argnums=1)  # by itself, shard_map compiles each operation at every call
def of_blocks(A: Any, f: Callable[[Any], Array]) -> tuple[Array, ...]:
    """f(block) [n_stored] on each device for the blocks whose entries share places; of other blocks the values."""
    if not any(block._shares_places for block in A.shards.blocks):
        return tuple(block.values for block in A.shards.blocks)
    return A.range.over.each(lambda shards: tuple(f(block)[None] for block in shards.blocks), A.shards)


def _equal(a: list[Array], b: list[Array]) -> bool:
    if any(x.shape != y.shape or x.dtype != y.dtype for x, y in zip(a, b, strict=True)):
        return False
    with concrete():
        return bool(np.all([jnp.array_equal(x, y) for x, y in zip(a, b, strict=True) if x is not y]))


@functools.partial(jax.jit, static_argnums=2)
def _scaled(A: Any, d: Array, axis: int) -> tuple[Array, ...]:
    """The values of all blocks, each times the number of d for its row (axis 0) or its column (axis 1)."""

    def scaled(shards: Shards, d: Array) -> tuple[Array, ...]:
        if axis == 1:
            d = jnp.concatenate([d, exchange(d, shards.halo)])
        return tuple((e[3] * d.at[e[axis]].get(mode="clip"))[None] for e in shards.entries())

    return A.range.over.each(scaled, A.shards, d)


@jax.jit
def _shifted(A: Any, s: Array) -> tuple[Array, ...]:
    s = jnp.broadcast_to(s, (A.range.places,))

    def shifted(shards: Shards, s: Array) -> tuple[Array, ...]:
        return tuple((value + _on_diagonal(s, row, col, index))[None] for row, col, index, value in shards.entries())

    return A.range.over.each(shifted, A.shards, s)


@jax.jit
def _of_free(A: Any, free: Array, diagonal: Array) -> tuple[Array, ...]:
    def of_free(shards: Shards, free: Array, diagonal: Array) -> tuple[Array, ...]:
        of_columns = jnp.concatenate([free, exchange(free, shards.halo)])

        def kept(row: Array, col: Array, index: Array, value: Array) -> Array:
            is_free = (free.at[row].get(mode="clip") != 0) & (of_columns.at[col].get(mode="clip") != 0)
            return jnp.where(is_free, value, _on_diagonal(diagonal, row, col, index))[None]

        return tuple(kept(*block) for block in shards.entries())

    return A.range.over.each(of_free, A.shards, free, diagonal)


def _on_diagonal(d: Array, row: Array, col: Array, index: Array) -> Array:
    """d at the entries of the diagonal, 0 at others and in padding."""
    return jnp.where((row == col) & (index < jnp.iinfo(index.dtype).max), d.at[row].get(mode="clip"), 0)
