"""The load of devices that need not exist: entries and halo of a partition, counted without building a matrix.

`traffic.cg_step` turns a load into seconds.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.distributed import halo, row_partition
from jaxsparse_fmt.formats.order import permuted
from jaxsparse_fmt.models.traffic import Load


def loads(
    csr: Csr,
    parts: int,
    by: Any = "nnz",
    *,
    entry_bytes: float | None = None,
    value_bytes: int | None = None,
    per_host: int = 8,
) -> dict[str, Load]:
    """The entries that each device of a partition holds and the halo that it receives, for each kind of exchange.

    Without a halo the only kind is "none".

    Args:
      csr: canonical CSR on the host, square.
      parts: devices.
      by: as in `row_partition.partition`.
      entry_bytes: storage of an entry; None: a value and a 32-bit index.
      value_bytes: bytes of a vector element; None: those of the matrix's dtype.
      per_host: devices of a host.
    """
    cuts = row_partition.partition(csr, parts, by)
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
    hosts = [str(k // per_host) for k in range(parts)]
    counts = [{s: len(u) for s, u in halo.by_owner(of, starts).items()} for of in needs]
    between = halo.neighbours(dict(enumerate(zip(hosts, counts, strict=True))))
    if not len(between.count):
        return {"none": held}
    moved = halo.exchanges(between, int(np.diff(starts).max()))
    names = ("near", "far", "collectives", "among_all")
    return {kind: dataclasses.replace(held, **{n: getattr(of, n) for n in names}) for kind, of in moved.items()}
