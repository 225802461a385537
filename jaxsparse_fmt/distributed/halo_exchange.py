"""The exchange of a halo on the devices, by one of two kinds of collective; `halo.py` plans it.

permute      ppermutes in rounds: in each a device sends to at most one neighbour, and receives from at most one
all_to_all   one collective with a list for every pair, all as long as the longest

device 1:  | from 0        | from 2        |  permute, one round for each
           | 0 | 1 (unused)| 2 | 3         |  all_to_all

`lax.ragged_all_to_all` is not among them: XLA has it on GPUs alone, and on two H200s a step of cg took 1.65 times as
long with a prototype of it as with permutes (2026-11-25_scaling_2xh200.md, measured the day before, JAX 0.11.2).
"""

import collections
import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.distributed.delivery import delivered

Array = jax.Array

KINDS = ("permute", "all_to_all")


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The collective that exchanges a halo, and the lists of each device.

    Attributes:
      send: [parts, sum(sizes)] int32, the places of its piece of x that each device sends; None: nothing is exchanged.
        Inside shard_map, `send` and `order` are the device's own rows.
      order: [parts, width] int32, the index of each place of the buffer among the unknowns that a device receives;
        None: they are in order.
      kind: one of `KINDS`.
      sizes: the sizes of the lists that a device sends: one for each round ("permute"), or one that all lists have.
      pairs: for each round of a permute its (source, target) pairs.
      width: places of the buffer.
      before: [parts], how many places of each device's buffer belong to devices that precede it.
    """

    send: Array | None = None
    order: Array | None = None
    kind: str = _static("permute")
    sizes: tuple[int, ...] = _static(())
    pairs: tuple[tuple[tuple[int, int], ...], ...] = _static(())
    width: int = _static(0)
    before: tuple[int, ...] = _static(())

    def lists(self, part: int) -> tuple[dict[int, slice], dict[int, slice]]:
        """The slices of what device `part` sends to each other one, and of what it receives from each, by device."""
        if self.kind == "permute":
            return _lists(self.sizes, self.pairs)[part]
        (size,) = self.sizes
        each = {k: slice(k * size, (k + 1) * size) for k in range(len(self.before))}
        return each, each


@functools.lru_cache(maxsize=64)
def _lists(
    sizes: tuple[int, ...], pairs: tuple[tuple[tuple[int, int], ...], ...]
) -> dict[int, tuple[dict[int, slice], dict[int, slice]]]:
    """`Exchange.lists` of a permute, for every device that takes part."""
    of: dict[int, Any] = collections.defaultdict(lambda: ({}, {}))
    for size, end, pairs_of_round in zip(sizes, itertools.accumulate(sizes), pairs, strict=True):
        for source, target in pairs_of_round:
            of[source][0][target] = of[target][1][source] = slice(end - size, end)
    return of


def exchange(x: Array, how: Exchange, axis: Any) -> Array:
    """The halo buffer of this device, for use inside shard_map; linear in x, and JAX knows its transpose.

    Args:
      x: [m] or [m, p], the device's piece.
      axis: the mesh axis, or a tuple of them.

    Returns:
      [width] or [width, p].
    """
    if how.send is None:
        return x[:0]
    out = x.at[how.send].get(mode="promise_in_bounds")
    if how.kind == "all_to_all":
        return lax.all_to_all(out, axis, 0, 0, tiled=True)
    lists = jnp.split(out, np.cumsum(how.sizes)[:-1])
    h = jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(lists, how.pairs, strict=True)])
    return h if how.order is None else h.at[how.order].get(mode="promise_in_bounds")


def returned(h: Array, how: Exchange, axis: Any, n: int) -> Array:
    """The transpose of `exchange`: a device's piece [n] or [n, p] of the sum of what the others return.

    It serves integers too, for which JAX has no transposes.
    """
    if how.send is None:
        return jnp.zeros((n, *h.shape[1:]), h.dtype)
    if how.kind == "all_to_all":
        out = lax.all_to_all(h, axis, 0, 0, tiled=True)
    else:
        if how.order is not None:
            h = jnp.zeros((sum(how.sizes), *h.shape[1:]), h.dtype).at[how.order].add(h)
        lists = jnp.split(h, np.cumsum(how.sizes)[:-1])
        home = [tuple((target, source) for source, target in pairs) for pairs in how.pairs]
        out = jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(lists, home, strict=True)])
    return jnp.zeros((n, *h.shape[1:]), h.dtype).at[how.send].add(out)


def exchange_on_host(x: dict[int, np.ndarray], how: Exchange, mesh: Mesh) -> dict[int, np.ndarray]:
    """The buffers that `exchange` gives the devices of this process, made in NumPy; all processes must call this.

    Args:
      x: the pieces of this process's devices.
      how: with lists that can be indexed by the number of a device.
    """
    if (send := how.send) is None:
        return {k: a[:0] for k, a in x.items()}

    def sent() -> dict[int, dict[int, np.ndarray]]:
        lists = {k: x[k][np.asarray(send[k])] for k in x}
        return {k: {t: lists[k][at] for t, at in how.lists(k)[0].items()} for k in x}

    out = {}
    for k, received in delivered(sent, mesh).items():
        h = np.zeros(sum(how.sizes) if how.kind == "permute" else how.width, x[k].dtype)
        for s, at in how.lists(k)[1].items():
            h[at] = received[s]
        out[k] = h if how.order is None else h[np.asarray(how.order[k])]
    return out
