"""Builds a sharded matrix from a matrix on the host, or from rows that each process makes for its own devices."""

import glob
import math
import os
import socket
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jax.sharding import Mesh

from jaxsparse_fmt._arguments import whole_number
from jaxsparse_fmt._dtypes import index_dtype, requested_dtype
from jaxsparse_fmt._progress import staged
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.convert import checked
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed import halo, row_partition
from jaxsparse_fmt.distributed.basis import ShardedBasis, routes
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.delivery import needed
from jaxsparse_fmt.distributed.distribution import Distribution, placing_mesh
from jaxsparse_fmt.distributed.local import Shards
from jaxsparse_fmt.distributed.matrix import ShardedMatrix
from jaxsparse_fmt.distributed.processes import agree, alone, everyones, failing_together, of_each
from jaxsparse_fmt.distributed.row_partition import BuildRecord, Imbalance
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.order import permuted


@staged
def shard(
    S: Any,
    mesh: Mesh,
    axis: Any = None,
    format: str = "auto",
    mode: str = "overlap",
    *,
    by: Any = "nnz",
    reorder: Any = None,
    dtype: Any = None,
    backend: str = "auto",
    max_bytes: int | None = None,
    progress: bool = False,
    **layout: Any,
) -> ShardedMatrix:
    """A matrix with its rows spread over the devices of a mesh axis.

    Args:
      S: scipy.sparse matrix or array, or a matrix in a format of `FORMATS`.
      mesh: a `jax.sharding.Mesh`, whose other axes hold copies. Under `jax.set_mesh` its axes keep their types.
      axis: the name of the mesh axis, or a tuple of names, whose axes together count as one; None: the only axis of the
        mesh, or "rows".
      format: the format of each shard's own columns, a name in `FORMATS`; "auto" for the one of `choose.rank` in which
        the slowest shard takes the least time.
      mode: "overlap", "naive" or "vector"; see `ShardedMatrix`.
      by: "nnz" for equally many entries a device, "rows" for equally many rows, or integers [n], the device of
        each unknown, as from `boxes`.
      reorder: "rcm" or a permutation [n]: a new order of the unknowns, applied before the cut.
      dtype, backend, **layout: as in `from_scipy`.
      max_bytes: the largest padded storage of one shard's part to accept.
      progress: True shows a bar on standard error after a second.

    Returns:
      A `ShardedMatrix`; its `report()` shows the imbalance.

    Raises:
      ValueError: an unknown mesh axis, mode or other word, a mesh that covers several processes but not all, a shard
        that its device cannot hold, and as in `from_scipy`.
      TypeError: `mesh` is no mesh, S no matrix, or an unknown keyword.

    Examples:
      >>> D = js.shard(S, mesh)
      >>> js.cg(D, b, rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    with failing_together(mesh, "shard"):
        axis, parts, mesh = _axis_and_mesh(mesh, axis)

        def prepared() -> dict[str, Any]:
            csr, target = checked(S, dtype, backend, max_bytes)
            request = Request(mesh, mode, format, layout, target)
            starts, perm = row_partition.partition(csr, parts, by, reorder)
            return {"S": csr, "axis": axis, "request": request, "starts": starts, "perm": perm}

        given = agree(prepared, mesh)
        starts, perm = given["starts"], given["perm"]
        csr, entry = permuted(given["S"], perm)
        columns = starts if csr.shape[0] == csr.shape[1] else row_partition.equal(csr.shape[1], parts)
        return assemble(lambda k: csr[starts[k] : starts[k + 1]], starts, columns, axis, given["request"], perm, entry)


@staged
def shard_from_rows(
    rows_of: Callable[[int, int], Any],
    n: int,
    mesh: Mesh,
    axis: Any = None,
    format: str = "auto",
    mode: str = "overlap",
    *,
    starts: Any = None,
    dtype: Any = None,
    backend: str = "auto",
    max_bytes: int | None = None,
    progress: bool = False,
    **layout: Any,
) -> ShardedMatrix:
    """A square matrix that no host holds whole: each process makes and holds only the rows of its own devices.

    With several processes (`jax.distributed`) all of them must call this function in the same way; they exchange
    the unknowns of the halos and the sizes of the shards. On a mesh of its own devices a process exchanges nothing.

    Args:
      rows_of: rows_of(start, stop) gives the rows from start to stop, a scipy.sparse matrix [stop − start, n]. Called
        once for each device of this process, by several threads at a time.
      n: rows and columns.
      starts: [devices + 1], where the rows of each device begin, and n; None cuts equally.
      dtype: None takes that of rows_of(0, 0).
      The rest as in `shard`.

    Raises:
      ValueError: rows of another shape, `starts` that do not rise from 0 to n, and as in `shard`.
      TypeError: `mesh` is no mesh, `rows_of` returns no matrix, or n or `starts` are no integers.

    Examples:
      >>> D = js.shard_from_rows(lambda start, stop: S[start:stop], 16, mesh)
      >>> D.shape
      (16, 16)
    """
    with failing_together(mesh, "shard_from_rows"):
        axis, parts, mesh = _axis_and_mesh(mesh, axis)

        def prepared() -> dict[str, Any]:
            if not {"by", "reorder"}.isdisjoint(layout):
                cure = "number the unknowns part by part, and pass starts=, where the parts begin; js.boxes finds parts"
                raise TypeError(f"rows_of gives ranges of rows, so that shard_from_rows has no by= or reorder=: {cure}")
            size = whole_number("n", n)
            cuts = _cuts(starts, size, parts)
            stored = checked(rows_of(0, 0), None, backend)[1].dtype if dtype is None else requested_dtype(dtype)
            request = Request(mesh, mode, format, layout, Target(stored, backend, max_bytes))
            return {"n": size, "axis": axis, "request": request, "starts": cuts}

        given = agree(prepared, mesh)
        n, cuts, request = given["n"], given["starts"], given["request"]

        def rows(k: int) -> Csr:
            start, stop = cuts[k : k + 2].tolist()
            csr, _ = checked(rows_of(start, stop), request.target.dtype, backend)
            if csr.shape != (stop - start, n):
                raise ValueError(f"rows_of({start}, {stop}) must give a matrix {(stop - start, n)}; got {csr.shape}")
            return csr

        return assemble(rows, cuts, cuts, axis, request)


def _cuts(starts: Any, n: int, parts: int) -> np.ndarray:
    """Where the rows of each part begin, and n."""
    cuts = row_partition.equal(n, parts) if starts is None else np.asarray(starts)
    if not np.issubdtype(cuts.dtype, np.integer):
        raise TypeError(f"starts must be integers, the numbers of rows; got {starts!r}")
    cuts = cuts.astype(np.int64)
    if cuts.shape != (parts + 1,) or cuts[0] != 0 or cuts[-1] != n or np.any(np.diff(cuts) < 0):
        raise ValueError(f"starts must be {parts + 1} numbers that rise from 0 to n = {n}; got {starts!r}")
    return cuts


def assemble(
    rows_of: Callable[[int], Csr],
    starts: np.ndarray,
    columns: np.ndarray,
    axis: Any,
    request: Request,
    unknown: np.ndarray | None = None,
    entry: np.ndarray | None = None,
) -> ShardedMatrix:
    """The sharded matrix from the rows of this process's devices, in canonical CSR with all columns.

    Args:
      rows_of: rows_of(k) gives the rows of part k.
      starts, columns: [parts + 1], where the rows and the columns of each part begin.
      unknown, entry: [n] and [nnz] the user's number of each unknown, and of each entry; None: the user's order.
    """
    mesh = request.mesh
    over_rows, over_columns = (Distribution.of(mesh, axis, np.diff(cuts)) for cuts in (starts, columns))
    rows = of_each(rows_of, over_rows.mine, mesh)
    nnz = {k: block.nnz for k, block in rows.items()}
    diagonal = {k: _on_diagonal(block, int(starts[k])) for k, block in rows.items()}
    needs = of_each(lambda k: needed(rows[k].indices, *columns[k : k + 2].tolist()), rows, mesh)
    plan = halo.plan(needs, over_columns, max(request.target.dtype.itemsize, 4))  # values may be narrower than vectors
    cut = of_each(lambda k: _cut(rows.pop(k), k, plan, request.mode), over_rows.mine, mesh)
    sizes = everyones(lambda: {k: (nnz[k], len(cut[k].boundary), diagonal[k]) for k in cut}, mesh)
    counts, boundary_rows, diagonals = np.array([*sizes.values()]).T
    n_rows = over_rows.size, int(boundary_rows.max()) if request.mode == "overlap" else over_rows.size
    parts = zip(n_rows, zip(*(rows.blocks for rows in cut.values()), strict=True), strict=False)
    made = [in_one_format(dict(zip(cut, blocks, strict=True)), height, request) for height, blocks in parts]
    over_entries = Distribution.of(mesh, axis, counts)
    for over in (over_rows, over_columns, over_entries):
        building.check_addressable(int(over.starts[-1]) + over.places)  # empty places have numbers of their own
    (of_columns, key), (of_entries, entries_key) = routes(over_columns, unknown), routes(over_entries, entry)
    blocks = {k: tuple(matrices[k] for matrices, _ in made) for k in cut}
    index, beyond = index_dtype(int(counts.max()) + 1), over_rows.size + np.arange(n_rows[1])

    def arrays(k: int) -> tuple[Any, ...]:
        rows = cut[k]
        boundary: Any = None
        entry_index: Any = None
        if plan.width:
            after = blocks[k][-1].nnz - len(rows.entry_index)
            entry_index = np.pad(rows.entry_index.astype(index), (0, after), constant_values=np.iinfo(index).max)
        if len(made) == 2 and request.mode == "overlap":
            boundary = np.concatenate([rows.boundary, beyond[: n_rows[1] - len(rows.boundary)]])
            boundary = boundary.astype(index_dtype(over_rows.size + n_rows[1]))
        return Shards(blocks[k], boundary, entry_index, plan.how[k]), of_columns.get(k), of_entries.get(k)

    held = {k: arrays(k) for k in cut}
    everyones(lambda: _check_fits(held, mesh), mesh)  # the last agreement: no process may fail alone after it
    shards, route, entries_route = over_rows.spread(held)
    domain = ShardedBasis(route=route, key=key, over=over_columns)
    return ShardedMatrix(
        shards,
        domain,
        domain if over_rows == over_columns else ShardedBasis(over=over_rows),
        ShardedBasis(route=entries_route, key=entries_key, over=over_entries),
        int(counts.sum()),
        False,
        over_rows == over_columns and int(diagonals.sum()) == int(starts[-1]),
        BuildRecord(
            Imbalance(np.diff(starts), counts, plan.halo, plan.senders),
            plan.reason,
            "; the halo ".join(why for _, why in made),
        ),
    )


def _axis_and_mesh(mesh: Any, axis: Any) -> tuple[Any, int, Mesh]:
    """The axis, the number of devices along it, and the mesh for the arrays."""
    if not isinstance(mesh, Mesh):
        raise TypeError(
            "mesh must be a jax.sharding.Mesh, such as Mesh(jax.devices(), ('rows',)), or jax.sharding.get_mesh() "
            f"inside jax.set_mesh; got {mesh!r}"
        )
    if axis is None:
        axis = mesh.axis_names[0] if len(mesh.axis_names) == 1 else "rows"
    axes = mesh_axes.names(axis)
    # A collective over several axes counts devices in the order of the mesh.
    if not axes or axes != tuple(name for name in mesh.axis_names if name in axes):
        known = ", ".join(map(repr, mesh.axis_names)) or "none"
        raise ValueError(
            f"axis must name an axis of the mesh, or several as a tuple in the mesh's order: {known}; got {axis!r}"
        )
    if not alone(mesh) or jax.process_count() == 1:  # or ValueError, before any process waits
        _warn_of_idle_gpus(mesh)
    return axis, math.prod(mesh.shape[axis] for axis in axes), placing_mesh(mesh)


def _warn_of_idle_gpus(mesh: Mesh) -> None:
    """Warns if the host has GPUs that no process took."""
    host, gpus = socket.gethostname(), _gpus_of_host(mesh)
    if gpus is None:
        return
    taken_by = everyones(lambda: {jax.process_index(): (host, jax.local_device_count())}, mesh)
    taken = sum(count for name, count in taken_by.values() if name == host)
    if taken < gpus:
        warnings.warn(
            f"{host} has {gpus} GPUs, of which the processes there have taken {taken}: JAX gives one to each process "
            f"that Slurm or Open MPI starts; start one for each GPU, as in srun --ntasks-per-node={gpus}, or pass "
            "local_device_ids to jax.distributed.initialize",
            RuntimeWarning,
            stacklevel=5,
        )


def _gpus_of_host(mesh: Mesh) -> int | None:
    """The number of GPUs that this process may see; None: the mesh has none."""
    if mesh.devices.flat[0].platform != "gpu":
        return None
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(glob.glob("/proc/driver/nvidia/gpus/*")) if chosen is None else chosen.count(",") + bool(chosen)


# ---------------------------------------------------------------------------------- cutting the rows of a device


class Cut(NamedTuple):
    """The rows of a device.

    Attributes:
      blocks: the local and the halo block, or one for all columns; a column is a place in the device's piece of x, or
        in its halo buffer.
      boundary: the rows of the halo block, if these are not all.
      entry_index: of each entry of the last block.
    """

    blocks: list[Csr]
    boundary: np.ndarray
    entry_index: np.ndarray


def _cut(block: Csr, k: int, plan: halo.Halo, mode: str) -> Cut:
    n_own, width = plan.over.size, plan.width
    col, number = plan.places(k, block.indices), np.arange(block.nnz)
    is_local = col < n_own
    if mode == "vector" or not width:
        whole, number = _sorted(block, col, number, block.indptr, n_own + width)
        return Cut([whole], np.zeros(0, np.int64), number)
    before = np.concatenate([[0], np.cumsum(is_local)])[block.indptr]
    local = scipy.sparse.csr_array((block.data[is_local], col[is_local], before), shape=(block.shape[0], n_own))
    rest = block.indptr - before
    boundary = np.flatnonzero(np.diff(rest))
    if mode == "overlap":
        rest = np.append(rest[:-1][boundary], rest[-1])
    beyond, number = _sorted(block, col[~is_local] - n_own, number[~is_local], rest, width)
    return Cut([local, beyond], boundary, number)


def _on_diagonal(block: Csr, start: int) -> int:
    """The number of entries on the diagonal, of rows from `start` on."""
    row = np.repeat(np.arange(start, start + block.shape[0]), np.diff(block.indptr))
    return int(np.count_nonzero(block.indices == row))


def _sorted(block: Csr, col: np.ndarray, number: np.ndarray, ptr: np.ndarray, n_cols: int) -> tuple[Csr, np.ndarray]:
    """The entries with these numbers, in other rows and columns and canonical; and their numbers in that order."""
    order = scipy.sparse.csr_array((number, col, ptr), shape=(len(ptr) - 1, n_cols)).sorted_indices()
    return scipy.sparse.csr_array((block.data[order.data], order.indices, order.indptr), shape=order.shape), order.data


def _check_fits(held: dict[int, Any], mesh: Mesh) -> dict[int, Any]:
    nbytes = sum(a.nbytes for a in jax.tree.leaves(next(iter(held.values()))))  # the same for all
    stats = [device.memory_stats() or {} for device in mesh.local_devices]
    free = min((s["bytes_limit"] - s.get("bytes_in_use", 0) for s in stats if "bytes_limit" in s), default=nbytes)
    if nbytes > free:
        raise ValueError(
            f"a shard takes {readable_bytes(nbytes)}, more than the {readable_bytes(free)} that are free on its "
            "device; use more devices, a narrower dtype, or a format with less padding"
        )
    return {}
