"""Every method on a matrix over several devices: solves, gradients by b and by entries, refinement, preconditioners.

    python -m tests.distributed.reach 0 12345 2 &           one of two processes, which meet at a port of this machine
    python -m tests.distributed.reach 1 12345 2

Prints for each row the error, relative to what dense algebra gives, or the words by which it was refused. A row that
takes longer than LIMIT seconds ends the process with its stack. REACH_ROWS, a regular expression, chooses rows.
"""

import faulthandler
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

LIMIT = 120


def rows() -> dict[str, Callable[[], float]]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import scipy.sparse as sp
    from jax.experimental import multihost_utils

    import jaxsparse_fmt as jsf
    import solvers
    from solvers import precond

    S = jsf.gallery.poisson(6).tocsr()
    n, b = S.shape[0], np.cos(np.arange(S.shape[0]))
    x = np.linalg.solve(S.toarray(), b)
    y = np.linalg.solve(S.toarray().T, 2 * x)  # the gradient of ‖x‖² by b
    row, col = S.tocoo().coords
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    A = jsf.shard(S, mesh, by="rows")
    inverse = jsf.shard(sp.csr_array(np.linalg.inv(S.toarray())), mesh, by="rows", format="csr")
    W = np.repeat(np.eye(4), n // 4, axis=0)

    def error(got: Any, wanted: np.ndarray) -> float:
        whole = got if got.is_fully_addressable else multihost_utils.process_allgather(got, tiled=True)
        return float(np.abs(np.asarray(whole) - wanted).max() / np.abs(wanted).max())

    def solved(solver: Any, **options: Any) -> float:
        sol = solver(A, b, rtol=1e-10, **options)
        assert bool(np.all(np.asarray(sol.success))), sol.status
        return error(sol.x, x)

    def loss(A: Any, data: Any, b: Any, solver: Any) -> jax.Array:
        return jnp.sum(solver(A if data is None else A.with_data(data), b, rtol=1e-11).x ** 2)

    def by_b(solver: Any) -> float:
        return error(jax.grad(loss, 2)(A, None, A.basis.placed(b), solver), y)

    def by_entries(solver: Any) -> float:
        return error(jax.grad(loss, 1)(A, A.data, b, solver), -y[row] * x[col])

    def inside_jit(solver: Any) -> float:
        of_data, of_b = jax.jit(jax.grad(loss, (1, 2)), static_argnums=3)(A, A.data, A.basis.placed(b), solver)
        return max(error(of_data, -y[row] * x[col]), error(of_b, y))

    def eigenvalues(found: Any) -> float:
        want = np.linalg.eigvalsh(S.toarray())
        return error(found.eigenvalues, want[-found.eigenvalues.shape[0] :])

    methods = {name: getattr(solvers, name) for name in ("cg", "fcg", "minres", "gmres", "bicgstab", "idrs", "lsmr")}
    table: dict[str, Callable[[], float]] = {}
    for name, solver in methods.items():
        table |= {f"{name}, {f.__name__}": functools.partial(f, solver) for f in (solved, by_b, by_entries)}
        if name != "lsmr":
            table[f"{name}, refine"] = functools.partial(solved, solvers.refine, method=name, dtype="float32")
    makers = {
        **{"jacobi": lambda: precond.jacobi(A), "block_jacobi": lambda: precond.block_jacobi(A, 3)},
        "chebyshev": lambda: precond.chebyshev(A, M=precond.jacobi(A)),
        "schwarz": lambda: precond.schwarz(A, precond.incomplete_cholesky),
        "coarse_space": lambda: precond.coarse_space(A, W, precond.schwarz(A, solvers.factorized)),
        "multigrid": lambda: precond.multigrid(A, max_coarse=20),
        **{"a sharded matrix": lambda: inverse, "numbers": lambda: 1 / S.diagonal()},
        "a function": lambda: lambda r: r / 6,
    }
    table |= {f"cg with {name}": lambda make=make: solved(solvers.cg, M=make()) for name, make in makers.items()}
    table["gmres with schwarz, overlap 1"] = lambda: solved(solvers.gmres, M=precond.schwarz(A, precond.ilu, 1))
    renumbered = jsf.shard(S, mesh, by=np.arange(n) % A.parts)
    made_in_pieces = jsf.shard_from_rows(lambda start, stop: S[start:stop], n, mesh)
    for name, B in (("renumbered", renumbered), ("made in pieces", made_in_pieces)):
        table[f"{name}, read back"] = lambda B=B: float(abs(B.to_scipy() - S).max())
        table[f"{name}, A·(A·b)"] = lambda B=B: error(B @ (B @ b), S @ (S @ b))
    table["cg, both gradients inside jit"] = lambda: inside_jit(solvers.cg)
    table["solve"] = lambda: solved(solvers.solve)
    table["eigsh"] = lambda: eigenvalues(solvers.eigsh(A, 1))
    table["lobpcg"] = lambda: eigenvalues(solvers.lobpcg(A, 1, which="LA"))
    table["svds"] = lambda: error(solvers.svds(A, 1).s, np.linalg.eigvalsh(S.toarray())[-1:])
    for name in ("direct", "factorized"):
        of = getattr(solvers, name)
        table[name] = lambda of=of: of(A, b) if of is solvers.direct else of(A)
    table["ilu"] = lambda: precond.ilu(A)
    return {name: row for name, row in table.items() if re.search(os.environ.get("REACH_ROWS", ""), name)}


def main(process: int, port: int, processes: int) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    for name, row in rows().items():
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        begin, told = time.perf_counter(), {}
        try:
            told["error"] = row()
        except (ValueError, TypeError) as error:
            told["refused"] = str(error)[:300]
        except Exception as error:
            told["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        faulthandler.cancel_dump_traceback_later()
        if process == 0:
            print(json.dumps({"row": name, "seconds": round(time.perf_counter() - begin, 1)} | told), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
