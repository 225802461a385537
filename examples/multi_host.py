"""cg over several hosts: the same program on each, and no host ever holds the whole matrix.

On every host, with the address of the first one and a free port of its:

    python examples/multi_host.py --coordinator 10.0.0.1:12345 --processes 2 --process 0     on the first
    python examples/multi_host.py --coordinator 10.0.0.1:12345 --processes 2 --process 1     on the second

Slurm and Open MPI tell JAX all three: `srun python examples/multi_host.py --launched`. To try it on one machine, start
both in two shells with 127.0.0.1 for the address. Without these options one process runs alone.
With --saved each process reads its rows of a matrix that `jsf.save_rows` wrote, from a folder that all processes see.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers

N = 60  # points an axis


def poisson_rows(n: int, start: int, stop: int) -> sp.csr_array:
    """Rows of the 7-point Laplacian on n³ points, `gallery.poisson(n)`, without making the others."""
    row = np.arange(start, stop)
    z, y, x = np.unravel_index(row, (n, n, n))
    inside = np.stack([z > 0, y > 0, x > 0, row >= 0, x < n - 1, y < n - 1, z < n - 1], axis=1)
    col = row[:, None] + np.array([-n * n, -n, -1, 0, 1, n, n * n])
    data = np.broadcast_to([-1.0, -1, -1, 6, -1, -1, -1], col.shape)
    indptr = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    return sp.csr_array((data[inside], col[inside], indptr), shape=(stop - start, n**3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", metavar="ADDRESS:PORT")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    parser.add_argument("--launched", action="store_true", help="by srun or mpirun")
    parser.add_argument("--saved", metavar="FOLDER", help="a symmetric positive definite matrix, of jsf.save_rows")
    parser.add_argument("--n", type=int, default=N)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if args.coordinator or args.launched:
        jax.distributed.initialize(args.coordinator, args.processes, args.process)

    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    saved, made = jsf.saved_rows(args.saved) if args.saved else None, []
    n = saved.shape[0] if saved else args.n**3

    def rows_of(start: int, stop: int) -> sp.csr_array:
        made.append(stop - start)
        return saved(start, stop) if saved else poisson_rows(args.n, start, stop)

    A = jsf.shard_from_rows(rows_of, n, mesh, starts=saved and saved.starts(jax.device_count()))
    b = A @ jnp.ones(n)
    sol = solvers.cg(A, b, rtol=1e-10)
    sol.raise_for_status()
    error = float(jnp.max(jnp.abs(sol.x - 1)))
    print(f"process {jax.process_index()} of {jax.process_count()} made {sum(made)} of {n} rows")
    print(f"{int(sol.iterations)} iterations on {jax.device_count()} devices, error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
