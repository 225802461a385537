"""The numbers that a user gives to unknowns and entries, where every shard has an order of its own.

A process knows the user's numbers of its own unknowns. It looks others up in a directory: the user's order is cut into
blocks, and shard k keeps the entries of block k.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse
from jax.sharding import Mesh

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.distributed import row_partition
from jaxsparse_fmt.distributed.delivery import Messages, delivered, to_owners
from jaxsparse_fmt.distributed.pieces import Pieces, fetched, of_each
from jaxsparse_fmt.distributed.processes import everyones

Numbers = dict[int, np.ndarray]  # by shard


def users_entries(C: Pieces, rows: Numbers, columns: Numbers, starts: np.ndarray, mesh: Mesh) -> Numbers:
    """The number of each entry in canonical order of the user's rows, then columns.

    Args:
      rows, columns: the user's number of each row and column of a shard.
      starts: [parts + 1], where the columns of each shard begin.
    """
    parts = len(starts) - 1
    n_rows = sum(everyones(lambda: {k: len(of) for k, of in rows.items()}, mesh).values())
    blocks, lengths = row_partition.equal(n_rows, parts), {k: np.diff(S.indptr) for k, S in C.items()}
    sizes = _in_blocks(lengths, rows, blocks, mesh)
    total = np.cumsum([*everyones(lambda: {k: int(of.sum()) for k, of in sizes.items()}, mesh).values()])
    first = {k: total[k] - np.cumsum(of[::-1])[::-1] for k, of in sizes.items()}
    begins = _looked_up(first, rows, blocks, mesh)
    names = _looked_up(columns, {k: S.indices for k, S in C.items()}, starts, mesh)

    def numbered(k: int) -> np.ndarray:
        by_name = _with_columns(C[k], names[k])
        out = np.empty(len(by_name.data), np.int64)
        out[by_name.data] = np.repeat(begins[k] - by_name.indptr[:-1], lengths[k]) + np.arange(len(out))
        return out

    return of_each(numbered, C, mesh)


def by_part(
    rows_of: Callable[[int, int], Csr],
    part_of: Callable[[int, int], np.ndarray],
    blocks: np.ndarray,
    mine: list[int],
    mesh: Mesh,
) -> tuple[Pieces, Numbers, np.ndarray]:
    """The rows of each shard, numbered shard by shard; the user's numbers of its unknowns, rising; and its first row.

    The process of shard k makes the rows of block k, then sends each row to its shard.

    Args:
      rows_of, part_of: the rows, and the shard of each unknown, from one number to another.
      blocks: [parts + 1], where the blocks of the user's order begin.
      mine: the shards of this process.
    """

    def asked() -> Messages:
        ends = {k: (int(blocks[k]), int(blocks[k + 1])) for k in mine}
        part = {k: row_partition.checked(part_of(a, b), b - a, len(blocks) - 1) for k, (a, b) in ends.items()}
        return {k: to_owners(part[k], np.arange(a, b)) for k, (a, b) in ends.items()}

    none = np.zeros(0, np.int64)
    unknowns = {k: np.concatenate([none, *(u for (u,) in of.values())]) for k, of in delivered(asked, mesh).items()}
    counts = everyones(lambda: {k: len(of) for k, of in unknowns.items()}, mesh)
    starts = np.cumsum([0, *counts.values()])
    made = of_each(lambda k: rows_of(int(blocks[k]), int(blocks[k + 1])), mine, mesh)
    rows = fetched(unknowns, made, blocks, mesh)
    del made
    places = _in_blocks({k: starts[k] + np.arange(len(of)) for k, of in unknowns.items()}, unknowns, blocks, mesh)
    names = _looked_up(places, {k: S.indices for k, S in rows.items()}, blocks, mesh)

    def renumbered(k: int) -> Csr:
        by_name = _with_columns(rows[k], names[k])
        out = scipy.sparse.csr_array((rows[k].data[by_name.data], by_name.indices, by_name.indptr), by_name.shape)
        out.has_canonical_format = True
        return out

    return of_each(renumbered, mine, mesh), unknowns, starts


def _in_blocks(values: Numbers, unknowns: Numbers, blocks: np.ndarray, mesh: Mesh) -> Numbers:
    """The value of each unknown of a block of the user's order, from the shards that have these unknowns."""

    def sent() -> Messages:
        owners = {k: np.searchsorted(blocks, of, side="right") - 1 for k, of in unknowns.items()}
        return {k: to_owners(owners[k], of, values[k]) for k, of in unknowns.items()}

    out = {}
    for k, received in delivered(sent, mesh).items():
        out[k] = np.zeros(blocks[k + 1] - blocks[k], np.int64)
        for unknown, value in received.values():
            out[k][unknown - blocks[k]] = value
    return out


def _looked_up(values: Numbers, numbers: Numbers, starts: np.ndarray, mesh: Mesh) -> Numbers:
    """The value at each number, from the shard where this number lies."""
    wanted = {k: np.unique(of) for k, of in numbers.items()}
    found = fetched(wanted, values, starts, mesh)
    return {k: found[k][np.searchsorted(wanted[k], of)] for k, of in numbers.items()}


def _with_columns(S: Csr, columns: np.ndarray) -> Csr:
    """The index of each entry, sorted in each row by these columns instead of S's."""
    out = scipy.sparse.csr_array((np.arange(S.nnz), columns, S.indptr), shape=S.shape)
    out.sort_indices()
    return out
