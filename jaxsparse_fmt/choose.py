"""format="auto": the formats ranked by the bytes that a product must move."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import scipy.sparse

from jaxsparse_fmt import traffic
from jaxsparse_fmt._types import Csr, floating_dtype, readable_bytes

# What a byte of a format costs against a byte of ELL's, by the tables of `benchmarks.spmv` in benchmarks/results.
# CPU: XLA walks ELL's columns as they lie, gathers HLL's slices and CSR's entries. GPU: CSR's threads share rows.
COST = {
    "cpu": {"ell": 1.0, "hll": 1.6, "csr": 8.0},
    "gpu": {"ell": 1.05, "hll": 1.0, "csr": 1.3},
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One format and layout for a matrix.

    Attributes:
      format: name in `FORMATS`.
      layout: its options for `from_scipy`.
      nbytes: bytes of storage that a product reads.
      moved: bytes that a product moves, vectors included and counted once.
      cost: `moved` weighted by how well the platform runs the format; the ranking's key.
      reason: why, in words.
    """

    format: str
    layout: dict[str, int]
    nbytes: int
    moved: int
    cost: float
    reason: str


def rank(S: Any, dtype: Any = None, platform: str | None = None) -> list[Choice]:
    """The formats that fit the matrix, best first.

    Args:
      S: scipy.sparse matrix or array.
      dtype: of the stored values; None takes S's.
      platform: "cpu" or "gpu"; None is where JAX runs by default.

    Returns:
      At least one `Choice`: CSR always fits.

    Raises:
      ValueError: another platform.
    """
    csr: Csr = scipy.sparse.csr_array(S)
    lengths = np.diff(csr.indptr)
    itemsize = np.dtype(floating_dtype(csr.dtype, "the matrix") if dtype is None else dtype).itemsize
    if platform not in (None, *COST):
        raise ValueError(
            f"platform must be one of {', '.join(COST)}, or None for the one that JAX runs on; got {platform!r}"
        )
    platform = platform or ("cpu" if jax.default_backend() == "cpu" else "gpu")

    def choice(name: str, layout: dict[str, int], n_stored: int, pointers: int) -> Choice:
        nbytes = n_stored * (itemsize + 4) + pointers * 4
        moved = traffic.bytes_moved(nbytes, csr.shape, itemsize)
        fill = csr.nnz / n_stored if n_stored else 1.0
        weight = COST[platform][name]
        reason = f"moves {readable_bytes(moved)} a product, at {weight:g} × the cost of a byte"
        if fill < 1:
            reason += f", {1 - fill:.0%} of the stored entries are padding"
        return Choice(name, layout, nbytes, moved, moved * weight, reason)

    n_rows = csr.shape[0]
    choices = [choice("csr", {}, csr.nnz, n_rows + 1), choice("ell", {}, traffic.ell_places(lengths), 0)]
    for rows in (1024,) if platform == "cpu" else (128, 32):
        slice_size = min(rows, max(n_rows, 1))
        pointers = -(-n_rows // slice_size) + 1
        n_stored = traffic.sliced_places(lengths, slice_size)
        choices.append(choice("hll", {"slice_size": slice_size}, n_stored, pointers))
    return sorted(choices, key=lambda c: c.cost)
