"""The cost of solving: a step of cg against its floor, refinement, several right-hand sides, gradients.

    python -m benchmarks.solvers                  everything, for the device that is there

The floor of a step is nnz·(value + 4-byte index) + 10 vectors over the measured copy bandwidth: CSR read once, and the
fewest passes over vectors. "own" counts the bytes of the format that ran instead of CSR's. The time of a step comes
from 400 more of them. A solve is timed whole, compiled, from call to answer: the median of five.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.choose.timing import median_seconds
from solvers import Status, cg, refine

VECTORS = 10  # that a step of cg reads and writes, with the two of its product


def rhs(S: Any, dtype: Any = np.float64, columns: tuple[int, ...] = ()) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[0], *columns)).astype(dtype))


def seconds(solve: Callable[..., Any], *args: Any, **options: Any) -> tuple[float, Any]:
    """Median of five of solve(*args, **options), and the solution."""
    run = lambda: solve(*args, **options)  # noqa: E731
    return median_seconds(run, rounds=5, seconds=0.0), jax.block_until_ready(run())


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
        own = (A.nbytes_read + vectors) / copy
        for label, merged in (("cg", False), ("cg, one reduction", True)):
            (few, did), (many, did_more) = (seconds(_taken, A, b, n, merged) for n in (100, 500))
            if (int(did), int(did_more)) != (100, 500):
                raise RuntimeError(f"{name}, {dtype}: {did} and {did_more} steps, not 100 and 500")
            step = (many - few) / 400
            yield {"problem": name, "unknowns": S.shape[0], "dtype": dtype, "format": A.name, "method": label} | {
                "µs a step": step * 1e6, "floor µs": floor * 1e6, "share": floor / step, "own share": own / step,
                "µs a step of 500": many / 500 * 1e6,
            }  # fmt: skip


@functools.partial(jax.jit, static_argnames="merged")
def _taken(A: Any, b: jax.Array, steps: int, merged: bool) -> Any:
    return cg(A, b, rtol=0.0, maxiter=steps, one_reduction=merged).iterations


def refinement(copy: float, small: bool) -> Iterator[Row]:
    for name, S in problems(small).items():
        A, b = jsf.from_scipy(S), rhs(S)
        for label, rtol, dtype in (("refine", 1e-12, None), ("refine bf16", 1e-8, "bfloat16")):
            base, reference = seconds(cg, A, b, rtol=rtol, maxiter=20_000)
            narrow, got = seconds(refine, A, b, rtol=rtol, dtype=dtype, maxiter=20_000)
            true = float(np.linalg.norm(np.asarray(b) - S @ np.asarray(got.x)) / np.linalg.norm(np.asarray(b)))
            yield {"problem": name, "unknowns": S.shape[0], "method": label, "rtol": rtol, "format": A.name} | {
                "cg ms": base * 1e3, "cg iterations": int(reference.iterations), "ms": narrow * 1e3,
                "iterations": int(got.iterations), "× cg": base / narrow, "residual": true,
                "status": Status(int(got.status)).name, "cg status": Status(int(reference.status)).name,
            }  # fmt: skip


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
        loss = lambda values, b, A=A, w=w: jnp.vdot(w, cg(A._with_values(values), b, rtol=1e-8).x)  # noqa: E731
        value, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss, (0, 1)))
        solve, _ = seconds(value, A.values, b)
        grad, _ = seconds(both, A.values, b)
        yield {"problem": name, "solve ms": solve * 1e3, "value and gradient ms": grad * 1e3, "solves": grad / solve}


SECTIONS = {f.__name__: f for f in (steps, refinement, columns, gradient)}


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, dtypes=False)
    parser.add_argument("--only", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    copy, header = report.machine(args.small)
    return report.in_sections(args.json, header, ((name, SECTIONS[name](copy, args.small)) for name in args.only))


if __name__ == "__main__":
    sys.exit(main())
