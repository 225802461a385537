"""The clocks of the benchmarks: warmed up, many calls in flight, several rounds. A GPU rests between rounds."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def seconds_per_call(
    run: Callable[[int], Any],
    wait: Callable[[Any], None],
    *,
    rounds: int = 7,
    seconds: float = 0.03,
) -> float:
    """The median time of one `run(i)`, seconds; on a CPU the least, since other processes only add to it.

    A round issues calls back to back for about `seconds` and waits once, so that the cost of a launch hides behind the
    work before it; `i` counts up, for inputs that rotate.

    A GPU rests before every round as long as the round takes: with its memory at full speed an H200 reaches its limit
    of power in a second or two and lowers its clock by up to a third, and times would depend on earlier work.
    """
    wait(run(0))
    start = time.perf_counter()
    wait(run(1))
    one = max(time.perf_counter() - start, 1e-6)
    calls = max(1, min(200, int(seconds / one)))
    rest = 0.0 if jax.default_backend() == "cpu" else calls * one
    times = []
    for _ in range(rounds):
        time.sleep(rest)
        start = time.perf_counter()
        for i in range(calls):
            out = run(i)
        wait(out)
        times.append((time.perf_counter() - start) / calls)
    return min(times) if jax.default_backend() == "cpu" else statistics.median(times)


def of_jax(function: Callable[..., Any], fixed: Any, inputs: Sequence[Any]) -> float:
    """Seconds of the compiled function(fixed, inputs[i])."""
    compiled = jax.jit(function)
    return seconds_per_call(lambda i: compiled(fixed, inputs[i % len(inputs)]), jax.block_until_ready)


def copy_bandwidth(nbytes: int) -> float:
    """Bytes a second, read and written, of a plain pass over memory: the faster of two ways.

    One is in place inside one program, so that neither fresh pages of the host nor the copy of an argument are timed;
    the other goes into fresh memory, which costs nothing on a GPU.

    Args:
      nbytes: size of the array; several times the last-level cache.
    """
    passes = 10
    a = jnp.ones(nbytes // 4, jnp.float32)
    add = lambda s, a: jax.lax.fori_loop(0, passes, lambda _, a: a + s, a)  # noqa: E731
    in_place = (_of_updates if jax.default_backend() == "cpu" else of_jax)(add, jnp.float32(1), [a]) / passes
    fresh = of_jax(lambda s, a: a + s, jnp.float32(1), [a])
    return 2 * a.nbytes / min(in_place, fresh)


def _of_updates(function: Callable[..., Any], fixed: Any, inputs: Sequence[Any]) -> float:
    """Seconds of the compiled function(fixed, x), which donates x and returns the next; the first is inputs[0]."""
    compiled, held = jax.jit(function, donate_argnums=1), [jnp.copy(inputs[0])]

    def run(_: int) -> Any:
        held.append(compiled(fixed, held.pop()))
        return held[0]

    return seconds_per_call(run, jax.block_until_ready)


def moved_bytes(A: Any, x: Any) -> int:
    """Bytes that a product must move: the arrays of A that it reads, x and y, each once."""
    return A.nbytes_read + x.nbytes + A.shape[0] * x.itemsize
