"""Assembly: makes a pattern once from coordinates that may repeat, then matrices from their values.

A sparse matrix of ones, [entries, values], lists the values that each entry sums. So a matrix-vector product
assembles, in the order given, and its rules give every derivative.
"""

from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._arguments import as_floating, whole_number
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete, is_traced
from jaxsparse_fmt._types import Array, Csr
from jaxsparse_fmt.algebra import on_device, patterns, plans
from jaxsparse_fmt.core.entry_index import take_or_zero
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR


@pytree
class Assembly:
    """A pattern from coordinates, whose call sums the values of equal coordinates, in the order given."""

    result: SparseMatrix  # without values
    duplicates: CSR  # [nnz, k], with ones at the values that each entry sums; float32 loses no bit of them

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
        return self.result.with_data(summed(self.duplicates, values))


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

    Examples:
      >>> pattern = js.assembly([0, 0, 1], [0, 0, 1], (2, 2))
      >>> pattern(jnp.array([1.0, 2.0, 5.0])).diagonal().tolist()  # one place: a sum
      [3.0, 5.0]
    """
    with concrete():
        row, col, shape = coordinates(row, col, shape)
        S, duplicates = grouped(row.reshape(-1), col.reshape(-1), shape, backend)
        result = patterns.matrix(S, format, backend, max_bytes, **layout)
    return Assembly(result, duplicates)


def coordinates(row: Any, col: Any, shape: Any) -> tuple[Any, Any, tuple[int, int]]:
    """Checked indices in int32, on the accelerator that holds or takes them, else on the host; and the shape."""
    if is_traced(row, col):
        raise ValueError(
            "assembly needs the indices themselves, which are traced here; call it outside jit, and call the "
            "pattern that it returns inside, with traced values"
        )
    row, col = (a if isinstance(a, jax.Array) else np.asarray(a) for a in (row, col))
    is_on_device = on_device.lies(row.size, row, col)
    row, col = (a if is_on_device else np.asarray(a) for a in (row, col))
    if row.shape != col.shape:
        raise ValueError(f"row and col must have one shape, got {row.shape} and {col.shape}")
    shape = checked_shape(shape)
    for name, index in (("row", row), ("col", col)):
        if not np.issubdtype(index.dtype, np.integer) and index.size:
            raise TypeError(f"{name} must hold integers, got dtype {index.dtype}")
    for name, n in (("rows", shape[0]), ("columns", shape[1]), ("entries", row.size)):
        building.check_bound(name, n)
    for name, index, n in (("row", row, shape[0]), ("col", col, shape[1])):
        building.check_range(name, index, n)
    row, col = (a.astype(np.int32) for a in (row, col))
    if not (is_on_device or row.size < building.FEW or building.puts_on_cpu()):
        row, col = map(jax.device_put, (row, col))
    return row, col, shape


def checked_shape(shape: Any) -> tuple[int, int]:
    try:
        rows, cols = (whole_number("shape", n) for n in shape)
    except (TypeError, ValueError):
        raise ValueError(f"shape must be two numbers from 0 up, (rows, columns); got {shape}") from None
    return rows, cols


def grouped(row: Any, col: Any, shape: tuple[int, int], backend: str) -> tuple[Csr, CSR]:
    """The pattern of coordinates, and the values that each entry sums, as a matrix of ones."""
    S, first, order = patterns.grouped(row, col, shape)
    duplicates = plans.listed_sums(order, first, (S.nnz, row.size), backend)
    if S.nnz != row.size:
        ones = building.namespace(order).ones(row.size, np.float32)
        duplicates = duplicates._with_values(building.on_device(ones))
    return S, duplicates


def summed(duplicates: CSR, values: Array) -> Array:
    """The sums of the values [k] of equal coordinates, in the order given."""
    if duplicates.shape[0] == duplicates.shape[1]:
        return take_or_zero(values, duplicates.col_idx)
    return (duplicates @ values).astype(values.dtype)
