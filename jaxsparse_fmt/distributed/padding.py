"""Pads matrices of one format to the same static fields and array shapes, so that one program serves all shards.

The pattern of a matrix decides the sizes of its arrays. The annotation of each field holds the rule that lengthens its
array (`formats/base.py`), so that a format needs no line here. Values and bits of `pattern` are zero in padding.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats.base import Most, Padding, array_fields, noted
from jaxsparse_fmt.kernels.layout.columns import is_bits


@dataclasses.dataclass(frozen=True)
class Form:
    """The sizes, dtype and counts on which the matrices of all shards must agree; `agreed` joins those of several.

    Attributes:
      sizes: the length of every array; for `values` the length before the tail, and that of the tail.
      pattern: its dtype, which decides whether it holds bits or places (`kernels/layout/columns.py`). Bits where some
        matrix has bits, or has no pattern, since any of its places may hold a zero; None: no matrix has one.
      nnz: the number of entries.
      counts: each number that sets a size, by the name of its field.
    """

    sizes: dict[str, int]
    pattern: np.dtype | None
    nnz: int
    counts: Mapping[str, int]

    @staticmethod
    def of(A: SparseMatrix) -> "Form":
        arrays = _arrays(A)
        sizes = {name: a.shape[0] for name, a in arrays.items() if name not in ("values", "pattern")}
        main = getattr(A, "n_main", A.n_stored)
        sizes |= {"values": main, "tail": A.n_stored - main}
        pattern = arrays.get("pattern")
        holes = 0 if pattern is None or is_bits(pattern) else pattern.shape[0]
        kind = None if pattern is None else pattern.dtype
        return Form(sizes | {"pattern": holes}, kind, A.nnz, {name: getattr(A, name) for name in noted(type(A), Most)})


def agreed(forms: list[Form]) -> Form:
    """The form to which the matrices of all these forms can be padded: the largest sizes and counts."""
    names = {name for form in forms for name in form.sizes}
    sizes = {name: max(form.sizes.get(name, 0) for form in forms) for name in names}
    kinds = {form.pattern for form in forms}
    read, unread = np.dtype(np.uint8), np.dtype(np.int8)
    if None in kinds or read in kinds:
        kind = None if kinds == {None} else read
    else:
        kind = unread if unread in kinds else np.result_type(*kinds)
    counts = {name: max(form.counts[name] for form in forms) for name in forms[0].counts}
    return Form(sizes, kind, max(form.nnz for form in forms), counts)


def arrays_in(A: SparseMatrix, form: Form) -> dict[str, np.ndarray]:
    """The arrays of A on the host, padded to that form."""
    arrays = _arrays(A)
    padded = {name: _padded(name, a, A, form) for name, a in arrays.items() if name != "pattern"}
    if form.pattern is not None:
        padded["pattern"] = _pattern(arrays.get("pattern"), A, form)
    return padded


def like(A: SparseMatrix, arrays: dict[str, Any], form: Form) -> SparseMatrix:
    """A with other arrays, for instance those of all shards."""
    fields: dict[str, Any] = dict.fromkeys(array_fields(type(A))) | arrays | dict(form.counts)
    return dataclasses.replace(A, **fields, nnz=form.nnz)


def general(A: SparseMatrix, forms: list[Form]) -> SparseMatrix:
    """A with the optional arrays that the matrix of another shard has."""
    with_arrays = getattr(A, "with_arrays", None)
    return A if with_arrays is None else with_arrays({name for form in forms for name in form.sizes})


def _arrays(A: SparseMatrix) -> dict[str, np.ndarray]:
    named = {name: getattr(A, name) for name in array_fields(type(A))}
    return {name: np.asarray(a) for name, a in named.items() if a is not None}


def _padded(name: str, a: np.ndarray, A: SparseMatrix, form: Form) -> np.ndarray:
    size = form.sizes[name]
    if name == "values":
        main = getattr(A, "n_main", A.n_stored)
        return np.concatenate([_filled(a[:main], size, 0), _filled(a[main:], form.sizes["tail"], 0)])
    if a.shape[0] == size:
        return a
    paddings = noted(type(A), Padding)
    if name not in paddings:
        raise TypeError(f"format {A.name!r} has no padding for its array {name!r}; its shards cannot have one size")
    return paddings[name].extend(a, size, A)


def _filled(a: np.ndarray, size: int, value: int) -> np.ndarray:
    out = np.full(size, value, a.dtype)
    out[: a.shape[0]] = a
    return out


def _pattern(pattern: np.ndarray | None, A: SparseMatrix, form: Form) -> np.ndarray:
    """Bits of all places, 0 for places that are added; or a list of holes, in which added ones lie beyond the end."""
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
