"""SparseMatrix: what every format is and can do."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import numbers
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt import form, vectors
from jaxsparse_fmt._types import (
    Csr,
    CsrArrays,
    as_floating,
    as_vector,
    check_keeps_imaginary,
    index_dtype,
    owned,
    readable_bytes,
    requested_dtype,
)
from jaxsparse_fmt.basis import IDENTITY, Basis
from jaxsparse_fmt.kernels import dialect
from jaxsparse_fmt.kernels.column_rule import is_read
from jaxsparse_fmt.transposed import NoArray, Transposed

Array = jax.Array

# Every storage scheme by name; `formats/__init__.py` fills it.
FORMATS: dict[str, type[SparseMatrix]] = {}
# What chooses among them, by the name that asks for it, of a matrix on the host; `convert.py` fills it.
CHOOSERS: dict[str, Callable[..., SparseMatrix]] = {}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SparseMatrix(NoArray, abc.ABC):
    """A sparse matrix: a pytree whose leaves are its arrays, and a linear map.

    A format subclasses this with its index arrays and says four things: how it is built (`from_csr`), its `faces` (how
    the trilinear form is computed), the `structure` handed to them, and the `coordinates` of its storage. The rest
    follows.

    Attributes:
      values: [n_stored], entries and padding in the format's own order.
      shape: (rows, columns).
      nnz: stored entries without padding. An explicit zero is an entry.
      backend: see `use_backend`.
    """

    values: Array
    shape: tuple[int, int]
    nnz: int
    backend: str

    name: ClassVar[str]
    layout_options: ClassVar[tuple[str, ...]] = ()
    sized_by_nnz: ClassVar[bool] = False  # nnz alone tells the size of every array
    transposes: ClassVar[bool] = False  # its transposed product is no scatter-add, but a kernel's
    shares_places: ClassVar[bool] = False  # several entries may lie in one place

    # ------------------------------------------------------------------------------------------ what a format says

    @classmethod
    @abc.abstractmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        """Builds the format from a canonical CSR matrix (sorted, no duplicates), with the layout's own keywords."""

    @property
    @abc.abstractmethod
    def faces(self) -> form.Faces:
        """How the three faces of the trilinear form are computed."""

    @property
    @abc.abstractmethod
    def structure(self) -> tuple[Array, ...]:
        """The integer arrays that the faces take."""

    @abc.abstractmethod
    def coordinates(self) -> tuple[Array, Array, Array]:
        """For every place of `unshared` its row, column and index in `data`; in padding n_cols and nnz. [n_stored]"""

    @property
    def unshared(self) -> SparseMatrix:
        """The same matrix with a place of its own for every entry: itself, unless entries of the format share them."""
        return self

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def n_stored(self) -> int:
        """Stored places, padding included."""
        return self.values.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))

    @property
    def nbytes_read(self) -> int:
        """Bytes of the arrays that `A @ x` reads."""
        pattern = getattr(self, "pattern", None)
        unread = 0 if pattern is None or is_read(pattern) else pattern.nbytes
        return self.values.nbytes + sum(a.nbytes for a in self.structure) - unread

    @property
    def fill(self) -> float:
        """nnz / n_stored: 1.0 without padding, and more where entries share places."""
        return self.nnz / self.n_stored if self.n_stored else 1.0

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options with which `from_scipy` builds the same storage."""
        return {option: getattr(self, option) for option in self.layout_options}

    def __repr__(self) -> str:
        rows, cols = self.shape
        if not all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(self)):
            return f"<{self.name} {rows}×{cols}, nnz={self.nnz}, leaves {jax.tree.leaves(self)}>"
        options = "".join(f", {k}={v}" for k, v in self.layout.items())
        return (
            f"<{self.name} {rows}×{cols}, nnz={self.nnz}, {jnp.dtype(self.dtype).name}, fill={self.fill:.3f}, "
            f"{readable_bytes(self.nbytes)}{options}>"
        )

    # --------------------------------------------------------------------------------------------------- products

    def matvec(self, x: Any) -> Array:
        """A·x.

        Args:
          x: [n_cols], or [n_cols, p] for p products that read A once.

        Raises:
          ValueError: x has another shape. TypeError: x is not a numeric array.
        """
        x = as_vector(x, self, 1, f"A @ x with A of shape {self.shape} takes x")
        return form.product(self.faces, self.values, x, self.structure, self.backend)

    def matvec_dot(self, x: Array, w: Array) -> tuple[Array, vectors.Number]:
        """A·x, and Re wᴴ·A·x from the same pass where that is a kernel. It has no derivative.

        Args:
          x, w: [n_cols] and [n_rows], or with p columns each.
        """
        fits = (
            vectors.by_kernel(x, w) and jnp.result_type(self.values, x) == x.dtype and dialect.is_pallas(self.backend)
        )
        if fits and getattr(self.faces, "dots", False):
            return form.product_dot(self.faces, self.values, x, w, self.structure, self.backend)
        y = self.matvec(x)
        return y, vectors.dot(w, y)

    def rmatvec(self, y: Any) -> Array:
        """Aᴴ·y, the adjoint as in SciPy; for real matrices the same as A.T @ y.

        Args:
          y: [n_rows] or [n_rows, p].
        """
        return jnp.conj(self._transposed(jnp.conj(as_floating(y, "the vector"))))

    def _transposed(self, y: Any) -> Array:
        y = as_vector(y, self, 0, f"A.T @ y, or yᵀ @ A, with A of shape {self.shape} takes y")
        return form.transposed(self.faces, self.values, y, self.structure, self.backend)

    def __matmul__(self, x: Any) -> Array:
        return self.matvec(x)

    def __rmatmul__(self, x: Any) -> Array:
        return self._transposed(as_floating(x, "the vector").T).T

    @property
    def T(self) -> Transposed:
        """The transpose, a view: no array is copied."""
        return Transposed(self)

    @property
    def H(self) -> Transposed:
        """The conjugate transpose; a view for real matrices, one copy of `values` for complex ones."""
        return Transposed(self._with_values(jnp.conj(self.values)))

    # ----------------------------------------------------------------------------------------------------- values

    def _with_values(self, values: Array) -> Self:
        return dataclasses.replace(self, values=values)

    @property
    @jax.jit
    def data(self) -> Array:
        """The entries [nnz] in canonical order: by row, then by column."""
        A = self.unshared
        _, _, entry = A.coordinates()
        return jnp.zeros(self.nnz, self.dtype).at[entry].set(A.values, mode="drop")

    def with_data(self, data: Any) -> SparseMatrix:
        """The same pattern with other entries, in the same format; of "sdia" a "dia". Traceable and differentiable.

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
        return self.unshared._with_values(self._stored(data))

    @jax.jit
    def _stored(self, data: Array) -> Array:
        """`data` [nnz] in the storage order of `unshared`, with zeros in padding."""
        _, _, entry = self.coordinates()
        if self.nnz == 0:
            return jnp.zeros(entry.shape, data.dtype)
        return data.at[entry].get(mode="fill", fill_value=0)

    def astype(self, dtype: Any) -> Self:
        """The same matrix with values of another dtype, for example bfloat16 under a float32 vector."""
        dtype = requested_dtype(dtype)
        check_keeps_imaginary(self.dtype, dtype)
        return self._with_values(self.values.astype(dtype))

    def __mul__(self, scalar: Any) -> Self:
        if isinstance(scalar, (SparseMatrix, Transposed)) or jnp.ndim(scalar) != 0:
            raise TypeError("A * scales by one number; the product with a vector or a matrix is A @ x")
        return self._with_values(self.values * scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Self:
        return self * (1 / jnp.asarray(scalar))

    def __neg__(self) -> Self:
        return self._with_values(-self.values)

    # ------------------------------------------------------------------------------------------------- conversions

    @jax.jit
    def diagonal(self) -> Array:
        """The main diagonal [min(rows, columns)], zero where nothing is stored."""
        A, n = self.unshared, min(self.shape)
        row, col, _ = A.coordinates()
        return jnp.zeros(n, self.dtype).at[jnp.where(row == col, row, n)].add(A.values, mode="drop")

    @jax.jit
    def todense(self) -> Array:
        """The matrix as a dense array [rows, columns]."""
        A = self.unshared
        row, col, _ = A.coordinates()
        return jnp.zeros(self.shape, self.dtype).at[row, col].add(A.values, mode="drop")

    def toarray(self) -> Array:
        """`todense`, by SciPy's name."""
        return self.todense()

    def to_scipy(self) -> Csr:
        """The matrix on the host as a canonical CSR array; 16-bit floats become float32."""
        A = self.unshared
        row, col, entry = (np.asarray(a) for a in jax.jit(type(A).coordinates)(A))
        live = entry < self.nnz
        values = np.asarray(A.values)
        data = np.empty(self.nnz, np.promote_types(values.dtype, np.float32) if values.itemsize == 2 else values.dtype)
        indices = np.empty(self.nnz, col.dtype)
        data[entry[live]], indices[entry[live]] = values[live], col[live]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row[live], minlength=self.shape[0]))])
        indptr = indptr.astype(index_dtype(self.nnz))
        csr = scipy.sparse.csr_array((data, indices.astype(indptr.dtype), indptr), shape=self.shape)
        csr.sort_indices()  # `in_basis` renumbers columns
        return csr

    @jax.jit
    def csr_arrays(self) -> tuple[Array, Array, Array]:
        """`data` [nnz], `indices` [nnz] and `indptr` [n_rows + 1] in canonical order, on the device."""
        A = self.unshared
        row, col, entry = A.coordinates()
        entry = _canonical(row, col, entry, self.nnz)
        n_rows, index = self.shape[0], index_dtype(self.nnz)
        data = jnp.zeros(self.nnz, self.dtype).at[entry].set(A.values, mode="drop", unique_indices=True)
        indices = jnp.zeros(self.nnz, jnp.int32).at[entry].set(col, mode="drop", unique_indices=True)
        counts = jnp.zeros(n_rows, index).at[jnp.where(entry < self.nnz, row, n_rows)].add(1, mode="drop")
        return data, indices, jnp.concatenate([jnp.zeros(1, index), jnp.cumsum(counts, dtype=index)])

    def asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> SparseMatrix:
        """The same matrix in another format, through CSR.

        On an accelerator it stays there; only "dia", "hdia" and "bsr" of a matrix with very many diagonals or blocks in
        a row are made on the host (`formats/merging.py`), and what "auto" and "tune" choose. Inside jit a matrix of
        which only the values are traced converts as outside, chosen as if all were 1; of one that is traced whole,
        "coo", "csr" and "csc" can be made, whose sizes are known.

        Args:
          name, max_bytes, layout: as in `from_scipy`, "auto" and "tune" too.

        Raises:
          ValueError: unknown format, layout options it does not have, far more memory than the matrix needs, or inside
            jit a format whose size depends on a traced pattern.
        """
        pattern = dataclasses.replace(self, values=None)
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(pattern))
        if isinstance(self.values, Tracer) and not traced:
            with concrete():
                ones = jnp.ones(self.values.shape, self.dtype)
            placed = dataclasses.replace(self, values=ones).asformat(name, max_bytes=max_bytes, **layout)
            return placed.with_data(self.data)
        if traced and (name in CHOOSERS or (name in FORMATS and not FORMATS[name].sized_by_nnz)):
            raise ValueError(
                f"format {name!r} cannot be made of a traced pattern: its size is unknown; convert before, or to "
                f"one of {', '.join(n for n, cls in FORMATS.items() if cls.sized_by_nnz)}"
            )
        with contextlib.nullcontext() if traced else concrete():
            values = self.values
            on_host = name in CHOOSERS or isinstance(values, np.ndarray)
            on_host = on_host or (not traced and {d.platform for d in values.devices()} == {"cpu"})
            csr = self.to_scipy() if on_host else CsrArrays(*self.csr_arrays(), shape=self.shape)
        return build(csr, name, dtype=self.dtype, backend=self.backend, max_bytes=max_bytes, **layout)

    def _turned(self, name: str, **options: Any) -> SparseMatrix:
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self)):
            raise ValueError(f"A.T.asformat({name!r}) needs a matrix that is not traced; convert outside jit")
        with concrete():
            return build(self.T.to_scipy(), name, dtype=self.dtype, backend=self.backend, **options)

    # ------------------------------------------------------------------------------------------------------- basis

    @property
    def basis(self) -> Basis:
        """The order of unknowns in which `in_basis` works."""
        return IDENTITY

    @property
    def in_basis(self) -> SparseMatrix:
        """The matrix as a map between vectors that have entered `basis`."""
        return self


def build(
    csr: Csr, name: str, *, dtype: Any, backend: str, max_bytes: int | None = None, **layout: Any
) -> SparseMatrix:
    """The canonical `csr` in the format `name`, or in the one that it asks to choose, after checking name and layout.

    Raises:
      ValueError: unknown format or layout option. TypeError: `max_bytes` is no number.
    """
    if not isinstance(max_bytes, numbers.Real | None):
        raise TypeError(f"max_bytes must be a number of bytes, say 10**9; got {max_bytes!r}")
    if name in CHOOSERS:
        if layout:
            raise ValueError(f"format={name!r} chooses the layout itself; name a format to set {', '.join(layout)}")
        return CHOOSERS[name](csr, dtype=dtype, backend=backend, max_bytes=max_bytes)
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}; choose one of {', '.join((*FORMATS, *CHOOSERS))}")
    cls = FORMATS[name]
    for option in layout:
        if option not in cls.layout_options:
            known = ", ".join(cls.layout_options) or "none"
            raise ValueError(f"format {name!r} has no layout option {option!r}; it has: {known}")
    with contextlib.nullcontext() if isinstance(csr.data, Tracer) else concrete():
        return cls.from_csr(csr, dtype=dtype, backend=backend, max_bytes=max_bytes, **layout)


_nought = jax.jit(lambda: jnp.zeros(()))  # compiled, since conversions ask for it often


def concrete() -> contextlib.AbstractContextManager[Any]:
    """What is made of a matrix that a jitted function closes over is made while that is traced.

    Only then: what a conversion computes from sizes alone would become constants of its program, as large as a matrix.
    """
    return jax.ensure_compile_time_eval() if isinstance(_nought(), Tracer) else contextlib.nullcontext()


def spmv(A: SparseMatrix, x: Any, y: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Array:
    """alpha·A·x + beta·y. Where beta is 0 NaNs of y do not spread, and unless beta is traced y is not read.

    Args:
      x: [n_cols] or [n_cols, p].
      y: [n_rows] or [n_rows, p], of the product's shape.

    Raises:
      ValueError: y is missing or has another shape while beta is not 0.
    """
    product = A @ x
    alpha, beta = (a.item() if isinstance(a, np.generic) else a for a in (alpha, beta))  # as weak as Python's numbers
    product = product if isinstance(alpha, (int, float)) and alpha == 1 else alpha * product
    if not isinstance(beta, Tracer) and np.ndim(beta) == 0 and beta == 0:
        return product
    if y is None or jnp.shape(y) != product.shape:
        got = "no y" if y is None else f"y of shape {jnp.shape(y)}"
        raise ValueError(f"beta={beta} adds beta·y, which needs y of shape {product.shape}; got {got}")
    y = owned(y)
    if isinstance(beta, Tracer):  # the finite numbers stay, for the derivative with respect to beta
        y = jnp.where((beta == 0) & ~jnp.isfinite(y), 0, y)
    return product + beta * y


def _canonical(row: Array, col: Array, entry: Array, nnz: int) -> Array:
    """`entry` counted by row, then by column: what it is already, unless `in_basis` has renumbered the columns."""
    if nnz == 0:
        return entry

    def in_entry_order(a: Array) -> Array:
        return jnp.zeros(nnz, a.dtype).at[entry].set(a, mode="drop", unique_indices=True)

    rows, cols = in_entry_order(row), in_entry_order(col)

    def renumber() -> Array:
        order = jnp.lexsort((cols, rows))
        rank = jnp.zeros(nnz, entry.dtype).at[order].set(jnp.arange(nnz, dtype=entry.dtype), unique_indices=True)
        return jnp.where(entry < nnz, rank[jnp.minimum(entry, nnz - 1)], nnz)

    falls = jnp.any((rows[1:] == rows[:-1]) & (cols[1:] < cols[:-1]))
    return lax.cond(falls, renumber, lambda: entry)
