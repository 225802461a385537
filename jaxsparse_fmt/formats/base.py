"""The base of the formats whose products, entries and basis follow from an address rule and a column rule.

One program serves all shards only if their arrays have equal shapes, and the sizes of arrays depend on the pattern, for
instance on the number of diagonals. So `distributed/padding.py` lengthens each array by the function in its field's
annotation, and takes `max` of a number that sets a size. No product reads a place after the last pointer, and its index
means padding. A field annotated plain `Array` must have equal sizes in all shards.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Self, dataclass_transform, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Array, Csr, Target
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.origin import Origin
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels import sddmm, spmv
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.layout.address import Address, Chunked, Jagged, Slices, when_run
from jaxsparse_fmt.kernels.layout.columns import ColumnRule, Delta, Diagonal, Explicit, Rule
from jaxsparse_fmt.kernels.vector_pass import Pass


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ByRule(SparseMatrix):
    """A format defined by its rules `address` and `column`; its fields are the arrays that the two rules read.

    With a field `perm` [n_rows] int32, storage row k is row perm[k] of the matrix. Without it, or if it is None, rows
    are stored in the order of the matrix.
    """

    @staticmethod
    def _filled(
        csr: Csr, target: Target, rows: building.Rows, address: Address, places: int | np.ndarray
    ) -> dict[str, Any]:
        """`values`, `col_idx` and, if `places` has an entry for each slice or column, pointers."""
        arrays, n_stored = {}, places
        if isinstance(places, np.ndarray):
            ptr = building.pointers(places)
            arrays, n_stored = {"col_start" if isinstance(address, Jagged) else "slice_ptr": ptr}, ptr[-1]
        values, col_idx = building.fill(csr, rows, address, arrays, int(n_stored), target.dtype)
        return {"values": values, "col_idx": col_idx, **arrays}

    # The address rule, of the number of rows and the layout options: here slices of `slice_size` rows, or one of all.
    _rule_of_rows: ClassVar[Callable[..., Address]] = staticmethod(
        lambda n_rows, slice_size=None, **layout: Slices(n_rows, slice_size or max(n_rows, 1))
    )

    @property
    def address(self) -> Address:
        return self._rule_of_rows(self.shape[0], **self.layout)

    @property
    def column(self) -> ColumnRule:
        """The column rule: here an index at every place."""
        return Explicit()

    @property
    def _arrays(self) -> dict[str, Array]:
        """The index arrays, by the names that the rules use."""
        named = {name: vars(self)[name] for name in array_fields(type(self)) if name != "values"}
        return {"slice_ptr" if k == "row_ptr" else k: a for k, a in named.items() if a is not None}

    @property
    def _rule(self) -> Rule:
        """The address rule and the column rule."""
        return Rule(self.shape, self.n_stored, self.address, self.column)

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        return spmv.product(values, x, self._arrays, rule=self._rule, backend=backend)

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        return spmv.transposed_reference(values, y, self._arrays, rule=self._rule)

    def _outer_face(self, y: Array, x: Array, backend: str) -> Array:
        return sddmm.outer(y, x, self._arrays, rule=self._rule, backend=backend)

    @property
    def _sums(self) -> int:
        """Number of partial sums; 0 if rows are long or a thread holds two lanes, since fusing does not pay there."""
        short = 0 < self.n_stored < LAUNCH.long_rows * self.shape[0]
        return spmv.parts(self._rule) if short and not isinstance(self.column, Delta) else 0

    def _product_sums(self, values: Array, x: Array, others: Any, what: Pass, backend: str) -> tuple[Array, ...]:
        return spmv.product_sums(values, x, others, self._arrays, what=what, rule=self._rule, backend=backend)

    def entries(self) -> tuple[Array, Array, Array, Array]:
        return *places_of(self, self._arrays, self._rule), self.values

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        return *host_places(self._arrays, self._rule), np.asarray(self.values)

    @property
    def basis(self) -> Basis:
        """The sorted order of a square matrix whose rows are stored sorted."""
        perm = self._basis_order() if "perm" in vars(self) else None
        return IDENTITY if perm is None else Basis(perm)

    @property
    def in_basis(self) -> Self:
        """The same matrix for vectors in its sorted order; it renumbers `col_idx` once, at 4 bytes a stored place.

        Its `data` lists the entries of a row by rising column of the original matrix.
        """
        perm = self._basis_order()
        if perm is None:
            return self
        col_idx = _renumbered(self._arrays["col_idx"], perm)
        return dataclasses.replace(self, col_idx=col_idx, perm=None)  # pyright: ignore[reportCallIssue]

    def _basis_order(self) -> Array | None:
        self._check_single()
        perm = vars(self).get("perm")
        square = self.shape[0] == self.shape[1]
        return perm if perm is not None and square and isinstance(self.column, Explicit) else None


@jax.jit
def _renumbered(col_idx: Array, perm: Array) -> Array:
    """The columns [n_stored] in the order `perm` [n]; n in padding."""
    n = perm.shape[0]
    inverse = jnp.full(n + 1, n, jnp.int32).at[perm].set(jnp.arange(n, dtype=jnp.int32), unique_indices=True)
    return inverse.at[col_idx].get(mode="promise_in_bounds")


def host_places(arrays: dict[str, Array], rule: Rule) -> tuple[Any, Any]:
    """Row and column of a storage by these arrays and this rule, in NumPy."""
    row, col, _ = rule.places({name: np.asarray(a) for name, a in arrays.items()})
    return row, col


@standard_promotion
def places_of(A: SparseMatrix, arrays: dict[str, Array], rule: Rule) -> tuple[Array, Array, Array]:
    """Row, column and index in `data`, as `A.entries()`, of a storage by these arrays and this rule."""
    n_rows, n_cols = A.shape
    if A.n_stored == 0:
        nothing = jnp.zeros(0, jnp.int32)
        return nothing, nothing, nothing
    arrays = {name: when_run(a) for name, a in arrays.items()}
    row, col, j = rule.places(arrays)
    live = col < n_cols
    if "pattern" in arrays or isinstance(rule.column, Diagonal):  # not every place of a row holds an entry
        j, lengths = _ranks(live, arrays, rule)
    elif "row_lengths" in arrays and arrays["row_lengths"].shape[0] == n_rows:
        lengths = arrays["row_lengths"]
    elif "slice_ptr" in arrays and isinstance(rule.address, Chunked) and rule.address.lanes == 1:
        lengths = jnp.diff(arrays["slice_ptr"])
    else:
        lengths = None
    if lengths is not None and "perm" in arrays:
        lengths = jnp.zeros_like(lengths).at[arrays["perm"]].set(lengths, unique_indices=True)
    return row, col, index_in_data(A, row, j, live, lengths)


def index_in_data(A: SparseMatrix, row: Array, j: Array, live: Array, lengths: Array | None = None) -> Array:
    """The index in `A.data` of entry j of a row, nnz where not `live`. `lengths`: of all rows; None counts them."""
    if lengths is None:
        n_rows = A.shape[0]
        lengths = jnp.zeros(n_rows, jnp.int32).at[jnp.where(live, row, n_rows)].add(1, mode="drop")
    first = jnp.cumsum(when_run(lengths), dtype=index_dtype(A.nnz)) - lengths
    return jnp.where(live, first.at[row].get(mode="promise_in_bounds") + j, A.nnz)


def _ranks(live: Array, arrays: dict[str, Array], rule: Rule) -> tuple[Array, Array]:
    """The entries of the same row before each place, and the entries of each row, of a storage with empty places."""
    address = rule.address
    assert isinstance(address, Chunked)
    before = jnp.pad(jnp.cumsum(live.reshape(-1, address.lanes), axis=0, dtype=jnp.int32), ((1, 0), (0, 0)))
    _, k = address.owners(jnp, arrays, rule.n_stored)
    first, count = address.bounds(jnp, arrays, rule.n_stored)
    before_slice = before[jnp.arange(k.shape[0], dtype=k.dtype) - k]
    lengths = address.fold((before[first + count] - before[first])[..., None])[:, 0]
    return (before[:-1] - before_slice).reshape(-1), lengths


@functools.cache
def array_fields(cls: type[Any]) -> tuple[str, ...]:
    """The fields of a format that are annotated as `Array` or `Array | None`."""
    hints = get_type_hints(cls)
    return tuple(f.name for f in dataclasses.fields(cls) if hints[f.name] in (Array, Array | None))


def option(default: Any, check: Callable[[Any, int], Any]) -> Any:
    """The field of a layout option, with its default; check(given, n_rows) returns its value, or raises."""
    return dataclasses.field(metadata={"default": default, "check": check})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(option,))
def storage_format(cls: type[Any]) -> type[Any]:
    """Makes a format a frozen dataclass and a pytree: its `array_fields` are leaves, the rest is static."""
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    cls.layout_options = tuple(f.name for f in dataclasses.fields(cls) if f.metadata) or cls.layout_options
    return pytree(cls, array_fields(cls), Origin.of)


# ----------------------------------------------------------------------------------------- annotations of fields


def padded_with(value: Callable[[Any], int]) -> Callable[[np.ndarray, int, Any], np.ndarray]:
    """The function of an array, the required size and its matrix A that pads by one number, value(A)."""
    return lambda a, size, A: np.concatenate([a, np.full(size - a.shape[0], value(A), a.dtype)])


ColumnIndex = Annotated[Array, padded_with(lambda A: A.shape[1])]
Offset = ColumnIndex  # column minus row of a diagonal; n_cols lies beyond the matrix
RowIndex = Annotated[Array, padded_with(lambda A: A.shape[0])]
ZeroPadded = Annotated[Array, padded_with(lambda A: 0)]
Pointer = Annotated[Array, lambda a, size, A: np.pad(a, (0, size - a.shape[0]), mode="edge")]
# First places of diagonals of n_rows places each.
Start = Annotated[Array, lambda a, size, A: np.append(a, A.shape[0] * np.arange(a.shape[0], size))]
# Rows that continue elsewhere; padding adds rows beyond the matrix, each once.
LongRows = Annotated[
    Array, lambda a, size, A: np.concatenate([a, A.shape[0] + np.arange(size - a.shape[0], dtype=a.dtype)])
]
Largest = Annotated[int, max]
AnyShards = Annotated[bool, max]  # true of all shards if it is of one


@functools.cache
def noted(cls: type[Any]) -> dict[str, Any]:
    """The functions in the annotations of a format's fields, by the field's name."""
    notes = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        for part in (hint, *get_args(hint)):  # of `X | None`, too
            if hasattr(part, "__metadata__"):
                notes[name] = part.__metadata__[0]
    return notes
