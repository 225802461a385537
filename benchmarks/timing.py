"""The clocks of the benchmarks: warmed up, many calls in flight, several rounds. A GPU rests between rounds."""

import statistics
import time
from collections.abc import Callable
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


def timed(f: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result of f(), seconds, and the processor's seconds, summed over threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(f())
    return result, time.perf_counter() - wall, time.process_time() - cpu


def copy_bandwidth(nbytes: int) -> float:
    """Bytes a second, read and written, of a plain pass over memory.

    On a CPU the passes are in place and inside one program, so that neither fresh pages nor the copy of an argument are
    timed; on a GPU fresh memory costs nothing.

    Args:
      nbytes: size of the array; several times the last-level cache.
    """
    in_place = jax.default_backend() == "cpu"
    passes, held = 10 if in_place else 1, [jnp.ones(nbytes // 4, jnp.float32)]
    add = lambda a: jax.lax.fori_loop(0, passes, lambda _, a: a + 1, a)  # noqa: E731
    compiled = jax.jit(add, donate_argnums=0 if in_place else ())

    def run(_: int) -> Any:
        held.append(compiled(held.pop()))
        return held[0]

    return 2 * nbytes * passes / seconds_per_call(run, jax.block_until_ready)
