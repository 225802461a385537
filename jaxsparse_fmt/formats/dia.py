"""DIA, storage by diagonals (Barbieri et al., §2.4 and §3.3): no column index at all.

         ⎡ 1 . 2 . ⎤      values   [* * 4 · | 1 3 5 · | · · 6 * | 2 · * *]      [diagonals·n_rows], * outside the matrix
         ⎢ . 3 . . ⎥      offsets  [-2 0 1 2]                                   [diagonals] int32, column minus row
         ⎢ 4 . 5 6 ⎥      pattern  [119 -36]                                    [⌈places / 8⌉] int8, bits: 0 at every ·
         ⎣ . . . . ⎦

Entry k of a row lies on diagonal k, in the column row + offsets[k]. A place inside the matrix that holds no entry, a
hole, must be told from one that holds a zero. `pattern` has a bit for every place, little-endian, 0 at holes; or where
that is shorter and no entry is zero it lists the holes, [holes] int32 (int64 from 2³¹ places); None without holes
(`kernels/column_rule.py`). Where some entry is zero the bits are uint8, and products read them; else they pass over
values of zero.

Bytes: diagonals·(n_rows·value + 4), and for the pattern min(⌈diagonals·n_rows / 8⌉, 4·holes), the former where there
are holes and some entry is zero.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import merging, storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, RuleFaces, register
from jaxsparse_fmt.kernels import columns
from jaxsparse_fmt.kernels.address import Slices, Starts
from jaxsparse_fmt.kernels.column_rule import Diagonal, pack_pattern, packed
from jaxsparse_fmt.kernels.rule import Rule

SOME_ROWS = 4096  # in which diagonals are looked for first
SLICE_ROWS = 128
BLOCK = 2**13  # rows that a pass over all entries takes at a time on the host


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DIA(ByRule):
    offsets: Array
    pattern: Array | None

    name = "dia"
    transposes = True

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], max(self.shape[0], 1))

    @property
    def column(self) -> Diagonal:
        return Diagonal()

    @property
    def faces(self) -> DiagonalFaces:
        return DiagonalFaces(Rule(self.shape, self.n_stored, self.address, self.column), tuple(self.arrays_read))

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        offsets, values, pattern = stored(csr, dtype, max_bytes)
        return cls(values, csr.shape, csr.nnz, backend, jnp.asarray(offsets, np.int32), pattern)


class DiagonalFaces(RuleFaces):
    """The three faces over whole diagonals. Transposed they are diagonals again, of the same places: entry (r, c) lies
    at start + r, which is (start − offset) + c. So Aᵀ·y is a product, too, and nothing is added in an unknown order.
    """

    def transposed(self, values, y, structure, backend):
        arrays, (n_rows, n_cols) = self.arrays(structure), self.shape
        offsets = arrays["offsets"]
        start = arrays.get("start")
        if start is None:
            start = jnp.arange(offsets.shape[0], dtype=index_dtype(self.n_stored)) * n_rows
        back = arrays | {"offsets": -offsets, "start": start - offsets}
        rule = Rule((n_cols, n_rows), self.n_stored, Starts(n_cols, n_cols), Diagonal())
        return columns.product(values, y, back, rule=rule, backend=backend)


def _check(csr: Csr, offsets: np.ndarray, dtype: Any, max_bytes: int | None) -> None:
    n_stored, cause = offsets.size * csr.shape[0], f"its entries lie on {offsets.size} diagonals"
    storing.check_memory(DIA.name, n_stored, csr, dtype, max_bytes, index=0, cause=cause)


def stored(csr: Csr, dtype: Any, max_bytes: int | None) -> tuple[np.ndarray, Array, Array | None]:
    """The offsets, int64 on the host; `values`, and `pattern`."""
    on_device = None if storing.namespace(csr.data) is np else _on_device(csr, dtype, max_bytes)
    return on_device or _on_host(csr, dtype, max_bytes)


def _on_host(csr: Csr, dtype: Any, max_bytes: int | None):
    csr, (n_rows, n_cols) = storing.on_host(csr), csr.shape
    present = occupied(csr)
    offsets = np.flatnonzero(present) - (n_rows - 1)
    _check(csr, offsets, dtype, max_bytes)
    n_stored = offsets.size * n_rows
    # An entry lies `column` places behind the start of its diagonal, counted from where column 0 would be.
    start = np.zeros(present.size, np.intp)  # as NumPy indexes
    start[present] = np.arange(offsets.size) * n_rows - offsets
    values, full = np.zeros(n_stored, dtype), np.zeros((offsets.size, n_rows), bool)
    for entries, diagonal in by_rows(csr):
        place = start[diagonal] + csr.indices[entries]
        values[place] = csr.data[entries]
        full.reshape(-1)[place] = True
    for diagonal, offset in zip(full, offsets.tolist(), strict=True):  # outside the matrix there is nothing to tell
        diagonal[: max(-offset, 0)] = diagonal[max(n_cols - offset, 0) :] = True
    zero = bool(np.any(csr.data.astype(dtype, copy=False) == 0))
    return offsets, jnp.asarray(values), storing.on_device(pack_pattern(full.reshape(-1), zero))


def by_rows(csr: Csr) -> Iterator[tuple[slice, np.ndarray]]:
    """Some rows at a time, which stay in the cache: which entries, and the diagonal of each, col − row + n_rows − 1."""
    n_rows, n_cols = csr.shape
    index = csr.indices.dtype if n_rows + n_cols < 2**31 else np.int64
    for first in range(0, n_rows, BLOCK):
        ptr = csr.indptr[first : first + BLOCK + 1]
        before = np.arange(first - n_rows + 1, first + ptr.size - n_rows, dtype=index)
        entries = slice(ptr[0], ptr[-1])
        yield entries, csr.indices[entries] - np.repeat(before, np.diff(ptr))


def occupied(csr: Csr) -> np.ndarray:
    """Which diagonals hold an entry: bool [n_rows + n_cols − 1], the lowest first."""
    present = np.zeros(max(sum(csr.shape) - 1, 0), bool)
    for _, diagonal in by_rows(csr):
        present[diagonal] = True
    return present


def _on_device(csr: Csr, dtype: Any, max_bytes: int | None):
    """As `stored`; None where the host must do it.

    The diagonals of some rows are tried first: mostly they are all, and then no pass over the entries looks for them.
    """
    n_rows = csr.shape[0]
    some = [np.linspace(0, n_rows - 1, SOME_ROWS).astype(np.int32)] if n_rows > SOME_ROWS else []
    for rows in (*some, None):
        n_looked_at = max(n_rows if rows is None else rows.size, 1)
        merged = merging.distinct(csr, storing.on_device(rows), n_looked_at, Diagonal())
        if merged is None:
            return None
        offsets = np.asarray(merged).astype(np.int64)
        offsets = offsets[offsets != merging.NONE]
        if rows is None:
            _check(csr, offsets, dtype, max_bytes)
        elif not _fits(csr, offsets, dtype, max_bytes):
            continue
        values, present = _place(csr, offsets, dtype)
        n_inside = np.minimum(n_rows, csr.shape[1] - offsets) - np.maximum(0, -offsets)
        pattern, n_holes = packed(present, merging.any_zero(csr.data, np.dtype(dtype)))
        if rows is None or int(n_inside.sum()) - n_holes == csr.nnz:
            return offsets, values, pattern
    return None


def _fits(*storage: Any) -> bool:
    try:
        _check(*storage)
    except ValueError:
        return False
    return True


def _place(csr: Csr, offsets: np.ndarray, dtype: Any) -> tuple[Any, Any]:
    """`values`, and which places hold an entry or lie outside.

    Slice by slice, so that the rows of a slice stay in the cache while their diagonals are looked for, then turned.
    """
    C, n_rows = min(SLICE_ROWS, max(csr.shape[0], 1)), csr.shape[0]
    slice_ptr = storing.pointers(np.full(-(-n_rows // C), offsets.size * C))
    rule = Rule(csr.shape, int(slice_ptr[-1]), Slices(n_rows, C), Diagonal())
    index = {"offsets": np.tile(offsets.astype(np.int32), slice_ptr.size - 1), "slice_ptr": slice_ptr}
    placed = merging.place(csr, rule, {name: jnp.asarray(a) for name, a in index.items()}, dtype)
    return _turn(placed, offsets.size, C, n_rows)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _turn(arrays, n_diagonals, C, n_rows):
    """[n_slices, diagonals, C] as [diagonals, n_rows], all flat."""

    def turned(a):
        return a.reshape(-1, n_diagonals, C).swapaxes(0, 1).reshape(n_diagonals, -1)[:, :n_rows].reshape(-1)

    return tuple(map(turned, arrays)) if n_diagonals else arrays
