"""Assembly: makes a pattern once from coordinates that may repeat, then matrices from their values.

A sparse matrix of ones, [entries, values], lists the values that each entry sums. So a matrix-vector product
assembles, in the order given, and its rules give every derivative.
"""

import dataclasses
from typing import Any

import numpy as np
from jax.core import Tracer

from jaxsparse_fmt._types import as_floating, pytree, whole_number
from jaxsparse_fmt.algebra import patterns, plans
from jaxsparse_fmt.core.entry_index import take
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Assembly:
    """A pattern from coordinates, whose call sums the values of equal coordinates, in the order given.

    Attributes:
      result: the matrix, without values.
      duplicates: [nnz, k], with ones at the values that each entry sums; in float32, which loses no bit of them.
      permutes: whether every entry comes from exactly one value.
    """

    result: SparseMatrix
    duplicates: CSR
    permutes: bool = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        (rows, cols), nnz = self.result.shape, self.result.nnz
        return f"<Assembly of {self.result.name} {rows}×{cols}, nnz={nnz}, from {self.duplicates.shape[1]} values>"

    def __call__(self, values: Any) -> SparseMatrix:
        """The matrix of the values [k], or any shape of k numbers, in the order of the coordinates.

        Raises:
          ValueError: another number of values.
        """
        values = as_floating(values, "values").reshape(-1)
        k = self.duplicates.shape[1]
        if values.shape != (k,):
            raise ValueError(f"values must have {k} numbers, one for each coordinate; got {values.shape[0]}")
        if self.permutes:
            return self.result.with_data(take(values, self.duplicates.col_idx))
        return self.result.with_data((self.duplicates @ values).astype(values.dtype))


def assembly(
    row: Any,
    col: Any,
    shape: tuple[int, int],
    format: str = "auto",
    *,
    backend: str = "auto",
    max_bytes: float | None = None,
    **layout: Any,
) -> Assembly:
    """A pattern from coordinates, which may repeat: `assembly(row, col, shape)(values)` is the matrix.

    The call is traceable and differentiable; it sums the values of equal coordinates in the order in which they stand.

    Args:
      row, col: integers of any one shape, k numbers each, such as [elements, 8, 8].
      shape, format, backend, max_bytes, **layout: as in `from_coo`.

    Raises:
      ValueError: lengths that differ, an index outside `shape`, or traced indices.
      TypeError: indices that are not integers.
    """
    if any(isinstance(a, Tracer) for a in (row, col)):
        raise ValueError(
            "assembly needs the indices themselves, which are traced here; call it outside jit, and call the "
            "pattern that it returns inside, with traced values"
        )
    row, col = np.asarray(row), np.asarray(col)
    if row.shape != col.shape:
        raise ValueError(f"row and col must have one shape, got {row.shape} and {col.shape}")
    shape = (whole_number("shape", shape[0]), whole_number("shape", shape[1]))
    row, col, k = row.reshape(-1), col.reshape(-1), row.size
    for name, index in (("row", row), ("col", col)):
        if not np.issubdtype(index.dtype, np.integer) and k:
            raise TypeError(f"{name} must hold integers, got dtype {index.dtype}")
    for name, n in (("rows", shape[0]), ("columns", shape[1]), ("entries", k)):
        building.check_bound(name, n)
    for name, index, n in (("row", row, shape[0]), ("col", col, shape[1])):
        if k and (bad := index.min() if index.min() < 0 else index.max()) not in range(n):
            raise ValueError(f"{name} index {bad} is out of range for shape {shape}; indices count from 0")
    S, first, order = patterns.grouped(row.astype(np.int32), col.astype(np.int32), shape)
    permutes = S.nnz == k
    duplicates = plans.listed_sums(order, first, (S.nnz, k), backend)
    if not permutes:
        duplicates = duplicates._with_values(building.on_device(np.ones(k, np.float32)))
    result = patterns.matrix(S, format, backend, max_bytes, **layout)
    return Assembly(result, duplicates, permutes)
