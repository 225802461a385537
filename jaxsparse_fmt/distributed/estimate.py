"""The load of devices that need not exist: entries and halo of a partition, counted without building a matrix.

`traffic.cg_step` turns a load into seconds.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.distributed import halo, row_partition
from jaxsparse_fmt.formats.reordered import permuted
from jaxsparse_fmt.models.traffic import Load


def loads(
    csr: Csr,
    parts: int,
    by: Any = "nnz",
    reorder: Any = None,
    *,
    entry_bytes: float | None = None,
    value_bytes: int | None = None,
    per_host: int = 8,
) -> dict[str, Load]:
    """The entries that each device of a partition holds and the halo that it receives, for each kind of exchange.

    Args:
      csr: canonical CSR on the host, square.
      parts: devices.
      by, reorder: as in `row_partition.partition`.
      entry_bytes: storage of an entry; None: a value and a 32-bit index.
      value_bytes: bytes of a vector element; None: those of the matrix's dtype.
      per_host: devices of a host.
    """
    cuts = row_partition.partition(csr, parts, by, reorder)
    csr, _ = permuted(csr, cuts.perm)
    starts, boundary = cuts.starts, np.zeros(parts, np.int64)
    needs = []
    for k, (start, stop) in enumerate(itertools.pairwise(starts)):
        indices = csr.indices[csr.indptr[start] : csr.indptr[stop]]
        needs.append(halo.needed(indices, start, stop))
        outside = np.concatenate([[0], np.cumsum((indices < start) | (indices >= stop))])
        boundary[k] = np.count_nonzero(np.diff(outside[csr.indptr[start : stop + 1] - csr.indptr[start]]))
    value: int = csr.data.itemsize if value_bytes is None else value_bytes
    held = Load(
        parts,
        np.diff(starts),
        np.diff(csr.indptr[starts].astype(np.int64)),
        boundary=boundary,
        entry_bytes=value + 4 if entry_bytes is None else entry_bytes,
        value_bytes=value,
    )
    return with_halo(held, needs, starts, per_host)


def with_halo(held: Load, needs: list[np.ndarray], starts: np.ndarray, per_host: int) -> dict[str, Load]:
    """The load with its halo, for each kind of exchange; {"none": held} without a halo.

    Args:
      needs, starts: the halo of every device, and the pieces of x, as in `halo.plan`.
    """
    hosts = np.arange(held.parts) // per_host
    between = halo.neighbours(
        {k: (str(hosts[k]), {s: len(u) for s, u in halo.by_owner(of, starts).items()}) for k, of in enumerate(needs)}
    )
    if not len(between.count):
        return {"none": held}
    moved = halo.exchanges(between, int(np.diff(starts).max()))
    names = ("near", "far", "collectives", "among_all")
    return {kind: dataclasses.replace(held, **{n: getattr(of, n) for n in names}) for kind, of in moved.items()}


def load_of(A: Any) -> Load:
    """The load of the devices of a matrix `A`, sharded or not; all are taken to lie on one host."""
    vectors = max(A.dtype.itemsize, 4)  # values may be narrower
    if not hasattr(A, "shards"):
        return Load(1, A.shape[0], A.nnz, entry_bytes=A.nbytes_read / max(A.nnz, 1), value_bytes=vectors)
    held, how, parts = A.record.imbalance, A.shards.halo, A.parts
    boundary = A.shards.boundary
    boundary = 0 if boundary is None else (np.asarray(boundary) < A.range.over.size).sum(axis=1)
    others = how.width - how.width // parts * (how.kind == "all_to_all")
    entry = sum(block.nbytes_read for block in A.shards.blocks) / parts / max(int(held.nnz.max()), 1)
    return Load(parts, held.rows, held.nnz, others, 0, boundary, len(how.sizes), how.kind != "permute", entry, vectors)
