"""A kernel for the updates of a tile's systems, which `core/lanes.py` lists chunk by chunk.

A block takes one tile, and one right-hand side of its systems; LANES neighbouring lanes take an update, one for each
system. No target occurs twice in a chunk, and no update of the chunk reads one. So a barrier after each chunk is
enough, and every run gives the same bits.

Traffic of an update: the target, read and written, and its sources, LANES numbers each; 16 bytes of indices.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.backends import launch, pairs, tuning
from jaxsparse_fmt.kernels.cpu.abi import LANES


def updated(
    out: Array,  # [tiles, places, LANES] or [tiles, n, p, LANES]; changed in place
    chunks: tuple[Array, ...],  # where each begins [chunks + 1]; targets, two sources and pivots [updates]
    backend: str,
    factors: Array | None = None,  # [tiles, places, LANES] of a solve
    first: int = 0,  # the place of its source 0
    is_scaled: bool = False,
) -> Array:
    """`out` after out[target] −= out[source]·out[other]/out[pivot] of a factorization, chunk after chunk.

    Of a solve factors[first + source]·out[other], times factors[pivot] if `is_scaled`.
    """
    tiles, places, p = out.shape[0], out.shape[1], out.shape[2] if out.ndim == 4 else 1
    starts, *indices = chunks
    size = pairs.reals(out.dtype) * max(out.size, 0 if factors is None else factors.size)
    block = tuning.lanes_block(tiles * p)
    kernel = functools.partial(
        updates_kernel,
        block=block,
        places=places,
        p=p,
        first=first,
        n_factors=0 if factors is None else factors.shape[1],
        chunks=len(starts) - 1,
        is_scaled=is_scaled,
        address_dtype=index_dtype(size),
    )
    inputs: dict[str, Any] = dict(
        zip(("starts", "target", "source", "other", "pivot"), (starts, *indices), strict=True)
    )
    inputs["factors"] = None if factors is None else factors.reshape(-1)
    outputs = {"out": out.reshape(-1)}
    (new,) = launch.launch(kernel, backend, block=block, blocks=tiles * p, inputs=inputs, outputs=outputs)
    return new.reshape(out.shape)


def updates_kernel(
    d,
    *,
    block: tuning.Block,
    places: int,
    p: int,
    first: int,
    n_factors: int,
    chunks: int,
    is_scaled: bool,
    address_dtype: Any,
    starts,  # [chunks + 1]
    target,  # [updates], and so source, other and pivot
    source,
    other,
    pivot,
    out,  # [tiles·places·p·LANES]
    factors=None,  # [tiles·n_factors·LANES]
):
    together, lane, program = jnp.int32(block.rows // LANES), d.lanes(), d.program_id()
    tile, column = lax.div(program, jnp.int32(p)).astype(address_dtype), lax.rem(program, jnp.int32(p))
    system, slot = lax.rem(lane, jnp.int32(LANES)), lax.div(lane, jnp.int32(LANES))

    def at(place):
        return ((tile * places + place.astype(address_dtype)) * p + column) * LANES + system

    def factor(place, live):
        return d.load(factors, (tile * n_factors + place.astype(address_dtype)) * LANES + system, live)

    def change(k, live):
        a, b = (d.load(ref, k, live) for ref in (source, other))
        value = d.load(out, at(b), live)
        if factors is None:
            return d.load(out, at(a), live) * (value / d.load(out, at(d.load(pivot, k, live)), live, 1))
        value = factor(a + jnp.int32(first), live) * value
        return value * factor(d.load(pivot, k, live), live) if is_scaled else value

    def chunk(c, carry):
        begin, end = d.load(starts, c), d.load(starts, c + 1)

        def trip(i, carry):
            new = []  # loaded before any is stored, so that their loads are in flight together
            for u in range(block.unroll):
                k = begin + (i * jnp.int32(block.unroll) + jnp.int32(u)) * together + slot
                live = k < end
                place = at(d.load(target, k, live))
                new.append((place, d.load(out, place, live) - change(k, live), live))
            for place, value, live in new:
                d.store(out, place, value, live)
            return carry

        step = together * jnp.int32(block.unroll)
        lax.fori_loop(jnp.int32(0), lax.div(end - begin + step - jnp.int32(1), step), trip, jnp.int32(0))
        d.barrier()
        return carry

    lax.fori_loop(jnp.int32(0), jnp.int32(chunks), chunk, jnp.int32(0))
