"""The clock of the benchmarks: of one call, and of many in flight."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def timed(f: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result of f(), wall seconds, and CPU seconds, summed over threads."""
    wall = time.perf_counter()
    cpu = time.process_time()
    result = jax.block_until_ready(f())
    return result, time.perf_counter() - wall, time.process_time() - cpu


def least(f: Callable[[], Any], enough: float, rounds: int = 5, at_least: int = 1) -> tuple[Any, float, float]:
    """The last result of f(), and the least wall and CPU seconds, as `timed`, in up to `rounds` calls.

    From `at_least` calls on none begins after `enough` seconds.
    """
    times: list[tuple[float, float]] = []
    while len(times) < at_least or (len(times) < rounds and sum(wall for wall, _ in times) <= enough):
        result, *both = timed(f)
        times.append((both[0], both[1]))
    wall, cpu = map(min, zip(*times, strict=True))
    return result, wall, cpu


def by_clock(wall: float, cpu: float) -> float:
    """Wall seconds; on a CPU seconds of CPU time, which other load lengthens less."""
    return cpu if jax.default_backend() == "cpu" else wall


def in_turn(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """The least wall and CPU seconds of each side, as `timed`; in every round each is called once.

    A result is freed before the next call, so that no side pays for another's.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            times[name].append(timed(call)[1:])
    return {name: (min(wall for wall, _ in both), min(cpu for _, cpu in both)) for name, both in times.items()}


def cost(f: Callable[[], Any], enough: float, rounds: int = 3, at_least: int = 1) -> tuple[Any, float]:
    """`least`, after a call to warm up: the result, and seconds `by_clock`."""
    jax.block_until_ready(f())
    result, *both = least(f, enough, rounds, at_least)
    return result, by_clock(*both)


def seconds_per_call(
    run: Callable[[int], Any],
    wait: Callable[[Any], Any] = jax.block_until_ready,
    *,
    rounds: int = 7,
    seconds: float = 0.03,
) -> float:
    """The median time of one `run(i)`, seconds; on a CPU the least, since other processes only add to it.

    After two calls to warm up, a round issues calls back to back for about `seconds` and waits once, so that the work
    of one call hides the cost of launching the next; `i` counts up, for inputs that rotate.

    A GPU rests before every round as long as the round takes: with its memory at full speed an H200 reaches its limit
    of power in a second or two and lowers its clock by up to a third, and times would depend on earlier work.
    """
    wait(run(0))
    start = time.perf_counter()
    wait(run(1))
    one = max(time.perf_counter() - start, 1e-6)
    calls = max(1, min(200, int(seconds / one)))
    on_cpu = jax.default_backend() == "cpu"
    times = []
    for _ in range(rounds):
        time.sleep(0.0 if on_cpu else calls * one)
        start = time.perf_counter()
        for i in range(calls):
            out = run(i)
        wait(out)
        times.append((time.perf_counter() - start) / calls)
    return min(times) if on_cpu else statistics.median(times)


def copy_bandwidth(small: bool = False) -> float:
    """Bytes a second, read and written, of a plain pass over an array several times as large as the last-level cache.

    On a CPU the passes are in place and inside one program, so that neither fresh pages nor the copy of an argument are
    timed; on a GPU fresh memory costs nothing.
    """
    in_place = jax.default_backend() == "cpu"
    nbytes = 2**24 if small else 2**28 if in_place else 2**31
    passes = 10 if in_place else 1
    held = [jnp.ones(nbytes // 4, jnp.float32)]

    def add(a: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, passes, lambda _, a: a + 1, a)

    compiled = jax.jit(add, donate_argnums=0 if in_place else ())

    def run(_: int) -> Any:
        held.append(compiled(held.pop()))
        return held[0]

    return 2 * nbytes * passes / seconds_per_call(run)
