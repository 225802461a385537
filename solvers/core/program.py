"""The way from a public function into its compiled program.

An `Entry` traces users' functions, makes explicit mesh axes auto ones, and makes arrays vary over the same axes inside
a user's shard_map. It waits for a program on a CPU in Python, so that Ctrl-C raises.
"""

import contextlib
import dataclasses
import functools
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt._progress import BAR
from jaxsparse_fmt._tracing import PROGRAMS, Parameters, Result, in_trace, sizes
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.kernels.backends import jax_versions
from solvers.core.operators import Function, UserFunction, traced

SHORTEST, LONGEST, PART = 1e-5, 5e-3, 1 / 50  # seconds of a pause, 0 if it is shorter; its part of the time so far


@remembered(PROGRAMS, "programs of solvers")
def jit(f: Callable[..., Any], quick: bool, *key: Any) -> Callable[..., Any]:
    """f compiled, its first argument static, for each key anew. Ctrl-C leaves its program to end in the background.

    Args:
      quick: take the options of `jax_versions.QUICK_TO_COMPILE`, which only an outermost jit may have.
    """
    del key
    options = jax_versions.QUICK_TO_COMPILE if quick else None
    return interruptible(jax.jit(functools.partial(f), static_argnums=0, compiler_options=options), _waited)


def interruptible(
    f: Callable[Parameters, Result], wait: Callable[[Result], Result] = jax.block_until_ready
) -> Callable[Parameters, Result]:
    """f, which returns after `wait` for its results, with Ctrl-C as KeyboardInterrupt.

    XLA reports the interrupt of what a program calls on the host as an error, of a class that depends on the thread.
    """

    @functools.wraps(f)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return wait(f(*args, **kwargs))
        except Exception as error:
            if re.search(r"^KeyboardInterrupt\b", str(error), re.MULTILINE):
                raise KeyboardInterrupt from error
            raise

    return call


@contextlib.contextmanager
def interrupted_after() -> Iterator[None]:
    """A context for what a program calls on the host: Ctrl-C there raises KeyboardInterrupt where the program returns.

    What leaves the called function XLA would report as an error of its own. The results do not count after an
    interrupt: a trace function raises it before the next instruction of the Python code that runs the program, and
    Python then takes the trace function away.
    """
    try:
        yield
    except KeyboardInterrupt:
        stack = [frame for frame, _ in traceback.walk_stack(sys._getframe())]  # the innermost first
        of_jax = [frame.f_globals.get("__name__") == "jax._src.callback" for frame in stack]
        if threading.current_thread() is not threading.main_thread() or True not in of_jax:
            raise
        caller = stack[of_jax.index(False, of_jax.index(True))]
        caller.f_trace, caller.f_trace_opcodes = _interrupt, True
        sys.settrace(lambda *_: None)


def _interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def _waited(results: Any) -> Any:
    """The results of a program, for which it waits in Python on one CPU if Ctrl-C raises KeyboardInterrupt here.

    On GPUs and on several devices they return at once, as those of any compiled program.
    """
    a = jax.tree.leaves(results)[0]
    if jax.device_count() > 1 or isinstance(a, Tracer) or next(iter(a.devices())).platform != "cpu":
        return results
    is_main = threading.current_thread() is threading.main_thread()
    if not a.is_ready() and not (is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        return results
    begin = time.perf_counter()
    while not a.is_ready():
        pause = PART * (time.perf_counter() - begin)
        time.sleep(min(pause, LONGEST) if pause > SHORTEST else 0)
    a.block_until_ready()  # raises the error of a program that failed
    return results


_calls = False  # whether a solve calls the user now; another one inside such a call must not wait for it


@contextlib.contextmanager
def _calling() -> Iterator[None]:
    """A context for a program that calls the user, which ends after the last call."""
    global _calls
    _calls = True
    try:
        yield
        jax.effects_barrier()
    except KeyboardInterrupt:
        jax_versions.forget_tokens()  # else the next program with callbacks would wait for the interrupted one
        raise
    finally:
        _calls = False
        BAR.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A solver's body, jitted: `entry(static, maps, basis, v, *others)`.

    Attributes:
      body: (static, maps, basis, v, *others) -> result, for auto mesh axes; it works in the basis.
      examples: (static, v) -> for each map a vector like those that it takes, with which a function is traced.
      out: (static, v) -> how the result is sharded over explicit mesh axes, a prefix of PartitionSpecs.
    """

    body: Callable[..., Any]
    examples: Callable[[Any, Any], tuple[Any, ...]]
    out: Callable[[Any, Any], Any] = lambda static, v: PartitionSpec()

    def __call__(
        self,
        static: Any,
        maps: tuple[Any, ...],
        basis: Basis,
        v: Any,
        *others: Any,
        calls: bool = False,
        arrays: list[Any] | None = None,
    ) -> Any:
        """The result.

        Args:
          static: hashable; the body is compiled for each.
          maps: operators, or None.
          v: the vector of the problem, or None; programs take vectors that are sharded and vary like it.
          others: pytrees of arrays.
          calls: whether the program calls the user: unless it is traced, the result returns after the last call.
          arrays: the arrays of the operands, if the caller has listed them.
        """
        programs, order = (), None if basis is IDENTITY else basis  # whose tree would cost a microsecond
        if UserFunction in map(type, maps):
            untraced, maps, arrays = maps, self._traced(static, maps, v), None
            varied = mesh_axes.varying(v, (maps, others))
            if varied is not v:
                v, maps = varied, self._traced(static, untraced, varied)
        if Function in map(type, maps):
            programs = [f.program for f in maps if isinstance(f, Function)]
        quick = not jax_versions.is_traced_here()
        call = jit(self._on_any_axes, quick, static, sizes(arrays or (maps, v, others)), *programs)
        if not calls or _calls or in_trace():
            return call(static, maps, order, v, others)
        with _calling():
            return call(static, maps, order, v, others)

    def _traced(self, static: Any, maps: tuple[Any, ...], v: Any) -> tuple[Any, ...]:
        examples = zip(maps, self.examples(static, v), strict=True)
        return tuple([a._traced(like) if isinstance(a, UserFunction) else a for a, like in examples])

    def _on_any_axes(self, static: Any, maps: tuple[Any, ...], basis: Any, v: Any, others: tuple[Any, ...]) -> Any:
        basis = IDENTITY if basis is None else basis
        if not mesh_axes.has_mesh(maps, basis, v, others):
            return self.body(static, maps, basis, v, *others)
        # Auto axes for all but users' functions, which run on the axes of their own arrays.
        functions = [f if isinstance(f, Function) else None for f in maps]
        likes = self.examples(static, v)
        outside = [f and mesh_axes.outside(f, like) for f, like in zip(functions, likes, strict=True)]
        matrices = [a if f is None else None for a, f in zip(maps, functions, strict=True)]

        def on_auto_axes(*operands: Any) -> Any:
            matrices, basis, v, others = mesh_axes.varying(operands, functions)
            each = zip(matrices, outside, self.examples(static, v), strict=True)
            inside = tuple([a if f is None else traced(f, like) for a, f, like in each])
            return self.body(static, inside, basis, v, *others)

        # Under vmap the type of v does not name the axis of the batch, but all programs traced here must use one mesh.
        axes = mesh_axes.explicit_axes(jax.sharding.get_abstract_mesh())
        operands = matrices, basis, v, others
        return mesh_axes.by_xla(on_auto_axes, operands, self.out(static, v), axes=axes)
