"""Pads matrices of one format to the same static fields and array shapes, so that one program serves all shards.

The pattern of a matrix decides the sizes of its arrays. The annotation of each field holds the rule that lengthens its
array (`formats/base.py`), so that a format needs no line here. Values and bits of `pattern` are zero in padding.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.sharding import Mesh

from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed.processes import everyones, of_each
from jaxsparse_fmt.formats.base import array_fields, noted

Form: TypeAlias = tuple[dict[str, int], dict[str, np.dtype]]  # sizes and static numbers, and the dtypes of arrays


def form_of(A: SparseMatrix) -> Form:
    """On what the matrices of all shards must agree, by the names of fields; `values` end with a tail."""
    arrays = _arrays(A)
    sizes = {name: a.shape[0] for name, a in arrays.items()} | {"values": A._n_main, "tail": A.n_stored - A._n_main}
    sizes |= {name: vars(A)[name] for name, function in noted(type(A)).items() if function is max} | {"nnz": A.nnz}
    return sizes, {name: a.dtype for name, a in arrays.items()}


def widest(forms: Sequence[Form]) -> Form:
    """The form to which the matrices of all these forms can be padded: the largest sizes, numbers and dtypes."""
    sizes = {
        name: max(of_one.get(name, 0) for of_one, _ in forms) for name in {n for of_one, _ in forms for n in of_one}
    }
    names = {name for _, dtypes in forms for name in dtypes}
    if any("pattern" in names - dtypes.keys() for _, dtypes in forms):  # without a pattern, any place may hold a zero
        sizes["reads_pattern"] = True
    return sizes, {name: np.result_type(*(d[name] for _, d in forms if name in d)) for name in names}


def alike(matrices: dict[int, SparseMatrix], mesh: Mesh) -> dict[int, SparseMatrix]:
    """The matrices of this process's shards, of one tree structure and equal shapes in all shards, in NumPy.

    All processes must call this.
    """

    def forms() -> list[Form]:
        return [*everyones(lambda: {k: form_of(A) for k, A in matrices.items()}, mesh).values()]

    names = {name for sizes, _ in forms() for name in sizes}
    first: Any = next(iter(matrices.values()))
    matrices = {k: A.with_arrays(names) for k, A in matrices.items()}
    sizes, dtypes = form = widest(forms())
    static = {name: n for name, n in sizes.items() if name not in dtypes and name != "tail"}
    fields = dict.fromkeys(array_fields(type(first))) | static
    return of_each(lambda k: dataclasses.replace(first, **fields | _padded(matrices[k], form)), matrices, mesh)


def _padded(A: SparseMatrix, form: Form) -> dict[str, np.ndarray]:
    """The arrays of A on the host, padded to that form."""
    sizes, dtypes = form
    arrays, paddings = _arrays(A), noted(type(A))
    if "pattern" in dtypes:
        present = np.ones(A.n_stored, np.uint8)
        if "pattern" in arrays:
            present = np.unpackbits(arrays["pattern"], count=A.n_stored, bitorder="little")
        arrays["pattern"] = np.packbits(_filled(present, sizes["values"]), bitorder="little")
    for name, a in arrays.items():
        if name == "values":
            arrays[name] = np.concatenate(
                [_filled(a[: A._n_main], sizes[name]), _filled(a[A._n_main :], sizes["tail"])]
            )
        elif name != "pattern" and a.shape[0] != sizes[name]:
            if name not in paddings:
                raise TypeError(f"format {A.name!r} has no padding for its array {name!r}: its shards differ in size")
            arrays[name] = paddings[name](a, sizes[name], A)
    return {name: a.astype(dtypes[name], copy=False) for name, a in arrays.items()}


def _arrays(A: SparseMatrix) -> dict[str, np.ndarray]:
    named = {name: vars(A)[name] for name in array_fields(type(A))}
    return {name: np.asarray(a) for name, a in named.items() if a is not None}


def _filled(a: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, a.dtype)
    out[: a.shape[0]] = a
    return out
