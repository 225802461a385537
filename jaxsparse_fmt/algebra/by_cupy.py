"""The product of two matrices by CuPy, that is cuSPARSE, if it is installed: several times as fast as sorting.

CuPy and JAX read each other's arrays without copies. The pattern is that of `on_device.listed`, and the values have
the same bits in every call (six of each product on an H100, CuPy 14).
"""

import functools
import importlib
from typing import Any

import jax.numpy as jnp

from jaxsparse_fmt._types import CsrArrays

DTYPES = ("float32", "float64", "complex64", "complex128")


def product(a: CsrArrays, b: CsrArrays) -> CsrArrays | None:
    """a·b, of one dtype; None without CuPy, a GPU, a dtype of cuSPARSE's, or memory that JAX has not taken."""
    arrays = [(A.data, A.indices, A.indptr) for A in (a, b)]
    there, *others = {d for parts in arrays for part in parts for d in part.devices()}
    knows = there.platform == "gpu" and a.data.dtype.name in DTYPES and not others and a.nnz > 0 and b.nnz > 0
    if not knows or (modules := _modules()) is None:
        return None
    cupy, sparse, cusparse = modules
    with cupy.cuda.Device(there.local_hardware_id):
        try:
            left, right = (
                sparse.csr_matrix(tuple(map(cupy.from_dlpack, parts)), shape=A.shape)
                for parts, A in zip(arrays, (a, b), strict=True)
            )
            left.has_canonical_format = right.has_canonical_format = True
            C = left @ right
            C.sum_duplicates()  # sorts the rows, if need be
        except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError, cusparse.CuSparseError):
            return None
        data, indices, indptr = (jnp.from_dlpack(part) for part in (C.data, C.indices, C.indptr))
    return CsrArrays(data, indices, indptr, (a.shape[0], b.shape[1]))


@functools.cache
def _modules() -> Any:
    """CuPy's modules; None if it is not installed, or does not find CUDA."""
    try:
        return [*map(importlib.import_module, ("cupy", "cupyx.scipy.sparse", "cupy_backends.cuda.libs.cusparse"))]
    except ImportError:
        return None
