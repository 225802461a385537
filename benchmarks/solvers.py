"""The cost of solving: a step of cg against its floor, refinement, several columns, gradients, multigrid beside PyAMG.

    python -m benchmarks solvers                  everything, for the device that is there
    python -m benchmarks solvers --only multigrid           some six minutes of CPU time

The floor of a step is nnz·(value + 4-byte index) + 9 vectors over the measured copy bandwidth: CSR read once, and the
fewest passes over vectors. "own" counts the bytes of the format that ran, not CSR's. The time of a step comes
from 400 more of them. A solve is timed whole, compiled, from call to answer: the median of five,
on a CPU the least. The sides of multigrid
solve to 1e-8, and their "warm" figures are of a second call; "cpu" sums the seconds of all threads.
"""

import argparse
import functools
import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.report import Row
from solvers import Status, cg, precond, refine

VECTORS = 9  # that a step of cg reads and writes, with the two of its product


def rhs(S: Any, dtype: Any = np.float64, columns: tuple[int, ...] = ()) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[0], *columns)).astype(dtype))


def seconds(solve: Callable[..., Any], *args: Any, **options: Any) -> tuple[float, Any]:
    """Seconds of solve(*args, **options), and the solution."""
    run = functools.partial(solve, *args, **options)
    return timing.seconds_per_call(lambda _: run(), rounds=5, seconds=0.0), jax.block_until_ready(run())


def problems(small: bool) -> dict[str, Any]:
    """A large problem of each kind; sections store it in the format of "auto"."""
    n, m = (12, 4) if small else (200, 64) if jax.default_backend() == "gpu" else (60, 16)
    return {f"7-point {n}³": jsf.gallery.poisson(n), f"27-point × 3 dof {m}³": jsf.gallery.elasticity(m)}


def steps(copy: float, small: bool) -> Iterator[Row]:
    cases = [(name, S, dtype) for name, S in problems(small).items() for dtype in ("float64", "float32")]
    little = [(f"7-point {n}³", jsf.gallery.poisson(n), "float64") for n in ((8,) if small else (16, 50))]
    for name, S, dtype in little + cases:
        # Rows of very different scale, so that no solve ends before its count of steps.
        D = scipy.sparse.diags_array(10 ** np.random.default_rng(1).uniform(-1.5, 1.5, S.shape[0]))
        A, b = jsf.from_scipy(D @ S @ D, dtype=dtype), rhs(S, dtype)
        vectors = VECTORS * b.nbytes
        floor = (S.nnz * (b.itemsize + 4) + vectors) / copy
        stored = (A.nbytes_read + vectors) / copy
        step, many = seconds_per_step(A, b, 500)
        yield {"problem": name, "unknowns": S.shape[0], "dtype": dtype, "format": A.name, "method": "cg"} | {
            "µs a step": step * 1e6, "floor µs": floor * 1e6, "share": floor / step, "own share": stored / step,
            "µs a step of 500": many / 500 * 1e6,
        }  # fmt: skip


def seconds_per_step(A: Any, b: jax.Array, steps: int) -> tuple[float, float]:
    """Seconds of a step of cg, from solves of `steps` and of a fifth as many, and of the longer one.

    Raises:
      RuntimeError: a solve ends before.
    """
    (few, _), (many, did) = (seconds(taken, A, b, n) for n in (steps // 5, steps))
    if int(did) != steps:
        raise RuntimeError(f"cg ends after {did} steps, not {steps}")
    return (many - few) / (steps - steps // 5), many


@jax.jit
def taken(A: Any, b: jax.Array, steps: int) -> Any:
    return cg(A, b, rtol=0.0, maxiter=steps).iterations


def refinement(copy: float, small: bool) -> Iterator[Row]:
    for name, S in problems(small).items():
        A, b = jsf.from_scipy(S), rhs(S)
        cases: list[Any] = [("refine", 1e-12, None, None), ("refine bf16", 1e-8, "bfloat16", None)]
        if "dof" in name:
            cases.append(("refine, coarse space", 1e-12, None, rigid_motions(A)))
        for label, rtol, dtype, M in cases:
            base, reference = seconds(cg, A, b, M=M, rtol=rtol, maxiter=20_000)
            narrow, got = seconds(refine, A, b, M=M, rtol=rtol, dtype=dtype, maxiter=20_000)
            true = float(np.linalg.norm(np.asarray(b) - S @ np.asarray(got.x)) / np.linalg.norm(np.asarray(b)))
            yield {"problem": name, "unknowns": S.shape[0], "method": label, "rtol": rtol, "format": A.name} | {
                "cg ms": base * 1e3, "cg iterations": int(reference.iterations), "ms": narrow * 1e3,
                "iterations": int(got.iterations), "× cg": base / narrow, "residual": true,
                "status": Status(int(got.status)).name, "cg status": Status(int(reference.status)).name,
            }  # fmt: skip


def rigid_motions(A: Any) -> Any:
    """The coarse space of the rigid motions of 6³ boxes, over the diagonal, for the elasticity of a cube of points."""
    m = round((A.shape[0] / 3) ** (1 / 3))
    boxes, points = min(6, m // 2), np.indices((m, m, m)).reshape(3, -1).T
    box = points * boxes // m @ np.array([boxes**2, boxes, 1])
    return precond.coarse_space(A, precond.subdomains(jsf.gallery.rigid_body_modes(points), box))


def columns(copy: float, small: bool) -> Iterator[Row]:
    for name, S in problems(small).items():
        A, B = jsf.from_scipy(S), rhs(S, columns=(8,))
        one, _ = seconds(cg, A, B[:, 0], rtol=1e-8)
        eight, solution = seconds(cg, A, B, rtol=1e-8)
        yield {"problem": name, "format": A.name, "one ms": one * 1e3, "eight ms": eight * 1e3} | {
            "× eight alone": 8 * one / eight,
            "iterations": str(np.asarray(solution.iterations).tolist()),
        }


def gradient(copy: float, small: bool) -> Iterator[Row]:
    for name, S in problems(small).items():
        A, b = jsf.from_scipy(S), rhs(S)
        w = rhs(S)[::-1]

        def loss(values: Any, b: Any, A: Any = A, w: Any = w) -> Any:
            return jnp.vdot(w, cg(A._with_values(values), b, rtol=1e-8).x)

        value, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss, (0, 1)))
        solve, _ = seconds(value, A.values, b)
        grad, _ = seconds(both, A.values, b)
        yield {"problem": name, "solve ms": solve * 1e3, "value and gradient ms": grad * 1e3, "solves": grad / solve}


def diffusion(c: np.ndarray, *weights: float) -> scipy.sparse.csr_array:
    """−∇·c∇ on the points of a cube, c given at the points, each axis with its weight."""
    S = scipy.sparse.csr_array((c.size, c.size))
    for axis, weight in enumerate(weights):
        ones = [scipy.sparse.eye_array(m) for m in c.shape]
        ones[axis] = scipy.sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(c.shape[axis] + 1, c.shape[axis]))
        G = functools.reduce(scipy.sparse.kron, ones)
        edges = np.concatenate([c.take([0], axis), c], axis)  # of the point before each edge
        S = S + weight * (G.T @ scipy.sparse.diags_array(edges.ravel()) @ G)
    return scipy.sparse.csr_array(S)


def hierarchies(small: bool) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Makers of matrix and near-null space."""
    n, m, k = (20, 8, 12) if small else (100, 32, 46)
    one, blocks = np.ones((k, k, k)), (np.indices((k, k, k)) // 6).sum(axis=0) % 2
    points = np.indices((m, m, m)).reshape(3, -1).T.astype(float)
    made: dict[str, Any] = {
        f"7 points {n}³": lambda: (jsf.gallery.poisson(n), None),
        f"elasticity {m}³": lambda: (
            jsf.gallery.elasticity(m),
            jsf.gallery.rigid_body_modes(points),
        ),
        f"anisotropic 1:100 {k}³": lambda: (diffusion(one, 1, 1, 0.01), None),
        f"jumps of 10⁶ {k}³": lambda: (diffusion(10.0 ** (6 * blocks), 1, 1, 1), None),
    }
    for size in () if small else (46, 126, 200):
        made[f"7 points {size}³"] = lambda size=size: (jsf.gallery.poisson(size), None)
    return made


def beside_pyamg(name: str, S: Any, B: Any) -> list[Row]:
    A, b = jsf.from_scipy(S), np.random.default_rng(0).standard_normal(S.shape[0])
    rows: list[Row] = []
    for call in ("cold", "warm"):
        M, *setup = timing.timed(lambda: precond.multigrid(A, B))
        sol, *solve = timing.timed(lambda M=M: cg(A, b, M=M, rtol=1e-8))
        rows.append(_figures(name, f"ours, {call}", *setup, *solve, int(sol.iterations), M.operator_complexity))
        if not sol.success:
            rows[-1]["side"] += f": {sol.status.name}"
        del M
    sol, *solve = min((timing.timed(lambda: cg(A, b, rtol=1e-8)) for _ in range(2)), key=lambda found: found[1])
    rows.append(_figures(name, "cg alone", math.nan, math.nan, *solve, int(sol.iterations), math.nan))
    if S.shape[0] > 1.1e6 or importlib.util.find_spec("pyamg") is None:
        return rows
    import pyamg

    blocks = S if B is None else S.tobsr(blocksize=(3, 3))
    theirs, *setup = timing.timed(lambda: pyamg.smoothed_aggregation_solver(blocks, B=B))
    residuals: list[float] = []
    _, *solve = timing.timed(lambda: theirs.solve(b, tol=1e-8, accel="cg", residuals=residuals))
    rows.append(_figures(name, "PyAMG", *setup, *solve, len(residuals) - 1, theirs.operator_complexity()))
    return rows


def _figures(case: str, side: str, *figures: float) -> Row:
    names = ("setup", "setup_cpu", "solve", "solve_cpu", "iterations", "complexity")
    known = {name: figure for name, figure in zip(names, figures, strict=True) if not np.isnan(figure)}
    return {"case": case, "side": side} | known


def multigrid(copy: float, small: bool) -> Iterator[Row]:
    for name, make in hierarchies(small).items():
        yield from beside_pyamg(name, *make())


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    copy = timing.copy_bandwidth(args.small)
    header["copy"] = f"{copy / 1e9:.0f} GB/s"
    made = (steps, refinement, columns, gradient, multigrid)
    return {f.__name__: functools.partial(f, copy, args.small) for f in made}
