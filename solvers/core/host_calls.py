"""The user's `callback` and `progress`, which a compiled loop calls on the host.

A program that holds such a function is compiled anew for every lambda. A solve outside of jit passes a number instead,
by which the host finds the two functions while the solve runs, so that one program serves all of them.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._types import in_trace

_functions: dict[int, tuple[Callable[..., None] | None, ...]] = {}  # of the solves that run now
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class ByNumber:
    """Stands for a function of one solve; takes the number of the solve before the function's arguments."""

    place: int  # among the solve's functions

    def __call__(self, number: Any, *args: Any) -> None:
        function = _functions[int(number)][self.place]
        assert function is not None
        function(*args)


@contextlib.contextmanager
def numbered(options: Any, limits: Any) -> Iterator[tuple[Any, Any]]:
    """A context with the options and limits of a solve, its functions by number; it ends after their last call.

    Both stay as they are inside jit, over several processes, whose numbers may differ, and in a callback, which must
    not wait for itself.
    """
    functions = options.callback, options.progress
    if functions == (None, None) or _functions or jax.process_count() > 1 or in_trace():
        yield options, limits
        return
    number = next(_numbers)
    _functions[number] = functions
    callback, progress = (None if f is None else ByNumber(place) for place, f in enumerate(functions))
    try:
        yield options._replace(callback=callback, progress=progress), limits._replace(calls=(np.int32(number),))
        jax.effects_barrier()
    finally:
        del _functions[number]
