"""Pads matrices of one format to the same static fields and array shapes, so that one program serves all shards.

The pattern of a matrix decides the sizes of its arrays. The annotation of each field holds the rule that lengthens its
array (`formats/base.py`), so that a format needs no line here. Values and bits of `pattern` are zero in padding.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed.processes import everyones, of_each
from jaxsparse_fmt.formats.base import array_fields, noted


@dataclasses.dataclass(frozen=True)
class Form:
    """The sizes, dtypes and counts on which the matrices of all shards must agree; `agreed` joins those of several.

    Attributes:
      sizes: the length of every array; for `values` the length before the tail, and that of the tail.
      dtypes: of every array.
      nnz: the number of entries.
      counts: each number that sets a size, by the name of its field.
    """

    sizes: dict[str, int]
    dtypes: dict[str, np.dtype]
    nnz: int
    counts: Mapping[str, int]

    @staticmethod
    def of(A: SparseMatrix) -> "Form":
        arrays = _arrays(A)
        sizes = {name: a.shape[0] for name, a in arrays.items() if name not in ("values", "pattern")}
        sizes |= {"values": A._n_main, "tail": A.n_stored - A._n_main}
        counts = {name: getattr(A, name) for name, function in noted(type(A)).items() if function is max}
        return Form(sizes, {name: a.dtype for name, a in arrays.items()}, A.nnz, counts)


def alike(matrices: dict[int, SparseMatrix], mesh: Mesh) -> dict[int, SparseMatrix]:
    """The matrices of this process's shards, of one tree structure and equal shapes in all shards, in NumPy.

    All processes must call this.
    """

    def forms() -> list[Form]:
        return [*everyones(lambda: {k: Form.of(A) for k, A in matrices.items()}, mesh).values()]

    names = {name for form in forms() for name in form.sizes}
    first: Any = next(iter(matrices.values()))
    matrices = {k: A.with_arrays(names) for k, A in matrices.items()}
    form = agreed(forms())
    fields = dict.fromkeys(array_fields(type(first))) | dict(form.counts)

    def padded(k: int) -> SparseMatrix:
        return dataclasses.replace(first, **fields | arrays_in(matrices[k], form), nnz=form.nnz)

    return of_each(padded, matrices, mesh)


def agreed(forms: list[Form]) -> Form:
    """The form to which the matrices of all these forms can be padded: the largest sizes, dtypes and counts."""
    names = {name for form in forms for name in form.sizes}
    sizes = {name: max(form.sizes.get(name, 0) for form in forms) for name in names}
    dtypes: dict[str, np.dtype] = {}
    for form in forms:
        for name, dtype in form.dtypes.items():
            dtypes[name] = np.promote_types(dtypes.get(name, dtype), dtype)
    counts = {name: max(form.counts[name] for form in forms) for name in forms[0].counts}
    if len({"pattern" in form.dtypes for form in forms}) > 1:  # without a pattern, any place may hold a zero
        counts["reads_pattern"] = True
    return Form(sizes, dtypes, max(form.nnz for form in forms), counts)


def arrays_in(A: SparseMatrix, form: Form) -> dict[str, np.ndarray]:
    """The arrays of A on the host, padded to that form."""
    arrays = _arrays(A)
    padded = {name: _padded(name, a, A, form) for name, a in arrays.items() if name != "pattern"}
    if "pattern" in form.dtypes:
        padded["pattern"] = _pattern(arrays.get("pattern"), A, form)
    return {name: a.astype(form.dtypes[name], copy=False) for name, a in padded.items()}


def _arrays(A: SparseMatrix) -> dict[str, np.ndarray]:
    named = {name: getattr(A, name) for name in array_fields(type(A))}
    return {name: np.asarray(a) for name, a in named.items() if a is not None}


def _padded(name: str, a: np.ndarray, A: SparseMatrix, form: Form) -> np.ndarray:
    size = form.sizes[name]
    if name == "values":
        return np.concatenate([_filled(a[: A._n_main], size), _filled(a[A._n_main :], form.sizes["tail"])])
    if a.shape[0] == size:
        return a
    paddings = noted(type(A))
    if name not in paddings:
        raise TypeError(f"format {A.name!r} has no padding for its array {name!r}; its shards cannot have one size")
    return paddings[name](a, size, A)


def _filled(a: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, a.dtype)
    out[: a.shape[0]] = a
    return out


def _pattern(pattern: np.ndarray | None, A: SparseMatrix, form: Form) -> np.ndarray:
    """Bits of all places, 0 for places that are added."""
    present = np.ones(A.n_stored, np.uint8)
    if pattern is not None:
        present = np.unpackbits(pattern, count=A.n_stored, bitorder="little")
    return np.packbits(_filled(present, form.sizes["values"]), bitorder="little")
