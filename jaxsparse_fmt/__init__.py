"""Sparse-matrix storage formats for JAX: `A @ x` inside jit, grad, vmap and shard_map, at memory speed on a GPU.

    import jaxsparse as js
    A = js.from_scipy(S)      # or js.read_mtx("matrix.mtx.gz")
    y = A @ x

The solvers are in the package `solvers`.
"""

import os
from typing import TYPE_CHECKING

if os.name != "posix":
    raise ImportError("jaxsparse runs on Linux and macOS; on Windows install it in WSL")

from jaxsparse_fmt import choose
from jaxsparse_fmt._caches import CacheInfo, cache_info, clear_caches
from jaxsparse_fmt._late import import_late
from jaxsparse_fmt._pytrees import exportable
from jaxsparse_fmt._version import __version__ as __version__
from jaxsparse_fmt.algebra import plan
from jaxsparse_fmt.algebra.assembly import assembly
from jaxsparse_fmt.algebra.operations import (
    block,
    block_diag,
    diags,
    eye,
    hstack,
    kron,
    kronsum,
    prune,
    tril,
    triu,
    vstack,
)
from jaxsparse_fmt.choose import Choice
from jaxsparse_fmt.convert import from_coo, from_dense, from_scipy, order, random, read_mtx
from jaxsparse_fmt.core.basis import Basis
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.scipy_names import spmv
from jaxsparse_fmt.core.transposed import Transposed
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
    SELL,
)
from jaxsparse_fmt.formats.paired import Paired
from jaxsparse_fmt.kernels.backends.selection import BACKENDS, use_backend

if TYPE_CHECKING:
    from jaxsparse_fmt import gallery, io, plot
    from jaxsparse_fmt.algebra.attention import row_softmax, sddmm
    from jaxsparse_fmt.algebra.constrained import constrain
    from jaxsparse_fmt.algebra.norms import norm
    from jaxsparse_fmt.distributed import ShardedMatrix, boxes, shard, shard_from_rows
    from jaxsparse_fmt.interchange import from_bcoo, from_bcsr, from_csc, from_csr, from_cupy, to_bcoo, to_bcsr, to_cupy
    from jaxsparse_fmt.saved import load, save

__all__ = ["BIELL", "BIJAD", "BSR", "COO", "CSC", "CSR", "CSR5", "DIA", "ELL", "ELLR", "ELLRT", "FORMATS", "HDIA"]
__all__ += ["HLL", "HYB", "JDS", "PELLR", "PJDS", "SELL"]
__all__ += ["Basis", "Choice", "Paired", "SparseMatrix", "Transposed", "spmv"]
__all__ += ["from_bcoo", "from_bcsr", "from_coo", "from_csc", "from_csr", "from_cupy", "from_dense", "from_scipy"]
__all__ += ["load", "order", "read_mtx"]
__all__ += ["assembly", "block", "block_diag", "constrain", "diags", "eye", "hstack", "kron", "kronsum", "norm", "plan"]
__all__ += ["prune", "random", "row_softmax", "sddmm", "tril", "triu", "vstack"]
__all__ += ["to_bcoo", "to_bcsr", "to_cupy"]
__all__ += ["CacheInfo", "cache_info", "clear_caches"]
__all__ += ["BACKENDS", "choose", "gallery", "io", "plot", "save", "use_backend"]
__all__ += ["ShardedMatrix", "boxes", "shard", "shard_from_rows"]

for _cls in (*FORMATS.values(), Basis, Paired, Transposed):
    exportable(_cls)

import_late(
    __name__,
    {
        "algebra.attention": "row_softmax sddmm",
        "algebra.constrained": "constrain",
        "algebra.norms": "norm",
        "distributed": "ShardedMatrix boxes shard shard_from_rows",
        "gallery": "gallery",
        "interchange": "from_bcoo from_bcsr from_csc from_csr from_cupy to_bcoo to_bcsr to_cupy",
        "io": "io",
        "plot": "plot",
        "saved": "load save",
    },
)
