"""The scaling of cg over GPUs: weak, strong and irregular; products in a loop, refinement, multigrid.

    python -m benchmarks scaling --devices 1 8 --json benchmarks/results/scaling.json
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks scaling --small

The time of a step comes from 200 more of them. All formats are those that "auto" chooses, as for a user; on one device
the matrix is not sharded. Efficiency is T(1) / T(N) with the same work on every device (weak) and T(1) / (N·T(N)) with
the same total work (strong). Each shard makes its own rows, scaled by factors of 10^±1.5 so that no solve ends before
its count of steps. `--only processes` compares processes of one device each with one process that has as many.
"""

import argparse
import dataclasses
import functools
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.report import Row
from benchmarks.solvers import seconds, seconds_per_step, taken
from jaxsparse_fmt.distributed import row_partition
from jaxsparse_fmt.distributed.common_format import MODES
from solvers import Status, cg, precond, refine

PIECE = 2**20  # rows that a thread makes at once


@dataclasses.dataclass(frozen=True)
class Problem:
    """A matrix by the function rows_of(start, stop), which gives canonical CSR."""

    name: str
    n: int
    rows_of: Callable[[int, int], Any]
    starts: Callable[[int], Any] = lambda parts: None


def factor(unknown: np.ndarray) -> np.ndarray:
    """10^±1.5 for each unknown, by its number."""
    return 10 ** (1.5 * np.sin(78.233 * (unknown % 1_000_003)))


def stencil(extents: tuple[int, int, int], points: int, scaled: bool = True) -> Problem:
    """A grid with −1 for the 6 or 26 neighbours of each point, and their number on the diagonal."""
    make = jsf.gallery.poisson if points == 7 else jsf.gallery.hpcg
    n, plane = int(np.prod(extents)), extents[1] * extents[2]
    index = np.int32 if n < 2**31 else np.int64

    def piece(start: int, stop: int) -> scipy.sparse.csr_array:
        """Rows of the planes of points around these, cut out."""
        first, last = max(start // plane - 1, 0), min(-(-stop // plane) + 1, extents[0])
        rows = make((last - first, *extents[1:]))[start - first * plane : stop - first * plane]
        col = rows.indices.astype(index) + index(first * plane)
        if scaled:
            rows.data *= np.repeat(factor(np.arange(start, stop)), np.diff(rows.indptr)) * factor(col)
        return scipy.sparse.csr_array((rows.data, col, rows.indptr), shape=(stop - start, n))

    def rows_of(start: int, stop: int) -> scipy.sparse.csr_array:
        ends = [*(range(start, stop, PIECE) or [start]), stop]
        with ThreadPoolExecutor() as pool:
            csr = scipy.sparse.vstack(list(pool.map(piece, ends, ends[1:])), format="csr")
        csr.has_canonical_format = True
        return csr

    return Problem(f"{points}-point {'×'.join(map(str, extents))}", n, rows_of)


def irregular(name: str, S: scipy.sparse.csr_array) -> Problem:
    """S + Sᵀ made definite, scaled as the stencils, cut by entries."""
    S = scipy.sparse.csr_array(S + S.T)
    S = S + scipy.sparse.diags_array(1.01 * np.asarray(abs(S).sum(axis=1)).ravel())
    D = scipy.sparse.diags_array(factor(np.arange(S.shape[0])))
    S = scipy.sparse.csr_array(D @ S @ D)
    S.sort_indices()
    cut = lambda parts: row_partition.partition(S, parts)[0]  # noqa: E731
    return Problem(name, S.shape[0], lambda a, b: S[a:b], cut)


def on(problem: Problem, devices: list[Any], mode: str, **layout: Any) -> Any:
    """The matrix on these devices, in the format that "auto" chooses; on one, unsharded."""
    if len(devices) == 1:
        with jax.default_device(devices[0]):
            return jsf.from_scipy(problem.rows_of(0, problem.n), "auto")
    mesh, starts = Mesh(np.array(devices), ("rows",)), problem.starts(len(devices))
    return jsf.shard_from_rows(problem.rows_of, problem.n, mesh, mode=mode, starts=starts, **layout)


def _format(A: Any) -> str:
    return " + ".join(part.name for part in A.shards.blocks) if hasattr(A, "shards") else A.name


class Bench:
    """Times steps on each count of devices."""

    def __init__(self, counts: list[int], modes: list[str], small: bool):
        self.counts, self.modes, self.small = counts, modes, small
        self.devices = jax.devices()
        self.poisson = functools.cache(self._poisson)  # for several sections

    def steps(self, problem_of: Callable[[int], Problem], is_weak: bool) -> Iterator[Row]:
        """A row for each number of devices and mode, of the problem problem_of(devices)."""
        alone = None
        for count in self.counts:
            problem = problem_of(count)
            problem = dataclasses.replace(problem, rows_of=functools.cache(problem.rows_of))  # for all modes
            for mode in self.modes if count > 1 else ["-"]:
                A, setup, _ = timing.timed(lambda p=problem, n=count, m=mode: on(p, self.devices[:n], m))
                b = jnp.asarray(np.random.default_rng(0).standard_normal(problem.n))
                held = A.record.imbalance if count > 1 else None
                _, first, _ = timing.timed(lambda A=A, b=b: taken(A, b, 1))
                took, _ = seconds_per_step(A, b, 250)
                alone = alone or took
                work = 1 if is_weak else count
                yield {
                    "problem": problem.name, "devices": count, "mode": mode, "format": _format(A),
                    "method": "cg",
                    "rows a device": int(held.rows.max()) if held else problem.n,
                    "nnz a device": int(held.nnz.max()) if held else A.nnz,
                    "GB a device": A.nbytes / count / 1e9, "exchange": A.shards.halo.kind if count > 1 else "-",
                    "µs a step": took * 1e6, "efficiency": alone / (work * took) if self.counts[0] == 1 else None,
                    "set-up s": setup, "first call s": first,
                }  # fmt: skip
                del A

    def weak(self) -> Iterator[Row]:
        for plane, depth in [((12, 12), 4), ((8, 8), 8)] if self.small else [((200, 200), 200), ((512, 512), 64)]:
            yield from self.steps(lambda count, p=plane, d=depth: stencil((count * d, *p), 7), is_weak=True)

    def strong(self) -> Iterator[Row]:
        cases = [(12, 7), (8, 27)] if self.small else [(200, 27), (256, 7)]
        for n, points in cases:
            yield from self.steps(lambda _, n=n, points=points: stencil((n, n, n), points), is_weak=False)

    def irregular(self) -> Iterator[Row]:
        phonons, nodes = (3, 2_000) if self.small else (12, 2_000_000)
        sites = 4 if self.small else 6
        for name, make, size in (
            (f"Holstein-Hubbard {sites}, {sites}, {phonons}", jsf.gallery.holstein_hubbard, (sites, sites, phonons)),
            (f"power law {nodes:,}", jsf.gallery.power_law, (nodes,)),
        ):
            problem = irregular(name, make(*size))
            yield from self.steps(lambda _, problem=problem: problem, is_weak=False)

    def _poisson(self, count: int, edge: int = 200) -> tuple[Any, jax.Array]:
        """A 7-point matrix with the same work on every device, and a vector."""
        edge = 6 if self.small else edge
        A = on(stencil((count * edge, edge, edge), 7, scaled=False), self.devices[:count], "overlap")
        return A, jnp.asarray(np.random.default_rng(0).standard_normal(A.shape[0]))

    def products(self) -> Iterator[Row]:
        first = None
        for count in self.counts:
            A, x = self.poisson(count)
            few, many = (seconds(_multiplied, A, x, n)[0] for n in (50, 250))
            took = (many - few) / 200
            first = first or took
            yield {"unknowns": A.shape[0], "devices": count, "µs a product": took * 1e6, "efficiency": first / took}

    def refinement(self) -> Iterator[Row]:
        first = None
        for count in self.counts:
            A, b = self.poisson(count)
            wide, want = seconds(cg, A, b, rtol=1e-10)
            narrow, got = seconds(refine, A, b, rtol=1e-10)
            first = first or wide / narrow
            yield {"unknowns": A.shape[0], "devices": count, "cg ms": wide * 1e3, "ms": narrow * 1e3} | {
                "cg iterations": int(want.iterations), "iterations": int(got.iterations), "× cg": wide / narrow,
                "of one device's": wide / narrow / first, "status": Status(int(got.status)).name,
            }  # fmt: skip

    def multigrid(self) -> Iterator[Row]:
        first = None
        for count in self.counts:
            A, b = self._poisson(count, 128)
            M, setup, _ = timing.timed(lambda A=A: precond.multigrid(A))
            took, found = seconds(cg, A, b, M=M, rtol=1e-8)
            first = first or took
            yield {"unknowns": A.shape[0], "devices": count, "set-up s": setup, "ms": took * 1e3} | {
                "iterations": int(found.iterations), "efficiency": first / took if self.counts[0] == 1 else None,
                "status": Status(int(found.status)).name,
            }  # fmt: skip

    def processes(self) -> Iterator[Row]:
        """cg of 7 points by one process for each number of devices, and by as many processes of one device each."""
        alone = None
        for count in self.counts:
            for processes in sorted({1, count}):
                row = _started(processes, count, 8 if self.small else 100)
                alone = alone or row["ms"]
                yield {"processes": processes, "devices": count} | row | {"of one device's": row["ms"] / alone}


def _started(processes: int, devices: int, edge: int) -> Row:
    """What the first of this many processes finds in `of_process`, with this many devices in all."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices)))).split(",")[:devices]
    each = devices // processes
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={each}"

    def of(k: int) -> Row:
        env = {"CUDA_VISIBLE_DEVICES": ",".join(visible[k * each : (k + 1) * each]), "XLA_FLAGS": flags}
        return report.child(of_process, k, processes, port, edge, **env)

    with ThreadPoolExecutor(processes) as pool:
        return next(pool.map(of, range(processes)))


def of_process(process: int, processes: int, port: int, edge: int) -> Row:
    """The milliseconds of a warm cg and of its parts, with all devices of all processes."""
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    A = on(stencil((edge, edge, edge), 7, scaled=False), jax.devices(), "overlap")
    given = np.ones(A.shape[0])
    b = A.basis.placed(given)
    M = precond.block_jacobi(A, 8)
    inside = jax.jit(lambda A, b: cg(A, b, rtol=1e-8))

    def ms(*args: Any, **options: Any) -> float:
        return 1e3 * seconds(*args, **options)[0]

    steps = int(inside(A, b).iterations)
    row = {
        "unknowns": A.shape[0], "iterations": steps, "ms": ms(cg, A, b, rtol=1e-8), "in jit": ms(inside, A, b),
        "b of NumPy": ms(cg, A, given, rtol=1e-8), "block_jacobi": ms(cg, A, b, M=M, rtol=1e-8),
    }  # fmt: skip
    return row | {"µs a step in jit": 1e3 * row["in jit"] / steps}


@jax.jit
def _multiplied(A: Any, x: jax.Array, times: int) -> jax.Array:
    """x after `times` products, each in the user's order."""
    return jax.lax.fori_loop(0, times, lambda _, x: 0.1 * (A @ x), x)


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(workers=2)  # `processes` starts others on the same GPUs
    parser.add_argument("--devices", type=int, nargs="+", help="such as 1 8; default: 1, 2, 4, 8, as far as they exist")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    there = len(jax.devices())
    counts = sorted(args.devices or [n for n in (1, 2, 4, 8) if n <= there])
    if counts[-1] > there or counts[0] < 1:
        raise SystemExit(f"--devices {counts}: JAX sees {there}")
    header["devices"] = str(there)
    bench = Bench(counts, args.modes, args.small)
    names = ("weak", "strong", "products", "refinement", "irregular", "multigrid", "processes")
    return {name: getattr(bench, name) for name in names}
