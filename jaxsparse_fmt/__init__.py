"""Sparse-matrix storage formats for JAX: `A @ x` inside jit, grad, vmap and shard_map, at memory speed on a GPU.

    import jaxsparse_fmt as jsf
    A = jsf.from_scipy(S)      # or jsf.read_mtx("matrix.mtx.gz")
    y = A @ x

The solvers are in the package `solvers`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxsparse_fmt import choose, gallery, io, traffic
from jaxsparse_fmt.basis import Basis
from jaxsparse_fmt.choose import Choice
from jaxsparse_fmt.convert import from_coo, from_dense, from_scipy, read_mtx
from jaxsparse_fmt.formats import (
    BIELL,
    BIJAD,
    BSR,
    COO,
    CSC,
    CSR,
    CSR5,
    DIA,
    ELL,
    ELLR,
    ELLRT,
    FORMATS,
    HDIA,
    HLL,
    HYB,
    JDS,
    PELLR,
    PJDS,
    SDIA,
    SELL,
)
from jaxsparse_fmt.kernels.dialect import BACKENDS, use_backend
from jaxsparse_fmt.matrix import SparseMatrix, spmv
from jaxsparse_fmt.paired import Paired
from jaxsparse_fmt.transposed import Transposed

if TYPE_CHECKING:
    from jaxsparse_fmt.partition import ShardedMatrix, save_rows, saved_rows, shard, shard_from_rows

__version__ = "0.1.0"

__all__ = [
    "BACKENDS",
    "BIELL",
    "BIJAD",
    "BSR",
    "COO",
    "CSC",
    "CSR",
    "CSR5",
    "DIA",
    "ELL",
    "ELLR",
    "ELLRT",
    "FORMATS",
    "HDIA",
    "HLL",
    "HYB",
    "JDS",
    "PELLR",
    "PJDS",
    "SDIA",
    "SELL",
    "Basis",
    "Choice",
    "Paired",
    "ShardedMatrix",
    "SparseMatrix",
    "Transposed",
    "choose",
    "from_coo",
    "from_dense",
    "from_scipy",
    "gallery",
    "io",
    "read_mtx",
    "save_rows",
    "saved_rows",
    "shard",
    "shard_from_rows",
    "spmv",
    "traffic",
    "use_backend",
]

# Imported where they are used: one device does not pay for many.
LAZY = ("ShardedMatrix", "save_rows", "saved_rows", "shard", "shard_from_rows")


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module("jaxsparse_fmt.partition"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
