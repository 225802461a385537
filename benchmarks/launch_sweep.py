"""Launch parameters of the column-major kernels, swept: the evidence behind `dialect.LAUNCH`.

    python -m benchmarks.launch_sweep             needs an NVIDIA GPU

Prints, per matrix, dtype and dialect, the variants from fast to slow with their share of the copy bandwidth.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import spmv, timing
from jaxsparse_fmt.kernels import dialect

AXES = {
    "triton": {"slice_size": (32, 128), "unroll": (2, 4, 8), "stages": (1, 2), "stream": (False, True)},
    "mosaic": {"slice_size": (128, 256), "unroll": (1, 2, 4, 8)},
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny matrices, to try the script")
    parser.add_argument("--dialects", nargs="+", default=list(AXES))
    parser.add_argument("--best", type=int, default=6, help="variants to print")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    copy = timing.copy_bandwidth(2**24 if args.small else 2**31)
    print(timing.provenance(), f"copy {copy / 1e9:.0f} GB/s")
    for name, make in spmv.cases("gpu", args.small).items():
        S = make()
        for dtype, backend in itertools.product((np.float32, np.float64), args.dialects):
            results = sorted(sweep(S.astype(dtype), backend, copy))
            for seconds, share, variant in results[: args.best]:
                case = f"{name} {dtype.__name__} {backend}"
                print(f"{case}: {seconds * 1e6:.1f} µs, share {share:.3f}, {variant}", flush=True)
    return 0


def sweep(S, backend: str, copy: float):
    axes = dict(AXES[backend])
    xs = [jnp.asarray(np.random.default_rng(i).standard_normal(S.shape[1]), S.dtype) for i in range(3)]
    default = dialect.LAUNCH
    for slice_size in axes.pop("slice_size"):
        A = jsf.from_scipy(S, "hll", slice_size=slice_size, backend=backend)
        for values in itertools.product(*axes.values()):
            variant = dict(zip(axes, values, strict=True))
            dialect.LAUNCH = dataclasses.replace(default, rows=max(slice_size, 128), **variant)
            jax.clear_caches()
            try:
                seconds = timing.of_jax(lambda A, x: A @ x, A, xs)
            except Exception as error:  # a variant the compiler refuses is a result too
                print(f"{backend} {slice_size} {variant}: {type(error).__name__} {str(error)[:200]}", flush=True)
                continue
            finally:
                dialect.LAUNCH = default
            share = spmv.moved_bytes(A, np.asarray(xs[0])) / seconds / copy
            yield seconds, share, {"slice_size": slice_size, **variant}


if __name__ == "__main__":
    sys.exit(main())
