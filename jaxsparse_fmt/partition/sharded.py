"""ShardedMatrix: a matrix whose rows are spread over the devices of a mesh axis.

             its own      needs of others          device k holds its rows, cut by column into
    device 0 ■■■■ ····  |  · h · · · ·                local   what multiplies its own piece of x
    device 1 ···· ■■■■  |  h · · · · h                halo    what multiplies the halo buffer (`halo.py`)
             columns of x

The three modes are those of Kreutzer et al. (2012), §III:

    vector    exchange, then one product with [x | halo]; copies x
    naive     y = local·x + halo·h, all rows in both: nothing hinders the exchange to run beside the first, nothing more
    overlap   y = local·x while the halo travels; then the rows on the boundary, which alone the second part holds

Local and halo part are matrices in any format of `FORMATS`, of one shape and size on all devices (`alike.py`), their
arrays with a leading axis over the devices. A vector in `basis` is sharded likewise (`spread.py`). Products are
`shard_map` over the pieces, and so JAX knows their derivatives and their batching; what solvers do between products is
ordinary arithmetic on sharded vectors, which XLA takes apart by itself, and passes (`vectors.sweep`), which take
themselves apart.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt import vectors
from jaxsparse_fmt._types import (
    Csr,
    as_floating,
    as_vector,
    check_keeps_imaginary,
    index_dtype,
    readable_bytes,
    requested_dtype,
)
from jaxsparse_fmt.basis import IDENTITY, Basis
from jaxsparse_fmt.matrix import SparseMatrix, build
from jaxsparse_fmt.partition.halo import exchange, exchange_on_host
from jaxsparse_fmt.partition.rows import Imbalance
from jaxsparse_fmt.partition.shards import Shards
from jaxsparse_fmt.partition.spread import Inside, Spread
from jaxsparse_fmt.transposed import Transposed

Array = jax.Array


class Told:
    """What was found when the matrix was made; no part of its identity, so that it compiles nothing anew. A matrix that
    comes out of a user's jit has that of the one with which it was traced.
    """

    def __init__(self, imbalance: Imbalance, exchange: str, format: str):
        self.imbalance, self.exchange, self.format = imbalance, exchange, format

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ShardedMatrix:
    """A sparse matrix over the devices of a mesh axis: a pytree and a linear map, as every format is; made by `shard`.

    `A @ x` takes and gives vectors in the user's order. `A.in_basis` is the same matrix between sharded vectors that
    have entered `A.basis`; solvers do that once a solve.

    Attributes:
      shards: what the devices hold.
      domain, range: how x and y are spread; the same for a square matrix.
      entries: how `data` is spread.
      inside: vectors are taken and given in the sharded order.
    """

    shards: Shards
    domain: Spread
    range: Spread
    entries: Spread
    nnz: int = dataclasses.field(metadata={"static": True})
    inside: bool = dataclasses.field(metadata={"static": True})
    told: Told = dataclasses.field(metadata={"static": True})

    name: ClassVar[str] = "sharded"
    ndim: ClassVar[int] = 2
    __array_ufunc__ = None

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def shape(self) -> tuple[int, int]:
        if self.inside:
            return self.range.places, self.domain.places
        return self.range.n, self.domain.n

    @property
    def dtype(self) -> np.dtype:
        return self.shards.parts[0].dtype

    @property
    def parts(self) -> int:
        """Devices along the axis."""
        return len(self.range.over.counts)

    @property
    def n_stored(self) -> int:
        """Stored places on all devices, padding included."""
        return self.parts * sum(part.n_stored for part in self.shards.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays on all devices along the axis; one order of rows and columns counts once."""
        spreads = self.domain, self.entries, *(() if self.range.same(self.domain) else (self.range,))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((self.shards, spreads)))

    @property
    def fill(self) -> float:
        return self.nnz / self.n_stored if self.n_stored else 1.0

    def report(self) -> str:
        """How evenly it is spread, how the halo travels and why, and the bytes of each device."""
        each = readable_bytes(self.nbytes / self.parts)
        storage = f"{each} a device, {self.told.format}"
        return f"{self.told.imbalance}\nexchange    {self.told.exchange}\nstorage     {storage}"

    def __repr__(self) -> str:
        rows, cols = self.shape
        formats = " + ".join(part.name for part in self.shards.parts)
        return (
            f"<sharded {rows}×{cols} over {self.parts} devices, nnz={self.nnz}, {jnp.dtype(self.dtype).name}, "
            f"{formats}, fill={self.fill:.3f}, {readable_bytes(self.nbytes / self.parts)} a device>"
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a sparse matrix is no array; use A @ x, A.todense() or A.to_scipy()")

    # --------------------------------------------------------------------------------------------------- products

    def matvec(self, x: Any) -> Array:
        """A·x for x [n_cols] or [n_cols, p].

        Raises:
          ValueError: x has another shape, or lies outside the mesh. TypeError: x is not a numeric array.
        """
        x = self.domain.accept(as_vector(x, self, 1, f"A @ x with A of shape {self.shape} takes x"))
        return _product(self, x) if self.inside else self.range.leave(_product(self, self.domain.enter(x)))

    def matvec_dot(self, x: Array, w: Array) -> tuple[Array, vectors.Number]:
        """A·x, and Re wᴴ·A·x from the same passes where those are kernels. It has no derivative."""
        if self.inside and x.ndim == 1 and x.dtype == w.dtype == self.dtype and not jnp.iscomplexobj(x):
            y, sums = _product_dot(self, self.domain.accept(x), self.range.accept(w))
            return y, vectors.Parts(sums)
        y = self.matvec(x)
        return y, vectors.dot(w, y)

    def _transposed(self, y: Any) -> Array:
        y = self.range.accept(as_vector(y, self, 0, f"A.T @ y, or yᵀ @ A, with A of shape {self.shape} takes y"))
        return _back(self, y) if self.inside else self.domain.leave(_back(self, self.range.enter(y)))

    def rmatvec(self, y: Any) -> Array:
        """Aᴴ·y, the adjoint as in SciPy."""
        return jnp.conj(self._transposed(jnp.conj(as_floating(y, "the vector"))))

    def __matmul__(self, x: Any) -> Array:
        return self.matvec(x)

    def __rmatmul__(self, x: Any) -> Array:
        return self._transposed(as_floating(x, "the vector").T).T

    @property
    def T(self) -> Transposed:
        """The transpose, a view."""
        return Transposed(self)  # pyright: ignore[reportArgumentType]

    @property
    def H(self) -> Transposed:
        return self._with_values(jnp.conj).T

    # ------------------------------------------------------------------------------------------------------ basis

    @property
    def basis(self) -> Basis:
        """The sharded order of a square matrix's unknowns."""
        if not self._is_square:
            return IDENTITY
        return Inside(over=self.domain.over) if self.inside else self.domain

    @property
    def in_basis(self) -> Self:
        """The matrix between sharded vectors, [basis.places]."""
        return dataclasses.replace(self, inside=True) if self._is_square else self

    @property
    def _is_square(self) -> bool:
        return self.domain.n == self.range.n

    # ----------------------------------------------------------------------------------------------------- values

    def _with_values(self, f: Callable[[Array], Array]) -> Self:
        parts = tuple(part._with_values(f(part.values)) for part in self.shards.parts)
        return dataclasses.replace(self, shards=dataclasses.replace(self.shards, parts=parts))

    @property
    def data(self) -> Array:
        """The entries [nnz] in canonical order: by row, then by column."""
        return _data(self)

    @property
    def values(self) -> Array:
        """As `data`: a sharded matrix has no flat storage of its own."""
        return self.data

    def with_data(self, data: Any) -> Self:
        """The same pattern with other entries; traceable and differentiable.

        Args:
          data: [nnz] in canonical order.

        Raises:
          ValueError: another shape.
        """
        data = as_floating(data, "data")
        if data.shape != (self.nnz,):
            raise ValueError(
                f"data must have shape ({self.nnz},), one number an entry in canonical order; got {data.shape}"
            )
        # A program that is compiled once for all equal matrices gives the report of the first.
        return dataclasses.replace(_with_data(self, self.entries.accept(data)), told=self.told)

    def astype(self, dtype: Any) -> Self:
        dtype = requested_dtype(dtype)
        check_keeps_imaginary(self.dtype, dtype)
        return self._with_values(lambda v: v.astype(dtype))

    def __mul__(self, scalar: Any) -> Self:
        if isinstance(scalar, (SparseMatrix, ShardedMatrix, Transposed)) or jnp.ndim(scalar) != 0:
            raise TypeError("A * scales by one number; the product with a vector or a matrix is A @ x")
        return self._with_values(lambda v: v * scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Self:
        return self * (1 / jnp.asarray(scalar))

    def __neg__(self) -> Self:
        return self._with_values(jnp.negative)

    # ------------------------------------------------------------------------------------------------- conversions

    def diagonal(self) -> Array:
        """The main diagonal [n] of a square matrix, zero where nothing is stored.

        Raises:
          ValueError: the matrix is not square.
        """
        if not self._is_square:
            raise ValueError(f"a sharded matrix of shape {self.shape} is not square; use A.to_scipy().diagonal()")
        d = _diagonal(self)
        return d if self.inside else self.range.leave(d)

    @property
    def unshared(self) -> Self:
        """Itself: no entries share a place, in shards."""
        return self

    def coordinates(self) -> tuple[Array, Array, Array]:
        """Of every entry [nnz] in canonical order: its row, its column, its index in `data`."""
        return *_coordinates(self), jnp.arange(self.nnz, dtype=index_dtype(self.nnz))

    def todense(self) -> Array:
        """The matrix as a dense array [rows, columns]."""
        row, col, _ = self.coordinates()
        return jnp.zeros((self.range.n, self.domain.n), self.dtype).at[row, col].add(self.data)

    def to_scipy(self) -> Csr:
        """The matrix on the host as a canonical CSR array, in the user's order; 16-bit floats become float32."""
        row, col, values = _entries_on_host(self)
        values = values.astype(np.float32) if values.itemsize == 2 else values
        csr = scipy.sparse.coo_array((values, (row, col)), shape=(self.range.n, self.domain.n)).tocsr()
        csr.sort_indices()
        return csr

    def asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> SparseMatrix:
        """The matrix on one device, in a format of `FORMATS`, through the host."""
        backend = self.shards.parts[0].backend
        return build(self.to_scipy(), name, dtype=self.dtype, backend=backend, max_bytes=max_bytes, **layout)


def _mapped(A: ShardedMatrix, f: Callable[..., Any], *args: Any, check_vma: bool = True) -> Any:
    """f(shards, *args) on every device, of what is sharded over A's axis; its results are too."""
    piece = PartitionSpec(A.shards.axis)

    def body(shards: Shards, *args: Any) -> Any:
        one = jax.tree.map(lambda a: a[0], shards)
        with vectors.distributed(None):
            return f(one, *args)

    specs = (piece, *(piece for _ in args))
    mapped = jax.shard_map(body, mesh=A.range.over.mesh, in_specs=specs, out_specs=piece, check_vma=check_vma)
    return mapped(A.shards, *args)


@jax.jit
def _diagonal(A: ShardedMatrix) -> Array:
    return _mapped(A, lambda shards: shards.parts[0].diagonal())


@jax.jit
def _product(A: ShardedMatrix, x: Array) -> Array:
    return _mapped(A, Shards.product, x)


@jax.jit
def _product_dot(A: ShardedMatrix, x: Array, w: Array) -> tuple[Array, Array]:
    # Sums leave kernels that have no derivative, so nothing asks over which axes they vary.
    return _mapped(A, Shards.product_dot, x, w, check_vma=False)


@jax.jit
def _back(A: ShardedMatrix, y: Array) -> Array:
    """Aᵀ·y: JAX transposes the exchange too, so that contributions to the halo travel home."""
    dtype = jnp.result_type(A.dtype, y.dtype)
    x = jax.ShapeDtypeStruct((A.domain.places, *y.shape[1:]), dtype)
    return jax.linear_transpose(lambda x: _product(A, x), x)(y.astype(dtype))[0]


@jax.jit
def _data(A: ShardedMatrix) -> Array:
    return A.entries.leave(_mapped(A, functools.partial(_gathered, size=A.entries.over.size)))


def _gathered(shards: Shards, size: int) -> Array:
    """The entries of a shard [size], by row, then by unknown."""
    out = jnp.zeros(size, shards.parts[0].dtype)
    for (_, _, place), part in zip(shards.places(lax.axis_index(shards.axis)), shards.parts, strict=True):
        out = out.at[place].set(part.values, mode="drop", unique_indices=True)
    return out


@jax.jit
def _with_data(A: ShardedMatrix, data: Array) -> ShardedMatrix:
    def stored(shards: Shards, own: Array) -> tuple[Array, ...]:
        places = (place for _, _, place in shards.places(lax.axis_index(shards.axis)))
        return tuple(own.at[place].get(mode="fill", fill_value=0)[None] for place in places)

    values = _mapped(A, stored, A.entries.enter(data))
    parts = tuple(part._with_values(v) for part, v in zip(A.shards.parts, values, strict=True))
    return dataclasses.replace(A, shards=dataclasses.replace(A.shards, parts=parts))


@jax.jit
def _coordinates(A: ShardedMatrix) -> tuple[Array, Array]:
    """Rows and columns [nnz] in the user's order. Which unknowns the halo holds, the exchange tells."""

    def found(shards: Shards, rows: Array, cols: Array) -> tuple[Array, Array]:
        if shards.halo.kind != "none":
            cols = jnp.concatenate([cols, exchange(cols, shards.send, shards.halo, shards.axis)])
        row_of, col_of = jnp.zeros(size, rows.dtype), jnp.zeros(size, cols.dtype)
        for row, col, place in shards.places(lax.axis_index(shards.axis)):
            row_of = row_of.at[place].set(jnp.take(rows, row, mode="clip"), mode="drop", unique_indices=True)
            col_of = col_of.at[place].set(jnp.take(cols, col, mode="clip"), mode="drop", unique_indices=True)
        return row_of, col_of

    size = A.entries.over.size
    rows, cols = _mapped(A, found, A.range.unknowns(), A.domain.unknowns())
    return A.entries.leave(rows), A.entries.leave(cols)


def _entries_on_host(A: ShardedMatrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of every entry, in no order. Without shard_map, which cannot run while jit is tracing."""
    shards = jax.tree.map(np.asarray, A.shards)
    cols = np.asarray(A.domain.unknowns()).reshape(A.parts, -1)
    rows = np.asarray(A.range.unknowns()).reshape(A.parts, -1)
    found = []
    for k in range(A.parts):
        one = jax.tree.map(lambda a, k=k: jnp.asarray(a[k]), shards)
        all_cols = np.concatenate([cols[k], exchange_on_host(cols, shards.send, A.shards.halo, k)])
        for (row, col, place), part in zip(_places(one, k), one.parts, strict=True):
            live = np.asarray(place) < np.iinfo(place.dtype).max
            row, col = np.asarray(row)[live], np.asarray(col)[live]
            found.append((rows[k][row], all_cols[col], np.asarray(part.values)[live]))
    row, col, values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return row, col, values


_places = jax.jit(Shards.places)
