"""Solves of (I + N)·y = r with N strictly triangular, on every backend, for several right-hand sides.

On a CPU a native kernel takes the rows in their order. Elsewhere the rows are taken by levels (Saltz 1990): a row of
level l needs rows of lower levels only, so that all entries of a level are worked on at once. A level is cut into
chunks of at most `width` entries, so that the work does not depend on the sizes of the levels. The transposed system
(I + N)ᵀ·y = r takes the same levels in reverse.
"""

import dataclasses
import functools
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import batching

from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.core import form, mesh_axes
from jaxsparse_fmt.core.vector_passes import platform_primitive
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows

LEAST_WIDTH = 64  # entries of a chunk, at least


@exportable
@pytree
class Triangle:
    """I + N for a strictly triangular N in CSR.

    Attributes:
      values, col_idx, row_ptr: N, [nnz], [nnz] and [n + 1].
      rows: [n], the rows by level.
      starts: [chunks + 1], where each chunk begins among the entries of `rows`.
      width: of the widest chunk.
      upper: whether N is upper triangular.
      is_transposed: whether this stands for (I + N)ᵀ.
    """

    values: Array
    col_idx: Array
    row_ptr: Array
    rows: Array
    starts: Array
    width: int = dataclasses.field(metadata={"static": True})
    upper: bool = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    @classmethod
    def of(cls, N: Csr, upper: bool, rounded: bool = False) -> Self:
        """The triangle of a strictly triangular matrix in SciPy's CSR, whose values stay NumPy's.

        Args:
          rounded: round sizes up by at most a quarter to one of few, so that triangles of similar fill share programs.
            Padding lies after the last row.
        """
        made: Any = cls  # from arrays of NumPy
        if max(N.nnz, N.shape[0]) >= 2**31:
            raise ValueError(
                f"a triangle of {N.shape[0]} rows and {N.nnz} entries exceeds what 32-bit indices address, {2**31 - 1}"
            )
        n, ptr, col = N.shape[0], N.indptr.astype(np.int32), N.indices.astype(np.int32)
        level = np.zeros(n, np.int32)
        over_rows(elimination.levels, n, 1, ptr, col, level, int(upper), rows=n)
        rows = np.argsort(level, kind="stable").astype(np.int32)
        ends = np.append(0, np.cumsum(np.diff(ptr)[rows], dtype=np.int64))  # of the entries of each row
        ends = ends[np.append(0, np.cumsum(np.bincount(level)))]  # of each level
        sizes = np.diff(ends)
        size = rounded_size if rounded else lambda k: k
        width = max(LEAST_WIDTH, 1 << (size(N.nnz) // max(size(len(sizes)), 1)).bit_length())
        chunks = -(-sizes // width)
        before = np.arange(chunks.sum()) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        starts = np.append(np.repeat(ends[:-1], chunks) + width * before, N.nnz).astype(np.int32)
        values = N.data
        if rounded:
            padding = 0, size(N.nnz) - N.nnz
            values, col = np.pad(values, padding), np.pad(col, padding)
            starts = np.pad(starts, (0, size(len(starts)) - len(starts)), "edge")
        return made(values, col, ptr, rows, starts, width, upper)

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    def solve(self, r: Array) -> Array:
        """(I + N)⁻¹·r for r of [n] or [n, p], in the dtype of both. Linear in r; without derivatives."""
        columns = r[..., None] if r.ndim == 1 else r
        pattern = self.col_idx, self.row_ptr, self.rows, self.starts
        kind = self.width, self.upper, self.is_transposed
        y = _bind(self.values[None], columns[None], *pattern, kind=kind)[0]
        return y[:, 0] if r.ndim == 1 else y


def rounded_size(k: int) -> int:
    """The least number from k up that has at most three binary digits before its zeros."""
    step = 1 << max(int(k).bit_length() - 3, 0)
    return -(-int(k) // step) * step


def _bind(values: Array, r: Array, *pattern: Array, **static: Any) -> Array:
    if 0 in values.shape or 0 in r.shape:
        return r.astype(jnp.result_type(values, r))
    operands = mesh_axes.varying((values, r, *pattern), r)
    return triangular_p.bind(*operands, backend=selection.in_use.value, **static)[0]


def _solved(
    values: Array,  # [b, nnz]
    r: Array,  # [b, n, p]
    *pattern: Array,
    backend: str,
    kind: tuple[int, bool, bool],
) -> Array:
    (col, ptr, rows, starts), (width, upper, is_transposed) = pattern, kind
    if backend == "numba" and (y := spmv_cpu.of_triangle(values, r, ptr, col, upper, is_transposed)) is not None:
        return y
    nnz, n, lengths = col.shape[0], rows.shape[0], jnp.diff(ptr)[rows]

    def expanded(a: Array) -> Array:
        """One number per row for each of its entries."""
        return jnp.repeat(a, lengths, total_repeat_length=nnz)

    entry = jnp.arange(nnz, dtype=ptr.dtype) + expanded(ptr[rows] - jnp.cumsum(lengths) + lengths)
    to, source, values = expanded(rows), col[entry], values[:, entry]
    to, source = (source, to) if is_transposed else (to, source)
    chunks = starts.shape[0] - 1

    def chunk(k: Array, y: Array) -> Array:
        k = chunks - 1 - k if is_transposed else k
        place = starts[k] + jnp.arange(width, dtype=starts.dtype)
        entry = jnp.minimum(place, nnz - 1)
        target = jnp.where(place < starts[k + 1], to[entry], n)  # the last rows of a chunk that is not full are dropped
        return y.at[:, target].add(-values[:, entry, None] * y[:, source[entry]], mode="drop")

    y = mesh_axes.varying(r.astype(jnp.result_type(values, r)), r)
    return lax.fori_loop(0, chunks, chunk, y, unroll=4)  # a turn of a loop takes a GPU far longer than a chunk


triangular_p = platform_primitive("triangular_solve_sparse", _solved)


@standard_promotion
def _batch(operands: Any, dims: Any, *, backend: str, **static: Any) -> Any:
    del backend
    values, r, *pattern = operands
    values_dim, r_dim, *pattern_dims = dims
    if any(dim is not None for dim in pattern_dims):
        return [form.one_by_one(functools.partial(_bind, **static), operands, dims)], [0]
    columns = values_dim is None
    y = form.batched(lambda values, r: _bind(values, r, *pattern, **static), values, r, values_dim, r_dim, columns)
    return [y], [2 if columns else 0]


batching.primitive_batchers[triangular_p] = _batch
