"""Clocks: the median time of a product, or of any call, on the device."""

import collections
import functools
import operator
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt.core.matrix import SparseMatrix

IN_FLIGHT = 16  # results that are awaited together
LOOP = 16  # products of a program for a GPU: Python takes longer to call a program than one small product takes
SMALL = 32e6  # bytes that a product reads, below which Python takes longer than `LOOP` products
TRIPS, LOOP_SMALL = 4, 64  # of such a small matrix: trips of a loop, and products of each


def seconds_per_product(A: SparseMatrix, x: jax.Array | None = None) -> float:
    """The median seconds of a compiled A @ x; without x, one of A's dtype.

    On a GPU it times several products in a row, each dependent on the one before; if A is not square, by one number.
    """
    with jax.disable_jit(False):  # the product is compiled even if the caller has switched that off
        if x is None:
            # An array of numbers even while a program is traced; no kernel can be traced in here.
            with jax.ensure_compile_time_eval():
                x = jnp.ones(A.shape[1], A.dtype)
        compiled, products = repeated(A, x)
        return median_seconds(lambda: compiled(A, x)) / products


def repeated(A: SparseMatrix, x: jax.Array | jax.ShapeDtypeStruct) -> tuple[Callable[..., Any], int]:
    """A compiled program of products A @ x, and their number: several on a GPU, each dependent on the one before."""
    function, products = operator.matmul, 1
    if _on_one_gpu(x) and min(A.shape) > 0:
        trips, unrolled = (TRIPS, LOOP_SMALL) if A.nbytes_read < SMALL else (1, LOOP)
        function, products = functools.partial(_chain, trips, unrolled), trips * unrolled
    return jax.jit(function).lower(A, x).compile(), products


def _on_one_gpu(x: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return x.sharding is not None and [d.platform for d in x.sharding.device_set] == ["gpu"]


def _chain(trips: int, unrolled: int, A: SparseMatrix, x: jax.Array) -> jax.Array:
    """A·(A·(…·x)), or x if A·x is no vector like x.

    XLA launches the products of a trip as one CUDA graph. A trip waits for the host, so it has several products; a
    single one has buffers of its own in every call, and XLA writes them into the graph, node by node: on an H100 up to
    3 µs a small product.
    """

    def step(x: jax.Array, _: int) -> jax.Array:
        y = A @ x
        return y if y.shape == x.shape and y.dtype == x.dtype else x.at[0].add((0 * y[0]).astype(x.dtype))

    return lax.fori_loop(0, trips, lambda _, x: functools.reduce(step, range(unrolled), x), x)


def median_seconds(run: Callable[[], Any], rounds: int = 7, seconds: float = 0.02) -> float:
    """The median time of one `run()`, warmed up; the calls of a round, which takes `seconds`, share one wait."""
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    calls = int(np.clip(seconds / (time.perf_counter() - start), 1, 100))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        pending: collections.deque[Any] = collections.deque()  # not all results at once: each may be large
        for _ in range(calls):
            if len(pending) == IN_FLIGHT:
                jax.block_until_ready(pending.popleft())
            pending.append(run())
        jax.block_until_ready(list(pending))
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)
