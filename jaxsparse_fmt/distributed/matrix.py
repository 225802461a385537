"""ShardedMatrix: a matrix whose rows are spread over the devices of a mesh axis.

             own          halo                     device k holds its rows as two blocks, cut by column:
    device 0 ■■■■ ····  |  · h · · · ·                local   multiplies the device's own piece of x
    device 1 ···· ■■■■  |  h · · · · h                halo    multiplies the unknowns of other devices
             columns of x

The three modes are those of Kreutzer et al. (2012), §III:

    vector    exchange, then one product with [x | halo], for which x is copied
    naive     y = local·x + halo·h, both with all rows: the exchange may run during the first product
    overlap   y = local·x while the halo travels; then the rows on the boundary, the only rows of the halo block

Both blocks are matrices in formats of `FORMATS`, of one shape and size on all devices (`padding.py`); their arrays have
a leading axis over the devices. A vector in `basis` lies in pieces over this axis (`basis.py`). A product is a
`shard_map` over the pieces (`local.py`), so JAX derives its derivatives and batching. Between products XLA partitions a
solver's arithmetic on sharded vectors by itself; the loop of a solve runs inside one `shard_map` (`ShardedBasis.run`).
"""

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import MAX_DENSE_BYTES, as_floating, as_vector, check_dense
from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import is_concrete
from jaxsparse_fmt._types import Csr, CsrArrays, Target
from jaxsparse_fmt.core import entry_index, vector_passes
from jaxsparse_fmt.core.basis import IDENTITY, Basis, agreed
from jaxsparse_fmt.core.matrix import SparseMatrix, build
from jaxsparse_fmt.core.reductions import Reductions
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.core.transposed import Transposed
from jaxsparse_fmt.distributed import entries
from jaxsparse_fmt.distributed.algebra import ShardedAlgebra, with_blocks, with_values
from jaxsparse_fmt.distributed.basis import EnteredBasis, ShardedBasis, lies_on
from jaxsparse_fmt.distributed.local import Shards
from jaxsparse_fmt.distributed.processes import failing_together, named
from jaxsparse_fmt.distributed.row_partition import BuildRecord
from jaxsparse_fmt.kernels.layout.address import row_pointers

Array = jax.Array


@pytree
class ShardedMatrix(ShardedAlgebra, Reductions):
    """A sparse matrix over the devices of a mesh axis: a pytree and a linear map, as every format is; made by `shard`.

    `A @ x` takes and gives vectors in the user's order. `A.in_basis` is the same matrix between sharded vectors that
    have entered `A.basis`; solvers use it, and enter each vector once a solve.

    Attributes:
      shards: the arrays on the devices.
      domain, range: how x and y are sharded; the same for a square matrix.
      data_basis: how `data` is sharded.
      is_entered: whether this is `in_basis`.
      full_diagonal: whether the pattern has every entry of the diagonal.
      record: of the build.
    """

    shards: Shards
    domain: ShardedBasis
    range: ShardedBasis
    data_basis: ShardedBasis
    nnz: int = dataclasses.field(metadata={"static": True})
    is_entered: bool = dataclasses.field(metadata={"static": True})
    full_diagonal: bool = dataclasses.field(metadata={"static": True})
    record: BuildRecord = dataclasses.field(metadata={"static": True})

    name: ClassVar[str] = "sharded"

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def shape(self) -> tuple[int, int]:
        if self.is_entered:  # inside shard_map, between pieces
            n_rows, n_cols = (b.over.size if b.over.is_manual else b.places for b in (self.range, self.domain))
            return n_rows, n_cols
        return self.range.n, self.domain.n

    @property
    def dtype(self) -> np.dtype:
        return self.shards.blocks[0].dtype

    @property
    def backend(self) -> str:
        return self.shards.blocks[0].backend

    @property
    def parts(self) -> int:
        """Devices along the axis."""
        return self.range.devices

    @property
    def n_stored(self) -> int:
        """Stored places on all devices, padding included."""
        return self.parts * sum(block.values.shape[-1] for block in self.shards.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays on all devices along the axis; a common order of rows and columns counts once."""
        bases = self.domain, self.data_basis, *(() if self.range.same(self.domain) else (self.range,))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((self.shards, bases)))

    fill = SparseMatrix.fill

    def report(self) -> str:
        """The imbalance of the partition, the kind of exchange and its reason, and the bytes of each device."""
        each = readable_bytes(self.nbytes / self.parts)
        storage = f"{each} a device, {self.record.format}"
        return f"{self.record.imbalance}\nexchange    {self.record.exchange}\nstorage     {storage}"

    def __repr__(self) -> str:
        rows, cols = self.shape
        formats = " + ".join(block.name for block in self.shards.blocks)
        return (
            f"<sharded {rows}×{cols} over {self.parts} devices, nnz={self.nnz}, {jnp.dtype(self.dtype).name}, "
            f"{formats}, fill={self.fill:.3f}, {readable_bytes(self.nbytes / self.parts)} a device>"
        )

    __copy__ = ScipyNames.copy

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a sharded matrix lies on devices, which are not pickled; pickle A.to_scipy(), and shard it when it is read"
        )

    # --------------------------------------------------------------------------------------------------- products

    def _times_vector(self, x: Any) -> Array:
        """A·x for x [n_cols] or [n_cols, p].

        Inside shard_map over the matrix's axis, `A.in_basis @ x` takes a device's piece of x and gives its piece of y,
        with in_specs PartitionSpec(axis) for the matrix and for x.

        Raises:
          ValueError: x has another shape, or lies outside the mesh. TypeError: x is not a numeric array.
        """
        if self.domain.over.is_manual:
            return self._of_piece("A.in_basis @ x", Shards.product, x, self.domain)
        return self._between("A @ x", _product, 1, x)

    def _between(self, operation: str, f: Callable[[Self, Array], Array], side: int, given: Any) -> Array:
        """The product f, which takes vectors as long as this side of the matrix."""
        source, target = (self.domain, self.range) if side else (self.range, self.domain)
        with self._failing_together(operation):
            self._check_devices()
            x = source.accept(as_vector(given, self, side), given)
            y = f(self, x if self.is_entered else source.enter(x))
            return named(y if self.is_entered else target.leave(y, x))

    def _of_piece(self, what: str, f: Callable[[Shards, Array], Array], x: Any, basis: ShardedBasis) -> Array:
        over, count = basis.over, self.shards.blocks[0].values.shape[0]
        if not self.is_entered or count != 1:
            refused = f"a matrix of {count} devices' shards" if self.is_entered else "A @ x, in the user's order,"
            raise ValueError(
                f"{refused} is not for one device; inside shard_map over {over.axis!r} use A.in_basis @ piece, with A "
                f"an argument of in_specs PartitionSpec({over.axis!r})"
            )
        if jnp.ndim(x) not in (1, 2) or jnp.shape(x)[0] != over.size:
            raise ValueError(f"inside shard_map {what} takes a piece of x, ({over.size},); got {jnp.shape(x)}")
        return over.each(f, self.shards, as_floating(x, "the vector"))

    matvec_dot = SparseMatrix.matvec_dot

    _fuses_sums = True

    def _matvec_sums(self, x: Array, what: vector_passes.Pass, *others: Array) -> tuple[Array, Any]:
        alike = x.ndim == 1 and x.dtype.kind == "f" and all(v.dtype == self.dtype for v in (x, *others))
        if self.domain.over.is_manual and alike:
            return self.domain.over.each(lambda shard, x: shard.product_sums(x, what, *others), self.shards, x)
        y = self @ x
        return y, vector_passes.plain_sweep(what, (), (y, *others))[2]

    def _entered(self, basis: Basis) -> Any:
        return self if self.is_entered else super()._entered(basis)

    def _partition(self, axis: Any) -> PartitionSpec | None:
        """How the arrays lie for products inside shard_map over `axis`; None: there are none."""
        return PartitionSpec(axis) if self.is_entered and self.domain.over.axis == axis else None

    def _transposed(self, y: Any) -> Array:
        if self.range.over.is_manual:
            back = functools.partial(Shards.transposed, size=self.domain.over.size)
            return self._of_piece("A.in_basis.T @ x", back, y, self.range)
        return self._between("A.T @ x", _back, 0, y)

    @property
    def T(self) -> Transposed:
        """The transpose, a view."""
        return Transposed(self)

    # ------------------------------------------------------------------------------------------------------ basis

    @property
    def basis(self) -> Basis:
        """The sharded order of a square matrix's unknowns."""
        if not self._is_square:
            return IDENTITY
        if self.domain.over.is_manual:
            raise ValueError(
                f"inside shard_map over {self.domain.over.axis!r} a vector is one device's piece, over which a solver "
                "would take its inner products: call the solver outside of shard_map"
            )
        self._check_devices()
        return EnteredBasis(over=self.domain.over) if self.is_entered else self.domain

    def _in_bases(self) -> tuple[Any, Basis, Basis]:
        if self.is_entered or self.domain.over.is_manual:
            return self, IDENTITY, IDENTITY
        self._check_devices()
        return dataclasses.replace(self, is_entered=True), self.domain, self.range

    def _check_devices(self) -> None:
        """Raises a ValueError if the arrays were deleted, or no longer lie on the devices of the matrix's mesh."""
        values = self.shards.blocks[0].values
        if is_concrete(values) and values.is_deleted():  # with which programs of JAX 0.10 end the process
            raise ValueError("the arrays of this matrix were donated or deleted; donate those of A.copy()")
        if isinstance(values, jax.Array) and not lies_on(values, self.range.over.mesh):
            where = ", ".join(sorted(map(str, values.sharding.device_set))[:4])
            raise ValueError(
                f"this matrix was moved to {where}, away from the mesh for which it was made, or into another order of "
                "its devices; leave it out of jax.device_put, or make it anew by `shard` on the other mesh"
            )

    @property
    def in_basis(self) -> Self:
        """The matrix between sharded vectors, [basis.places]."""
        return dataclasses.replace(self, is_entered=True) if self._is_square else self

    @property
    def padded(self) -> Self:
        """The matrix with rows and columns of zeros after its own, so that the number of devices divides their numbers.

        Its vectors and its `data`, which end with places that nothing reads and results leave zero, lie in even blocks:
        no device has more than its own part. JAX has no blocks of unequal size, so that the vectors of a matrix
        that is not padded are whole on all devices outside of jit. `nnz` and `to_scipy` know no padding.
        """
        bases = ((name, getattr(self, name)) for name in ("domain", "range", "data_basis"))
        return dataclasses.replace(self, **{name: dataclasses.replace(b, is_padded=True) for name, b in bases})

    @property
    def _is_square(self) -> bool:
        return self.domain.n == self.range.n

    # ----------------------------------------------------------------------------------------------------- values

    def _agree(self, **given: Any) -> None:
        self.range.agree(lambda: given)

    def _failing_together(self, operation: str) -> AbstractContextManager[None]:
        return failing_together(self.range.over.mesh, operation, self.shards.blocks[0].values)

    def _each(self, f: Callable[[Array], Array]) -> Self:
        """The same matrix with f applied to the values of every block."""
        self._check_devices()
        in_context = self.range.over.in_context
        return with_blocks(self, (block._with_values(f(in_context(block.values))) for block in self.shards.blocks))

    @property
    @agreed
    def data(self) -> Array:
        """The entries [nnz] in canonical order of the user's rows, then columns; for `in_basis` too.

        Unless the number of devices divides nnz every device has all of them; see `padded`.
        """
        self._check_devices()
        return entries.data(self)

    @property
    def padded_data(self) -> Array:
        """`padded.data`, in pieces of one size. `with_data` takes it, and ignores its end."""
        return self.padded.data

    @property
    def row_ids(self) -> Array:
        """The row of each entry of `data`, [nnz]."""
        return self._coordinates()[0]

    @property
    def col_ids(self) -> Array:
        """The column of each entry of `data`, [nnz]."""
        return self._coordinates()[1]

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options of the shards' own columns, with which `shard` makes the same storage."""
        return self.shards.blocks[0].layout

    values = data  # a sharded matrix has no flat storage of its own

    def with_data(self, data: Any) -> Self:
        """The same pattern with other entries; traceable and differentiable.

        Args:
          data: [nnz] in canonical order, or as `padded_data`.

        Raises:
          ValueError: another shape.
        """
        with self._failing_together("with_data"):
            self._check_devices()
            padded = self.data_basis.over.even.places
            size = padded if jnp.shape(data) == (padded,) else self.nnz
            taken = self.data_basis.accept(entry_index.checked(data, size), data)
        return with_values(self, entries.values_of(self, taken))

    # ------------------------------------------------------------------------------------------------- conversions

    @agreed
    def diagonal(self, k: int = 0) -> Array:
        """The main diagonal [n] of a square matrix, zero where nothing is stored.

        Raises:
          ValueError: the matrix is not square, or k is not 0.
        """
        if k or not self._is_square:
            told = f"a sharded matrix has the main diagonal alone, and if it is square; this one is {self.shape}"
            raise ValueError(f"{told}: use A.to_scipy().diagonal({k})")
        self._check_devices()
        d = _diagonal(self)
        return d if self.is_entered else self.range.leave(d)

    def _check_users_order(self, what: str) -> None:
        """Raises a ValueError if this is `in_basis`, for results in the user's order, and as `_check_devices`."""
        self._check_devices()
        if self.is_entered:
            raise ValueError(
                f"A.in_basis, of shape {self.shape} with empty places, has no {what} in its own order; take A's, in "
                "the user's order"
            )

    def entries(self) -> tuple[Array, Array, Array, Array]:
        """For every entry [nnz] in canonical order: its row, its column, its index in `data` and its number.

        Raises:
          ValueError: this is `in_basis`, as for all conversions.
        """
        return *self._coordinates(), self.data

    @agreed
    def _coordinates(self) -> tuple[Array, Array, Array]:
        self._check_users_order("coordinates")
        return entries.coordinates(self)

    def csr_arrays(self) -> CsrArrays:
        """`data`, `indices` and `indptr` in canonical order, as `SparseMatrix.csr_arrays`."""
        row, col, _, value = self.entries()
        return CsrArrays(value, col, row_pointers(row, self.shape[0]).astype(index_dtype(self.nnz)), self.shape)

    @agreed
    def todense(self, *, max_bytes: float = MAX_DENSE_BYTES) -> Array:
        """As `SparseMatrix.todense`."""
        check_dense(self.shape, self.dtype, "use A @ x", max_bytes)
        row, col, _, value = self.entries()
        return jnp.zeros(self.shape, self.dtype).at[row, col].add(value)

    @agreed
    def to_scipy(self) -> Csr:
        """The matrix on the host as a canonical CSR array, in the user's order; 16-bit floats become float32.

        Several processes must all call this, and each receives the whole matrix.
        """
        self._check_users_order("entries")
        return entries.to_scipy(self)

    @agreed
    def asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> SparseMatrix:
        """The matrix on one device, in a format of `FORMATS`, through the host."""
        return build(self.to_scipy(), name, Target(self.dtype, self.backend, max_bytes), **layout)

    _transpose_asformat = SparseMatrix._transpose_asformat


@jax.jit
def _diagonal(A: ShardedMatrix) -> Array:
    return A.range.over.each(lambda shards: shards.blocks[0].diagonal(), A.shards)


@jax.jit
def _product(A: ShardedMatrix, x: Array) -> Array:
    return A.range.over.each(Shards.product, A.shards, x)


@jax.jit
def _back(A: ShardedMatrix, y: Array) -> Array:
    back = functools.partial(Shards.transposed, size=A.domain.over.size)
    return A.range.over.each(back, A.shards, y)
