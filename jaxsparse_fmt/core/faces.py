"""The faces of the trilinear form, which every format computes for the primitives of `form.py`."""

import abc
import dataclasses
from typing import Any, Self

import jax
import numpy as np

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core import origin
from jaxsparse_fmt.kernels import coordinates
from jaxsparse_fmt.kernels.vector_pass import Pass


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Absent:
    """The stand-in for `values` in a matrix without them: their shape, and no array."""

    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Faces(abc.ABC):
    """The arrays and sizes of a stored matrix, and the three faces of the form over them.

    The faces take and return plain arrays, and read `values` from their arguments alone. `backend` is any result of
    `selection.resolve` but "numba", for which `form.py` calls `_native_face`.

    Attributes:
      values: [n_stored], entries and padding in the format's own order; `Absent` in `_without_values`.
      shape: (rows, columns).
      nnz: stored entries without padding. An explicit zero is an entry.
      backend: see `use_backend`.
    """

    values: Array
    shape: tuple[int, int]
    nnz: int
    backend: str

    @abc.abstractmethod
    def entries(self) -> tuple[Array, Array, Array, Array]:
        """Row, column, index in `data` and value of all stored places [n_stored]; padding: column n_cols, index nnz."""

    @abc.abstractmethod
    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        """A·x for values [b, n_stored] and x [b, n_cols, p]: [b, n_rows, p]."""

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        """Aᵀ·y for values [b, n_stored] and y [b, n_rows, p]: [b, n_cols, p]; here in plain XLA, place by place."""
        row, col, *_ = self.entries()
        return coordinates.transposed_reference(values, y, row, col, n_cols=self.shape[1])

    def _outer_face(self, y: Array, x: Array, backend: str) -> Array:
        """Σ_p y[row, p]·x[col, p] at the stored places, 0 in padding: [b, n_stored]; here in plain XLA."""
        row, col, *_ = self.entries()
        return coordinates.outer_reference(y, x, row, col, n_cols=self.shape[1])

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        """A face by name of its operands, by a Numba kernel; None where there is none."""
        del face, a, b
        return None

    @property
    def _sums(self) -> int:
        """The number of parts of each sum that `_product_sums` returns; 0 if a separate pass costs less."""
        return 0

    def _product_sums(self, values: Array, x: Array, others: Any, what: Pass, backend: str) -> tuple[Array, ...]:
        """A·x and the sums of a pass over it and `others`, by a Pallas kernel: [n_rows], and [_sums] each."""
        raise NotImplementedError

    def _wants_shared_memory(self, face: str, p: int) -> bool:
        """Whether the kernel of a face with p right-hand sides is faster in a dialect with shared memory."""
        del face, p
        return False

    @property
    def _without_values(self) -> Self:
        """The matrix without `values`, which the primitives in `form.py` take as a separate operand."""
        return dataclasses.replace(self, values=Absent((self.n_stored,)))

    @property
    def _for_other_values(self) -> Self:
        """The same matrix without the arrays that were computed from its own values."""
        return self

    @property
    def n_stored(self) -> int:
        """Stored places, padding included.

        Raises:
          ValueError: the matrix is a stack of matrices, or a gradient, which has no pattern. All code that reads the
            pattern reads `n_stored` first, and so raises too.
        """
        self._check_single()
        if not self._has_pattern:
            raise ValueError(
                f"this is a gradient by a whole matrix of shape {self.shape}, or what is left of one without its index "
                "arrays: it has values, but no pattern. Its entries are A.data_of(gradient), with A the matrix itself"
            )
        return self.values.shape[0]

    @property
    def _has_pattern(self) -> bool:
        has_index = False
        for a in jax.tree.leaves(self):
            if isinstance(a, jax.Array | np.ndarray) and a.dtype == jax.dtypes.float0:
                return False
            has_index |= a is not self.values
        return has_index and not self._is_changed

    _is_changed = False  # whether a tree function changed the index arrays
    _unflattened = origin.note

    def _check_single(self) -> None:
        """Raises ValueError for a stack of matrices, or one of changed index arrays."""
        if self._is_changed:
            raise ValueError(
                f"the index arrays of this matrix of shape {self.shape} were changed, as by jax.tree.map over all its "
                "arrays; scale it by 2 * A, and give it other numbers by A.with_data(data)"
            )
        if len(self.values.shape) != 1:
            raise ValueError(
                f"this is a stack of matrices of shape {self.shape}: `values` have the shape {self.values.shape}, with "
                f"{self.values.shape[:-1]} in front of the stored places. Map over it, as with "
                "jax.vmap(lambda A: A @ x)(stacked)"
            )
