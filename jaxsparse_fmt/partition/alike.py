"""Matrices of one format made alike, so that one program serves all shards: equal statics, equal shapes of all arrays.

Formats choose their sizes by the pattern: how many columns a slice has, how many diagonals there are, whether rows go
on in a tail. What padding looks like in an array hangs on the array's name alone, which means the same in all formats:
indices point past the end, pointers stay where they end, values are zero. A place behind the last pointer belongs to no
row that is walked, and its index says padding to whatever looks at all places. So shards are padded array by array, and
a format of the same arrays joins without a line here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxsparse_fmt.formats.by_rule import array_fields
from jaxsparse_fmt.kernels.column_rule import PADDING, is_bits
from jaxsparse_fmt.kernels.tiles import NARROW_PADDING
from jaxsparse_fmt.matrix import SparseMatrix

POINTERS = ("slice_ptr", "row_ptr", "col_ptr", "col_start", "tail_ptr", "piece_ptr")
COUNTS = ("n_pieces", "tile_rows")  # room for the most of them is room for any
# The number that pads an array, from the matrix it belongs to.
FILL: dict[str, Callable[[Any], int]] = {
    "values": lambda A: 0,
    "row_lengths": lambda A: 0,
    "col_base": lambda A: 0,
    "delta": lambda A: PADDING,
    "marked_delta": lambda A: NARROW_PADDING,
    "col_idx": lambda A: A.shape[1],
    "marked_col": lambda A: A.shape[1],
    "lane_row": lambda A: A.shape[0] + A.n_pieces,  # as behind the last row: the tile before holds the rows up to here
    "hops": lambda A: 0,
    "tail_col": lambda A: A.shape[1],
    "offsets": lambda A: A.shape[1],  # a diagonal beyond the matrix
    "row_idx": lambda A: A.shape[0],
    "block_col": lambda A: -(-A.shape[1] // A.block_shape[1]),
}


@dataclasses.dataclass(frozen=True)
class Form:
    """What matrices must agree on, as far as each alone can tell: `agreed` joins several into one for all.

    Attributes:
      sizes: of every array that is there, the longest; of `values` what comes before a tail, and the tail.
      pattern: its dtype, which tells what it is (`kernels/column_rule.py`). Bits where some are, or some matrix has
        no pattern, since any place of that may hold a zero; None: no matrix has one.
      nnz: the most.
      counts: of rows that a format counts, pieces say, the most; by the names of its fields.
    """

    sizes: dict[str, int]
    pattern: np.dtype | None
    nnz: int
    counts: Mapping[str, int]

    @staticmethod
    def of(A: SparseMatrix) -> Form:
        arrays = _arrays(A)
        sizes = {name: a.shape[0] for name, a in arrays.items() if name not in ("values", "pattern")}
        main = getattr(A, "n_main", A.n_stored)
        sizes |= {"values": main, "tail": A.n_stored - main}
        pattern = arrays.get("pattern")
        holes = 0 if pattern is None or is_bits(pattern) else pattern.shape[0]
        kind = None if pattern is None else pattern.dtype
        return Form(
            sizes | {"pattern": holes}, kind, A.nnz, {name: getattr(A, name) for name in COUNTS if hasattr(A, name)}
        )


def agreed(forms: list[Form]) -> Form:
    """The form that all can be brought into."""
    names = {name for form in forms for name in form.sizes}
    sizes = {name: max(form.sizes.get(name, 0) for form in forms) for name in names}
    if "piece_ptr" in sizes and "tail_rows" in sizes:  # those that have none get one for all their rows
        sizes["piece_ptr"] = max(sizes["piece_ptr"], sizes["tail_rows"] + 1)
    kinds = {form.pattern for form in forms}
    read, unread = np.dtype(np.uint8), np.dtype(np.int8)
    if None in kinds or read in kinds:
        kind = None if kinds == {None} else read
    else:
        kind = unread if unread in kinds else np.result_type(*kinds)
    counts = {name: max(form.counts[name] for form in forms) for name in forms[0].counts}
    return Form(sizes, kind, max(form.nnz for form in forms), counts)


def arrays_in(A: SparseMatrix, form: Form) -> dict[str, np.ndarray]:
    """The arrays of A, on the host, in that form."""
    arrays = _arrays(A)
    if "tail_col" in form.sizes and "tail_col" not in arrays:  # others have a tail
        empty = np.zeros(0, np.int32)
        arrays |= {"tail_ptr": np.zeros(1, np.int32), "tail_col": empty, "tail_rows": empty}
    if "long_rows" in form.sizes and "long_rows" not in arrays:  # others have rows in pieces
        arrays |= {"long_rows": np.zeros(0, np.int32), "piece_ptr": np.zeros(1, np.int32)}
    if "piece_ptr" in form.sizes and "piece_ptr" not in arrays:  # None says one piece each
        arrays["piece_ptr"] = np.arange(arrays["tail_rows"].shape[0] + 1, dtype=np.int32)
    padded = {name: _padded(name, a, A, form) for name, a in arrays.items() if name != "pattern"}
    if form.pattern is not None:
        padded["pattern"] = _pattern(arrays.get("pattern"), A, form)
    return padded


def like(A: SparseMatrix, arrays: dict[str, Any], form: Form) -> SparseMatrix:
    """A with other arrays, of all shards say."""
    absent = {name: None for name in array_fields(type(A)) if name not in arrays}
    return dataclasses.replace(A, **arrays, **absent, **form.counts, nnz=form.nnz)  # pyright: ignore[reportArgumentType]


def general(A: SparseMatrix, forms: list[Form]) -> SparseMatrix:
    """A with optional index arrays spelled out where another shard's matrix has them, or without them where they would
    have to say what an added tile holds.
    """
    names = set(Form.of(A).sizes)
    others = set().union(*(form.sizes for form in forms))
    if {"marked_delta", "marked_col"} <= others:
        return A.with_one_width()  # pyright: ignore[reportAttributeAccessIssue]
    spell_out = getattr(A, "with_both_widths", None)
    narrow_or_wide = {"delta", "col_idx"}
    return spell_out() if spell_out is not None and others & narrow_or_wide - names else A


def _arrays(A: SparseMatrix) -> dict[str, np.ndarray]:
    named = {name: getattr(A, name) for name in array_fields(type(A))}
    return {name: np.asarray(a) for name, a in named.items() if a is not None}


def _padded(name: str, a: np.ndarray, A: SparseMatrix, form: Form) -> np.ndarray:
    size = form.sizes[name]
    if name == "values":
        main = getattr(A, "n_main", A.n_stored)
        return np.concatenate([_filled(a[:main], size, 0), _filled(a[main:], form.sizes["tail"], 0)])
    if name in POINTERS:
        return np.pad(a, (0, size - a.shape[0]), mode="edge")
    if name in ("tail_rows", "long_rows"):  # rows beyond the matrix, each once
        return np.concatenate([a, A.shape[0] + np.arange(size - a.shape[0], dtype=a.dtype)])
    if a.shape[0] == size:
        return a
    if name not in FILL:
        raise TypeError(f"format {A.name!r} has no padding for its array {name!r}; shards of it cannot be of one size")
    return _filled(a, size, FILL[name](A))


def _filled(a: np.ndarray, size: int, value: int) -> np.ndarray:
    out = np.full(size, value, a.dtype)
    out[: a.shape[0]] = a
    return out


def _pattern(pattern: np.ndarray | None, A: SparseMatrix, form: Form) -> np.ndarray:
    """Bits for all places, none of them for those that are added; or a list of holes, the added ones beyond the end."""
    n_stored = form.sizes["values"]
    assert form.pattern is not None
    if form.pattern.itemsize == 1:
        present = np.ones(A.n_stored, bool)
        if pattern is not None and is_bits(pattern):
            present = np.unpackbits(pattern.view(np.uint8), count=A.n_stored, bitorder="little").astype(bool)
        elif pattern is not None:
            present[pattern] = False
        return np.packbits(_filled(present, n_stored, 0), bitorder="little").view(form.pattern)
    assert pattern is not None
    added = form.sizes["pattern"] - pattern.shape[0]
    return np.concatenate([pattern, n_stored + np.arange(added, dtype=pattern.dtype)])
