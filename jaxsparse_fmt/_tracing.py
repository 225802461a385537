"""Whether code and arrays are traced, the device of arrays, and JAX's modes under which this library computes."""

import contextlib
import functools
import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer

from jaxsparse_fmt._caches import remembered

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PROGRAMS = 256  # of a function that are kept, the last used; a program of a solver takes some 5 MB


def is_traced(*trees: Any) -> bool:
    """Whether a leaf is traced, by jit, vmap or a derivative."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def is_concrete(a: Any) -> bool:
    """Whether `a` is an array of JAX that is not traced."""
    return isinstance(a, jax.Array) and not isinstance(a, Tracer)


def is_on_cpu(a: Any) -> bool:
    """Whether a concrete array is NumPy's, or JAX's on CPUs alone."""
    return not isinstance(a, jax.Array) or {d.platform for d in a.devices()} == {"cpu"}


def device_of(*given: Any) -> Any:
    """This process's first device of the first array in the pytrees `given` that is not traced.

    If there is none, the device on which JAX puts an array at present: that of `jax.default_device`, else this
    process's first.
    """
    for a in jax.tree.leaves(given):
        if isinstance(a, jax.Array) and not isinstance(a, Tracer) and (local := a.sharding.addressable_devices):
            return min(local, key=operator.attrgetter("id"))
    chosen = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(chosen, str):  # a platform
        return jax.local_devices(backend=chosen)[0]
    return jax.local_devices()[0] if chosen is None else chosen


def in_trace() -> bool:
    """Whether operations are traced here, by jit, vmap or a derivative; compiles nothing."""
    return isinstance(jax.device_put(_zero()), Tracer)


@functools.cache
def _zero() -> jax.Array:
    """An array of JAX, which `device_put` takes in a third of the time of a number."""
    with jax.ensure_compile_time_eval():
        return jax.device_put(0.0)


def concrete(*trees: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which arrays are computed at once, also while a jitted function that closes over them is traced.

    It does nothing if a leaf of `trees` is traced. Outside a trace it does nothing either: otherwise arrays that a
    conversion computes from sizes alone would become constants of its program, as large as a matrix.
    """
    return jax.ensure_compile_time_eval() if in_trace() and not is_traced(trees) else contextlib.nullcontext()


def standard_promotion(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`f` under JAX's standard promotion of dtypes and ranks, on which this library relies (bfloat16 · float32).

    The switches `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` still hold in the user's
    code, except in functions that the user passes to `f`. The wrapper costs 2 µs a call, or a trace under `jax.jit`.
    """

    @functools.wraps(f)
    def standard(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return f(*args, **kwargs)

    return standard


def sizes(*trees: Any) -> tuple[Any, ...]:
    """The shapes of all leaves, and those that are no arrays."""
    leaves = jax.tree.leaves(trees)
    try:
        return tuple(map(_shape, leaves))
    except AttributeError:
        return tuple([getattr(leaf, "shape", leaf) for leaf in leaves])


_shape = operator.attrgetter("shape")


def by_size(f: Callable[..., Any], key: Callable[..., Any] = sizes, **options: Any) -> Callable[..., Any]:
    """f under `jax.jit(**options)`, of which the programs for the last `PROGRAMS` keys, by default sizes, are kept.

    `jax.jit` keeps a program and a trace for each size as long as its function lives: ever new numbers of entries would
    take all memory. So each key has a function of its own.
    """
    jitted = remembered(PROGRAMS, "programs of products and index arrays")(
        lambda key: jax.jit(functools.partial(f), **options)
    )
    return functools.wraps(f)(lambda *args: jitted(key(*args))(*args))
