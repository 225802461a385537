"""Launch parameters of the kernels, swept: the evidence behind `dialect.LAUNCH` and `dialect.block`.

    python -m benchmarks.launch_sweep             needs an NVIDIA GPU

Prints, per matrix, dtype and format, microseconds with every number of lanes a thread and of entries in flight.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import spmv, timing
from jaxsparse_fmt.kernels import dialect

FORMATS = {"hll": {}, "sell": {}, "hdia": {}, "pjds": {}, "csr": {}, "bsr": {"block_shape": (3, 3)}}
VARIANTS = [(1, 4), (1, 8), (2, 4), (2, 8), (4, 4), (4, 8)]  # lanes a thread, entries in flight


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny matrices, to try the script")
    parser.add_argument("--backend", default="triton")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    copy = timing.copy_bandwidth(2**24 if args.small else 2**31)
    print(timing.provenance(), f"copy {copy / 1e9:.0f} GB/s, {args.backend}")
    print("| matrix | dtype | format |" + "".join(f" {lanes} × {unroll} |" for lanes, unroll in VARIANTS))
    print("|---|---|---|" + "---:|" * len(VARIANTS))
    for name, make in spmv.cases("gpu", args.small, ("7-point", "27-point")).items():
        S = make()
        for dtype, (format, layout) in itertools.product(("float32", "float64"), FORMATS.items()):
            csr = jsf.from_scipy(S.astype(dtype), "csr", backend=args.backend)
            A = csr.asformat(format, max_bytes=2**36, **layout)
            cells = (f" {microseconds(A, *variant):.1f} |" for variant in VARIANTS)
            print(f"| {name} | {dtype} | {format} |" + "".join(cells), flush=True)
    return 0


def microseconds(A: jsf.SparseMatrix, lanes_per_thread: int, unroll: int) -> float:
    xs = [jnp.asarray(np.random.default_rng(i).standard_normal(A.shape[1]), A.dtype) for i in range(3)]
    rows = dialect.LAUNCH.rows
    with mock.patch.object(dialect, "block", lambda *_, **__: dialect.Block(rows, lanes_per_thread, unroll)):
        jax.clear_caches()
        seconds = timing.of_jax(lambda A, x: A @ x, A, xs)
    jax.clear_caches()
    return seconds * 1e6


if __name__ == "__main__":
    sys.exit(main())
