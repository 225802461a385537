"""The opponent: cuSPARSE's generic CSR product through CuPy's low-level binding, set up once like ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ALGORITHMS = {"ALG1": 2, "ALG2": 3}  # CUSPARSE_SPMV_CSR_ALG1, _ALG2
_DTYPES = {"float32": 0, "float64": 1}  # CUDA_R_32F, CUDA_R_64F


class CsrProduct:
    """y = A·x by one cuSPARSE algorithm, with int32 indices, descriptors, workspace and preprocessing made once."""

    def __init__(self, S: Any, algorithm: str):
        import cupy
        from cupy_backends.cuda.libs import cusparse

        self._cp, self._lib = cupy, cusparse
        self._handle = cupy.cuda.Device().cusparse_handle
        self._type = _DTYPES[S.dtype.name]
        self._algorithm = ALGORITHMS[algorithm]
        self._arrays = [cupy.asarray(a) for a in (S.indptr.astype(np.int32), S.indices.astype(np.int32), S.data)]
        rows, cols = S.shape
        self._matrix = cusparse.createCsr(
            rows, cols, S.nnz, *(a.data.ptr for a in self._arrays), 2, 2, 0, self._type
        )  # 2: CUSPARSE_INDEX_32I, 0: base zero
        self.y = cupy.full(rows, np.nan, S.dtype)
        self._y = cusparse.createDnVec(rows, self.y.data.ptr, self._type)
        self._one, self._zero = np.array(1, S.dtype), np.array(0, S.dtype)
        self._vectors: dict[int, Any] = {}
        self._workspace: Any = None

    def __call__(self, x: Any) -> Any:
        """x, y: CuPy arrays [n]."""
        if x.data.ptr not in self._vectors:
            self._vectors[x.data.ptr] = self._lib.createDnVec(x.size, x.data.ptr, self._type)
        arguments = (
            self._handle,
            0,  # no transpose
            self._one.ctypes.data,
            self._matrix,
            self._vectors[x.data.ptr],
            self._zero.ctypes.data,
            self._y,
            self._type,
            self._algorithm,
        )
        if self._workspace is None:
            size = self._lib.spMV_bufferSize(*arguments)
            self._workspace = self._cp.empty(max(size, 1), np.int8)
            if hasattr(self._lib, "spMV_preprocess"):
                self._lib.spMV_preprocess(*arguments, self._workspace.data.ptr)
        self._lib.spMV(*arguments, self._workspace.data.ptr)
        return self.y

    def to_device(self, x: np.ndarray) -> Any:
        return self._cp.asarray(x)

    def wait(self, _: Any) -> None:
        self._cp.cuda.Device().synchronize()


def products(S: Any) -> dict[str, Callable[[], CsrProduct]]:
    """Every algorithm by name, made when called; empty where CuPy is missing."""
    try:
        import cupy  # noqa: F401
    except ImportError:
        return {}
    return {f"cuSPARSE CSR {name}": (lambda name=name: CsrProduct(S, name)) for name in ALGORITHMS}
