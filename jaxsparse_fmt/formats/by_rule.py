"""What formats share: an address rule and a column rule (`kernels/`) give the faces, the coordinates and the basis."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Self, get_type_hints

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.basis import IDENTITY, Basis
from jaxsparse_fmt.kernels import columns
from jaxsparse_fmt.kernels.address import Address, Chunked
from jaxsparse_fmt.kernels.column_rule import ColumnRule, Delta, Diagonal, Explicit
from jaxsparse_fmt.kernels.dialect import LAUNCH
from jaxsparse_fmt.kernels.rule import Rule
from jaxsparse_fmt.matrix import SparseMatrix

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ByRule(SparseMatrix):
    """A format whose `address` and `column` say where its entries lie; its fields are the arrays that the two read.

    A field `perm` [n_rows] int32 means that storage row k is row perm[k] of the matrix; None, or no such field: the
    matrix's own order.
    """

    # Arrays that products do not read.
    unread: ClassVar[tuple[str, ...]] = ("row_lengths",)

    @property
    def address(self) -> Address:
        """Where the entries of a row lie."""
        raise NotImplementedError

    @property
    def column(self) -> ColumnRule:
        """Which columns they have."""
        return Explicit()

    @property
    def arrays(self) -> dict[str, Array]:
        """The index arrays by the names that the rules use."""
        named = {name: getattr(self, name) for name in array_fields(type(self)) if name != "values"}
        return {"slice_ptr" if k == "row_ptr" else k: a for k, a in named.items() if a is not None}

    @property
    def arrays_read(self) -> dict[str, Array]:
        """Those of `arrays` that products read."""
        return {name: a for name, a in self.arrays.items() if name not in self.unread}

    @property
    def faces(self) -> RuleFaces:
        return RuleFaces(Rule(self.shape, self.n_stored, self.address, self.column), tuple(self.arrays_read))

    @property
    def structure(self) -> tuple[Array, ...]:
        return tuple(self.arrays_read.values())

    def coordinates(self) -> tuple[Array, Array, Array]:
        arrays, (n_rows, n_cols) = self.arrays, self.shape
        rule = self.faces.rule
        if self.n_stored == 0:
            nothing = jnp.zeros(0, jnp.int32)
            return nothing, nothing, nothing
        row, col, j = rule.places(arrays)
        live = col < n_cols
        if "pattern" in arrays or isinstance(rule.column, Diagonal):  # not every place of a row holds an entry
            j = _rank(live, arrays, rule)
        if "row_lengths" in arrays and arrays["row_lengths"].shape[0] == n_rows:
            lengths = arrays["row_lengths"]
            lengths = lengths if "perm" not in arrays else jnp.zeros_like(lengths).at[arrays["perm"]].set(lengths)
        elif "slice_ptr" in arrays and isinstance(rule.address, Chunked) and rule.address.lanes == 1:
            lengths = jnp.diff(arrays["slice_ptr"])
        else:
            lengths = None
        return row, col, index_in_data(self, row, j, live, lengths)

    @property
    def basis(self) -> Basis:
        """The sorted order of a square matrix whose rows are stored sorted."""
        return IDENTITY if self._own_order() is None else Basis(self._own_order())

    @property
    def in_basis(self) -> Self:
        """The matrix between vectors in its sorted order: `col_idx` renumbered once, at 4 bytes a stored place.

        Its `data` lists the entries of a row in the order of the columns that they had before.
        """
        perm = self._own_order()
        if perm is None:
            return self
        n = self.shape[1]
        renumbered = jnp.full(n + 1, n, jnp.int32).at[perm].set(jnp.arange(n, dtype=jnp.int32), unique_indices=True)
        col_idx = renumbered.at[self.arrays["col_idx"]].get(mode="promise_in_bounds")
        return dataclasses.replace(self, col_idx=col_idx, perm=None)  # pyright: ignore[reportCallIssue]

    def _own_order(self) -> Array | None:
        square = self.shape[0] == self.shape[1]
        return self.arrays.get("perm") if square and isinstance(self.column, Explicit) else None


@dataclasses.dataclass(frozen=True)
class RuleFaces:
    """The three faces over a storage rule. `names` are those of the arrays in `structure`."""

    rule: Rule
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rule.shape

    @property
    def n_stored(self) -> int:
        return self.rule.n_stored

    def arrays(self, structure: tuple[Array, ...]) -> dict[str, Array]:
        return dict(zip(self.names, structure, strict=True))

    def product(self, values, x, structure, backend):
        return columns.product(values, x, self.arrays(structure), rule=self.rule, backend=backend)

    @property
    def dots(self) -> bool:
        """Whether an inner product is cheaper in the product's kernel than after it: not where rows are long, nor
        where a thread that works for two lanes has to shuffle them."""
        short = 0 < self.rule.n_stored < LAUNCH.long_rows * self.rule.shape[0]
        return short and not isinstance(self.rule.column, Delta)

    @property
    def sums(self) -> int:
        return columns.parts(self.rule)

    def product_dot(self, values, x, w, structure, backend):
        return columns.product_dot(values, x, w, self.arrays(structure), rule=self.rule, backend=backend)

    def transposed(self, values, y, structure, backend):
        return columns.transposed(values, y, self.arrays(structure), rule=self.rule, backend=backend)

    def outer(self, y, x, structure, backend):
        return columns.outer(y, x, self.arrays(structure), rule=self.rule, backend=backend)


def index_in_data(A: SparseMatrix, row: Array, j: Array, live: Array, lengths: Array | None = None) -> Array:
    """Where in `A.data` entry j of a row is, nnz where not `live`. `lengths`: of all rows; None: they are counted."""
    if lengths is None:
        n_rows = A.shape[0]
        lengths = jnp.zeros(n_rows, jnp.int32).at[jnp.where(live, row, n_rows)].add(1, mode="drop")
    first = jnp.cumsum(lengths, dtype=index_dtype(A.nnz)) - lengths
    return jnp.where(live, first.at[row].get(mode="promise_in_bounds") + j, A.nnz)


def _rank(live: Array, arrays: dict[str, Array], rule: Rule) -> Array:
    """How many entries of its row come before each stored place, where not every place holds one."""
    address = rule.address
    assert isinstance(address, Chunked)
    live = live.reshape(-1, address.lanes)
    before = jnp.cumsum(live, axis=0, dtype=jnp.int32) - live
    _, k = address.owners(jnp, arrays, rule.n_stored)
    return (before - before[jnp.arange(k.shape[0], dtype=k.dtype) - k]).reshape(-1)


@functools.cache
def array_fields(cls: type[Any]) -> tuple[str, ...]:
    """The fields of a format that are annotated as `Array` or `Array | None`."""
    hints = get_type_hints(cls)
    return tuple(f.name for f in dataclasses.fields(cls) if hints[f.name] in (Array, Array | None))


def register(cls: type[Any]) -> type[Any]:
    """Makes a format a pytree: its `array_fields` are leaves, the rest is static."""
    leaves = array_fields(cls)
    static = [f.name for f in dataclasses.fields(cls) if f.name not in leaves]
    return jax.tree_util.register_dataclass(cls, leaves, static)
