"""The transpose of a sparse matrix, as a view."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._arguments import whole_number
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._types import Array, Csr, CsrArrays
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.basis import Basis, agreed
from jaxsparse_fmt.core.scipy_names import OnOneDevice
from jaxsparse_fmt.kernels.cpu import csr_operations


@pytree
class Transposed(OnOneDevice):
    """The transpose of `A`, a view of the arrays of `A`."""

    A: Any  # a SparseMatrix, whose module imports this one

    @property
    def _stored(self) -> Any:
        return self.A

    @property
    def shape(self) -> tuple[int, int]:
        return self.A.shape[1], self.A.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.A.dtype

    @property
    def nnz(self) -> int:
        return self.A.nnz

    @property
    def n_stored(self) -> int:
        """Stored places of A, padding included."""
        return self.A.n_stored

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of A; the view has none of its own."""
        return self.A.nbytes

    @property
    def fill(self) -> float:
        return self.A.fill

    @property
    def T(self) -> Any:
        return self.A

    def _times_vector(self, y: Any) -> Array:
        return self.A._transposed(y)

    def _transposed(self, x: Any) -> Array:
        return self.A @ x

    def _times_matrix(self, other: Any) -> Any:
        return type(self.A)._times_matrix(self, other)  # an operation of one device, or of several

    def __getitem__(self, index: Any) -> Any:
        return type(self.A).__getitem__(self, index)

    def _combined(self, *operation: Any) -> Any:
        return type(self.A)._combined(self, *operation)

    def _agree(self, **given: Any) -> None:
        self.A._agree(**given)

    @property
    def basis(self) -> Basis:
        return self.A.basis

    @property
    def in_basis(self) -> "Transposed":
        return Transposed(self.A.in_basis)

    def _in_bases(self) -> tuple[Any, Basis, Basis]:
        A, x_basis, y_basis = self.A._in_bases()
        return Transposed(A), y_basis, x_basis

    def _partition(self, axis: Any) -> Any:
        return self.A._partition(axis)

    def _failing_together(self, operation: str) -> AbstractContextManager[None]:
        return self.A._failing_together(f"{operation}, transposed")

    def _each(self, f: Callable[[Array], Array]) -> "Transposed":
        return Transposed(self.A._each(f))

    def copy(self) -> "Transposed":
        return Transposed(self.A.copy())

    @property
    def data(self) -> Array:
        """The entries [nnz] in the canonical order of the transpose: by its rows, then by its columns."""
        return self._in_its_order(self.A.data)

    @property
    def row_ids(self) -> Array:
        """The row of each entry of `data`, [nnz] int32."""
        return self._in_its_order(self.A.col_ids)

    @property
    def col_ids(self) -> Array:
        """The column of each entry of `data`, [nnz] int32."""
        return self._in_its_order(self.A.row_ids)

    def _in_its_order(self, a: Array) -> Array:
        """One number for each entry of A, in the canonical order of the transpose."""
        return entry_index.take_or_zero(a, entry_index.of_transpose(self.A).place)

    @agreed
    def with_data(self, data: Any) -> "Transposed":
        """The same pattern with other entries, as `SparseMatrix.with_data`.

        Args:
          data: [nnz] in the canonical order of the transpose.

        Raises:
          ValueError: another shape.
        """
        data = entry_index.checked(data, self.nnz)
        return Transposed(self.A.with_data(entry_index.take_or_zero(data, entry_index.of_transpose(self.A).entry)))

    def data_of(self, gradient: "Transposed") -> Array:
        """The entries [nnz] of a gradient in this whole view, in the order of `data`, as `SparseMatrix.data_of`."""
        return self._in_its_order(self.A.data_of(gradient.A))

    def csr_arrays(self) -> CsrArrays:
        """`data`, `indices` and `indptr` of the transpose, as `SparseMatrix.csr_arrays`."""
        if entry_index.at_hand(self.A):
            return entry_index.csr_arrays(self)
        return entry_index.transposed(self.A.csr_arrays(), entry_index.of_transpose(self.A).place)[0]

    def asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> Any:
        """The transpose as a matrix of its own; arguments as in `SparseMatrix.asformat`.

        Raises:
          ValueError: inside jit, of a traced matrix; and as in `SparseMatrix.asformat`.
        """
        return self.A._transpose_asformat(name, max_bytes=max_bytes, **layout)

    def diagonal(self, k: int = 0) -> Array:
        return self.A.diagonal(-whole_number("k", k, None))

    def todense(self, **options: Any) -> Array:
        return self.A.todense(**options).T

    def to_scipy(self) -> Csr:
        return scipy.sparse.csr_array(self.A.to_scipy().T)

    def _read_only(self) -> Csr:
        S = self.A._read_only()
        return csr_operations.transposed(S) if csr_operations.serves(S) else scipy.sparse.csr_array(S.T)

    def __repr__(self) -> str:
        return f"{self.A!r}.T"
