"""Annotations of a format's fields: how shards pad the field to an equal size.

The sizes of a format's arrays depend on the pattern, for instance on the number of diagonals. One program serves all
shards only if their arrays have equal shapes, so `distributed/padding.py` lengthens each array by the metadata in its
field's annotation. No product reads a place behind the last pointer, and its index means padding. A field annotated
plain `Array` must have equal sizes in all shards.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import jax
import numpy as np

Array = jax.Array
Extend: TypeAlias = Callable[[np.ndarray, int, Any], np.ndarray]  # (array, required size, its matrix) -> array


@dataclasses.dataclass(frozen=True)
class Padding:
    """The way to lengthen an array; metadata of a field's annotation."""

    extend: Extend


@dataclasses.dataclass(frozen=True)
class Most:
    """Marks a number that sets a size: all shards take the largest number of any shard."""


def fill(value: Callable[[Any], int]) -> Padding:
    """Padding by one number, value(A) of the matrix A."""

    def extend(a: np.ndarray, size: int, A: Any) -> np.ndarray:
        return np.concatenate([a, np.full(size - a.shape[0], value(A), a.dtype)])

    return Padding(extend)


ColumnIndex = Annotated[Array, fill(lambda A: A.shape[1])]
Offset = ColumnIndex  # column minus row of a diagonal; n_cols lies beyond the matrix
RowIndex = Annotated[Array, fill(lambda A: A.shape[0])]
ZeroPadded = Annotated[Array, fill(lambda A: 0)]
Pointer = Annotated[Array, Padding(lambda a, size, A: np.pad(a, (0, size - a.shape[0]), mode="edge"))]
# First places of diagonals of n_rows places each.
Start = Annotated[Array, Padding(lambda a, size, A: np.append(a, A.shape[0] * np.arange(a.shape[0], size)))]
# Rows that continue elsewhere; padding adds rows beyond the matrix, each once.
LongRows = Annotated[
    Array, Padding(lambda a, size, A: np.concatenate([a, A.shape[0] + np.arange(size - a.shape[0], dtype=a.dtype)]))
]
Largest = Annotated[int, Most()]


@functools.cache
def noted(cls: type[Any], kind: type[Any]) -> dict[str, Any]:
    """The metadata of type `kind` in the annotations of a format's fields, by the field's name."""
    hints, notes = typing.get_type_hints(cls, include_extras=True), {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        metadata = (getattr(part, "__metadata__", ()) for part in (hint, *typing.get_args(hint)))  # of `X | None`, too
        found = [note for some in metadata for note in some if isinstance(note, kind)]
        notes |= {field.name: found[0]} if found else {}
    return notes
