"""One pass over vectors: new vectors and sums from old ones, number by number, in one kernel.

What a Krylov method does beside its products is a few such passes; on a GPU its time is their traffic and their number.
XLA decides for itself what to fuse: it computes a residual twice rather than store it, and gives every reduction and
every handful of scalars a kernel of its own. Here a pass is what its author says:

    numbers     scalars, or [m] partial sums, which every block adds up for itself
    scalars     of `prepare(*numbers)`, computed by every block alike, returned once
    new         of `each(scalars, *vectors)`, written where the old ones are read
    sums        of the products that `each` gives as pairs, as 4 partial sums of each block

Traffic: each vector once. The order of every sum is fixed by n alone: runs repeat to the last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels import dialect

Array = jax.Array


class Pass(NamedTuple):
    """What a pass computes: static and hashable.

    Attributes:
      prepare: (*numbers) -> scalars.
      each: (scalars, *vectors) -> (new vectors, pairs of factors to sum).
    """

    prepare: Callable[..., tuple[Any, ...]]
    each: Callable[..., tuple[tuple[Any, ...], tuple[tuple[Any, Any], ...]]]


# Partial sums that a block leaves of each sum: the warps of a Mosaic block.
PARTS = dialect.LAUNCH.rows // dialect.LAUNCH.warp


def parts(n: int) -> int:
    """The partial sums that a pass over vectors of n leaves of each sum."""
    return PARTS * min(-(-n // dialect.LAUNCH.sweep_rows), dialect.LAUNCH.sweep_blocks)


def sweep_reference(numbers: tuple[Array, ...], vectors: tuple[Array, ...], what: Pass):
    """-> (new vectors, scalars, sums). Numbers and sums are scalars, or of [k] beside vectors of [n, k]."""
    scalars = what.prepare(*numbers)
    new, pairs = what.each(scalars, *vectors)
    return new, scalars, tuple(inner_product(a, b).real for a, b in pairs)


def inner_product(x: Array, y: Array) -> Array:
    """xᴴ·y, column by column."""
    return jnp.vdot(x, y) if x.ndim == 1 else jnp.sum(jnp.conj(x) * y, axis=0)


def sweep(numbers: tuple[Array, ...], vectors: tuple[Array, ...], what: Pass, backend: str):
    """As the reference, but numbers and sums may be partial; real vectors of one dtype."""
    n = vectors[0].shape[0]
    outs = jax.eval_shape(functools.partial(sweep_reference, what=what), *_totals(numbers, vectors))
    new, scalars, sums = outs
    block, count = dialect.sweep_block(backend), parts(n)
    struct = jax.ShapeDtypeStruct
    shapes = {f"new{i}": struct((n,), v.dtype) for i, v in enumerate(new)}
    shapes |= {f"scalar{i}": struct((1,), _in_memory(s.dtype)) for i, s in enumerate(scalars)}
    shapes |= {f"sum{i}": struct((count,), s.dtype) for i, s in enumerate(sums)}
    inputs = {f"number{i}": a.reshape(-1).astype(_in_memory(a.dtype)) for i, a in enumerate(numbers)}
    inputs |= {f"vector{i}": v for i, v in enumerate(vectors)}
    blocks = count // PARTS
    trips = -(-n // (blocks * block.rows * block.unroll))
    kernel = functools.partial(
        sweep_kernel,
        what=what,
        n=n,
        rows=block.rows,
        unroll=block.unroll,
        trips=trips,
        address_dtype=index_dtype(n + blocks * block.rows * block.unroll),
        is_bool=tuple(a.dtype == jnp.bool_ for a in numbers),
        counts=(len(numbers), len(vectors), len(new), len(scalars), len(sums)),
    )
    out = dialect.launch(
        kernel, backend, name="sweep_kernel", block=block, blocks=blocks, inputs=inputs, outputs=shapes
    )
    new_, scalars_, sums_ = (
        out[: len(new)],
        out[len(new) : len(new) + len(scalars)],
        out[len(new) + len(scalars) :],
    )
    return new_, tuple(a[0].astype(s.dtype) for a, s in zip(scalars_, scalars, strict=True)), sums_


def sweep_kernel(d, *, what: Pass, n, rows, unroll, trips, address_dtype, is_bool, counts, **refs):
    named = lambda kind, count: [refs[f"{kind}{i}"] for i in range(count)]  # noqa: E731
    numbers, vectors, new, scalars, sums = map(named, ("number", "vector", "new", "scalar", "sum"), counts)
    given = [d.total(ref) for ref in numbers]
    said = what.prepare(*(a != 0 if flag else a for a, flag in zip(given, is_bool, strict=True)))
    block, lanes = d.program_id(), d.lanes()
    first = lanes + block == 0
    for ref, value in zip(scalars, said, strict=True):
        d.store(ref, jnp.zeros_like(lanes), value.astype(ref.dtype), first)

    def trip(t, totals):
        at = [
            ((block.astype(address_dtype) * trips + t.astype(address_dtype)) * unroll + u) * rows + lanes
            for u in range(unroll)
        ]
        loaded = [[d.load(ref, idx, idx < n, 0) for ref in vectors] for idx in at]
        for idx, values in zip(at, loaded, strict=True):
            results, pairs = what.each(said, *values)
            for ref, value in zip(new, results, strict=True):
                d.store(ref, idx, value, idx < n)
            terms = [jnp.where(idx < n, a * b, jnp.zeros_like(a)) for a, b in pairs]
            totals = tuple(total + term for total, term in zip(totals, terms, strict=True))
        return totals

    totals = tuple(d.full(0, ref.dtype) for ref in sums)
    totals = lax.fori_loop(jnp.int32(0), jnp.int32(trips), trip, totals)
    for ref, total in zip(sums, totals, strict=True):
        d.store_sums(ref, block, total, PARTS)


def _totals(numbers, vectors):
    """The shapes that `prepare` and `each` see: every number a scalar, every vector one number."""
    scalar = lambda a: jax.ShapeDtypeStruct((), a.dtype)  # noqa: E731
    return tuple(map(scalar, numbers)), tuple(jax.ShapeDtypeStruct((1,), v.dtype) for v in vectors)


def _in_memory(dtype: Any) -> Any:
    return jnp.dtype(jnp.int32) if dtype == jnp.bool_ else dtype
