"""Poisson problem over several hosts: the same program on each, and no host ever holds the whole matrix.

On every host, with the address of the first one and a free port of its:

    python examples/multi_host.py --coordinator 10.0.0.1:12345 --processes 2 --process 0     on the first
    python examples/multi_host.py --coordinator 10.0.0.1:12345 --processes 2 --process 1     on the second

Slurm and Open MPI tell JAX all three: `srun python examples/multi_host.py --launched`. To try it on one machine, start
both in two shells with 127.0.0.1 for the address. Without these options one process runs alone.
With --saved each process reads its rows of a matrix from a folder that all processes see: files of
`scipy.sparse.save_npz`, each a block of the next rows, named by its first row, such as 000065536.npz.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxsparse as js

N = 60  # points an axis


def poisson_rows(n: int, start: int, stop: int) -> sp.csr_array:
    """Rows of the 7-point Laplacian on n³ points, without the others."""
    row = np.arange(start, stop)
    z, y, x = np.unravel_index(row, (n, n, n))
    inside = np.stack(
        [z > 0, y > 0, x > 0, row >= 0, x < n - 1, y < n - 1, z < n - 1], axis=1
    )
    col = row[:, None] + np.array([-n * n, -n, -1, 0, 1, n, n * n])
    data = np.broadcast_to([-1.0, -1, -1, 6, -1, -1, -1], col.shape)
    indptr = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    return sp.csr_array(
        (data[inside], col[inside], indptr), shape=(stop - start, n**3)
    )


def saved_rows(folder: Path, start: int, stop: int) -> sp.csr_array:
    """Rows start to stop of the blocks in a folder; no other block is read."""
    files = sorted(folder.glob("*.npz"), key=lambda file: int(file.stem))
    first = np.array([int(file.stem) for file in files])
    begin = np.searchsorted(first, start, "right") - 1
    used = range(begin, max(np.searchsorted(first, stop), begin + 1))
    rows = sp.vstack([sp.load_npz(files[k]) for k in used], format="csr")
    return rows[start - first[used[0]] : stop - first[used[0]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--coordinator", metavar="ADDRESS:PORT")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    parser.add_argument(
        "--launched", action="store_true", help="by srun or mpirun"
    )
    parser.add_argument(
        "--saved",
        type=Path,
        metavar="FOLDER",
        help="a symmetric positive definite matrix",
    )
    parser.add_argument("--n", type=int, default=N)
    parser.add_argument(
        "--picture", metavar="PICTURE.png", help="drawn by the first process"
    )
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if args.coordinator or args.launched:
        jax.distributed.initialize(
            args.coordinator, args.processes, args.process
        )

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    made = []
    n = saved_rows(args.saved, 0, 0).shape[1] if args.saved else args.n**3

    def rows_of(start: int, stop: int) -> sp.csr_array:
        made.append(stop - start)
        return (
            saved_rows(args.saved, start, stop)
            if args.saved
            else poisson_rows(args.n, start, stop)
        )

    A = js.shard_from_rows(rows_of, n, mesh).padded  # the devices divide it
    size = A.shape[0]
    spread = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec("rows")
    )

    def ones(part: Any) -> np.ndarray:  # of which a process makes its part
        return np.where(np.arange(*part[0].indices(size)) < n, 1.0, 0.0)

    x = jax.make_array_from_callback((size,), spread, ones)
    sol = js.cg(A, A @ x, rtol=1e-10, history=True)
    sol.raise_for_status()
    error = float(jnp.max(jnp.abs(sol.x - x)))
    print(
        f"process {jax.process_index()} of {jax.process_count()} made "
        f"{sum(made)} of {n} rows"
    )
    print(
        f"{int(sol.iterations)} iterations on {jax.device_count()} devices, "
        f"error {error:.1e}",
        flush=True,
    )

    if args.picture and jax.process_index() == 0:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
        js.plot.convergence(
            {f"{n:,} unknowns, devices: {jax.device_count()}": sol},
            ax,
            rtol=1e-10,
        )
        figure.savefig(args.picture)


if __name__ == "__main__":
    main()
