"""One pass over vectors: new vectors and sums from old ones, element by element, in one kernel.

XLA alone computes a residual twice rather than store it, and makes a kernel of every reduction and of every few
scalars. Here the author of a pass decides what one kernel computes:

    numbers     scalars, or [m] partial sums, which every block adds up
    scalars     of `prepare(*numbers)`, computed by every block alike, returned once
    new         of `each(scalars, *vectors)`
    sums        of the products of the pairs that `each` returns, as 4 partial sums of each block

Traffic: each vector once. The order of every sum is fixed by n alone: runs repeat to the last bit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.backends import launch, tuning


class Pass(NamedTuple):
    """The functions that a pass computes; static and hashable."""

    prepare: Callable[..., tuple[Any, ...]]  # (*numbers) -> scalars
    # (scalars, *vectors) -> (new vectors, pairs of factors to sum)
    each: Callable[..., tuple[tuple[Any, ...], tuple[tuple[Any, Any], ...]]]


# Partial sums of each sum that a block stores: one for each warp of a Mosaic block.
PARTS = tuning.LAUNCH.rows // tuning.LAUNCH.warp


def parts(n: int) -> int:
    """The number of partial sums of each sum that a pass over vectors of n stores."""
    return PARTS * min(-(-n // tuning.LAUNCH.sweep_rows), tuning.LAUNCH.sweep_blocks)


def sweep_reference(numbers: tuple[Array, ...], vectors: tuple[Array, ...], what: Pass):
    """-> (new vectors, scalars, sums). Numbers and sums are scalars, or [k] with vectors of [n, k]."""
    scalars = _prepared(what)(*numbers) if numbers else what.prepare()
    new, pairs = what.each(scalars, *vectors)
    return new, scalars, tuple([inner_product(a, b).real for a, b in pairs])


@functools.cache
def _prepared(what: Pass) -> Callable[..., Any]:
    return one_kernel(what.prepare)


def inner_product(x: Array, y: Array) -> Array:
    """xᴴ·y, column by column."""
    return jnp.vdot(x, y, precision=lax.Precision.HIGHEST) if x.ndim == 1 else jnp.sum(jnp.conj(x) * y, axis=0)


def sweep(numbers: tuple[Array, ...], vectors: tuple[Array, ...], what: Pass, backend: str):
    """As the reference, but numbers and sums may be partial; real vectors of one dtype."""
    n, struct = vectors[0].shape[0], jax.ShapeDtypeStruct
    # In a kernel `prepare` and `each` get scalars, one element of each vector.
    given = tuple(struct((), a.dtype) for a in numbers), tuple(struct((1,), v.dtype) for v in vectors)
    new, scalars, sums = jax.eval_shape(functools.partial(sweep_reference, what=what), *given)
    block, count = tuning.sweep_block(backend), parts(n)
    outputs = {f"new{i}": struct((n,), v.dtype) for i, v in enumerate(new)}
    outputs |= {f"scalar{i}": struct((1,), _in_memory(s.dtype)) for i, s in enumerate(scalars)}
    outputs |= {f"sum{i}": struct((count,), s.dtype) for i, s in enumerate(sums)}
    inputs = {f"number{i}": a.reshape(-1).astype(_in_memory(a.dtype)) for i, a in enumerate(numbers)}
    inputs |= {f"vector{i}": v for i, v in enumerate(vectors)}
    is_bool = tuple(a.dtype == jnp.bool_ for a in numbers)
    kernel = functools.partial(sweep_kernel, what=what, block=block, n=n, is_bool=is_bool)
    out = launch.launch(kernel, backend, block=block, blocks=count // PARTS, inputs=inputs, outputs=outputs)
    end = len(new) + len(scalars)
    stored = zip(out[len(new) : end], scalars, strict=True)
    return out[: len(new)], tuple(a[0].astype(s.dtype) for a, s in stored), out[end:]


def sweep_kernel(d, *, what: Pass, block: tuning.Block, n: int, is_bool: tuple[bool, ...], **refs):
    numbers, vectors, new, scalars, sums = (
        [ref for name, ref in refs.items() if name.startswith(kind)]
        for kind in ("number", "vector", "new", "scalar", "sum")
    )
    places = block.rows * block.unroll  # that a block takes in one trip
    blocks = parts(n) // PARTS
    trips, address_dtype = -(-n // (blocks * places)), index_dtype(n + (blocks + 1) * places)
    i, lanes = d.program_id(), d.lanes()

    def places_of(t):
        first = (i.astype(address_dtype) * trips + t.astype(address_dtype)) * block.unroll
        return [(first + u) * block.rows + lanes for u in range(block.unroll)]

    def loaded(t):
        return [[d.load(ref, idx, (idx < n) & (t < trips), 0) for ref in vectors] for idx in places_of(t)]

    ahead = loaded(jnp.int32(0))  # in flight while the block adds up the numbers
    given = d.totals(numbers)
    prepared = what.prepare(*(a != 0 if flag else a for a, flag in zip(given, is_bool, strict=True)))
    first = lanes + i == 0
    for ref, value in zip(scalars, prepared, strict=True):
        d.store(ref, jnp.zeros_like(lanes), value.astype(ref.dtype), first)

    def trip(t, carry):
        ahead, totals = carry
        following = loaded(t + 1)
        for idx, values in zip(places_of(t), ahead, strict=True):
            results, pairs = what.each(prepared, *values)
            for ref, value in zip(new, results, strict=True):
                d.store(ref, idx, value, idx < n)
            terms = [jnp.where(idx < n, a * b, jnp.zeros_like(a)) for a, b in pairs]
            totals = tuple(total + term for total, term in zip(totals, terms, strict=True))
        return following, totals

    totals = tuple(d.full(0, ref.dtype) for ref in sums)
    _, totals = lax.fori_loop(jnp.int32(0), jnp.int32(trips), trip, (ahead, totals))
    for ref, total in zip(sums, totals, strict=True):
        d.store_sums(ref, i, total, PARTS)


def _in_memory(dtype: Any) -> Any:
    return jnp.dtype(jnp.int32) if dtype == jnp.bool_ else dtype
