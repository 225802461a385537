"""The product of two matrices by CuPy, that is cuSPARSE, where it is installed: several times faster than sorting.

CuPy and JAX read each other's arrays where they lie. The pattern is that of `on_device.multiplied`.
"""

import functools
import importlib
import importlib.util

import jax.numpy as jnp

from jaxsparse_fmt._types import CsrArrays


def product(a: CsrArrays, b: CsrArrays) -> CsrArrays | None:
    """a·b, of one dtype. None: without CuPy or a GPU that it knows, or where its memory beside JAX's does not suffice."""
    there = {d for A in (a, b) for part in (A.data, A.indices, A.indptr) for d in part.devices()}
    known = a.data.dtype.name in ("float32", "float64", "complex64", "complex128")
    if (
        not known
        or len(there) != 1
        or next(iter(there)).platform != "gpu"
        or min(a.nnz, b.nnz) == 0
        or not _installed()
    ):
        return None
    cupy, sparse = map(importlib.import_module, ("cupy", "cupyx.scipy.sparse"))
    failures = (
        cupy.cuda.memory.OutOfMemoryError,
        importlib.import_module("cupy_backends.cuda.libs.cusparse").CuSparseError,
    )
    with cupy.cuda.Device(next(iter(there)).local_hardware_id):
        try:
            left, right = (
                sparse.csr_matrix(tuple(map(cupy.from_dlpack, (A.data, A.indices, A.indptr))), shape=A.shape)
                for A in (a, b)
            )
            left.has_canonical_format = right.has_canonical_format = True
            C = left @ right
            C.sum_duplicates()  # sorts the rows, if need be
        except failures:
            return None
        arrays = (jnp.from_dlpack(part) for part in (C.data, C.indices, C.indptr))
        return CsrArrays(*arrays, shape=tuple(map(int, C.shape)))


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("cupy") is not None
