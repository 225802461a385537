"""The exchange of a halo on the devices, by one of three ways; `halo.py` plans it.

permute      ppermutes in rounds: in each a device sends to at most one neighbour, and receives from at most one
forward      fewer such rounds, in stages: devices forward what they received in earlier stages (`rounds.py`)
all_to_all   one collective with a list for every pair, all as long as the longest

device 1:  | from 0        | from 2        |  permute, one round for each
           | 0 | 1 (unused)| 2 | 3         |  all_to_all

`lax.ragged_all_to_all` is not among them: XLA has it on GPUs alone, and on two H200s a step of cg took 1.65 times as
long with a prototype of it as with permutes (2026-11-25_scaling_2xh200.md, measured the day before, JAX 0.11.2).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed.delivery import delivered

Array = jax.Array

Pairs = tuple[tuple[int, int], ...]

KINDS = ("permute", "forward", "all_to_all")


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The collective that exchanges a halo, and the lists of each device.

    Attributes:
      send: [parts, k] int32, the places of its piece of x that each device sends; None: nothing is exchanged. Inside
        shard_map all arrays are the device's own rows.
      forward: [parts, sum(sizes)] int32, the places of [x[send] | received so far] that each device sends; None: in
        the only stage it sends x[send].
      order: [parts, width] int32, the index of each place of the buffer among the unknowns that a device receives;
        None: they are in order.
      before: [parts, 1] int32, how many places of each device's buffer belong to devices that precede it.
      kind: one of `KINDS`.
      stages: for each stage its rounds, and for each round the size of its lists and its (source, target) pairs;
        "all_to_all" has one round, without pairs.
      width: places of the buffer.
    """

    send: Array | None = None
    forward: Array | None = None
    order: Array | None = None
    before: Array | None = None
    kind: str = _static("permute")
    stages: tuple[tuple[tuple[int, Pairs], ...], ...] = _static(())
    width: int = _static(0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each round's lists."""
        return tuple(size for rounds in self.stages for size, _ in rounds)


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
    sent, forward = x.at[how.send].get(mode="promise_in_bounds"), how.forward
    if how.kind == "all_to_all":
        return lax.all_to_all(sent, axis, 0, 0, tiled=True)
    received: list[Array] = []
    for rounds in how.stages:
        *ends, total = np.cumsum([size for size, _ in rounds]).tolist()
        out = sent
        if forward is not None:
            held = jnp.concatenate([sent, *received])
            out, forward = held.at[forward[:total]].get(mode="promise_in_bounds"), forward[total:]
        lists = jnp.split(out, ends)
        received += [lax.ppermute(a, axis, pairs) for a, (_, pairs) in zip(lists, rounds, strict=True)]
    h = jnp.concatenate(received)
    return h if how.order is None else h.at[how.order].get(mode="promise_in_bounds")


def returned(h: Array, how: Exchange, axis: Any, n: int) -> Array:
    """The transpose of `exchange`: a device's piece [n] or [n, p] of the sum of what the others return."""
    x = mesh_axes.varying(jnp.zeros((n, *h.shape[1:]), h.dtype), h)
    return jax.linear_transpose(lambda x: exchange(x, how, axis), x)(h)[0]


def exchange_on_host(x: dict[int, np.ndarray], how: Exchange, mesh: Mesh) -> dict[int, np.ndarray]:
    """The buffers that `exchange` gives the devices of this process, made in NumPy; all processes must call this.

    Args:
      x: the pieces of this process's devices.
      how: with lists that can be indexed by the number of a device.
    """
    if (send := how.send) is None:
        return {k: a[:0] for k, a in x.items()}
    held = {k: [a[np.asarray(send[k])]] for k, a in x.items()}
    if how.kind == "all_to_all":
        each = lambda: {k: dict(enumerate(np.split(a, how.width // how.sizes[0]))) for k, (a,) in held.items()}  # noqa: E731
        return {k: np.concatenate([*of.values()]) for k, of in delivered(each, mesh).items()}
    begin = 0
    for rounds in how.stages:
        *ends, total = np.cumsum([size for size, _ in rounds]).tolist()
        out = {k: a for k, (a, *_) in held.items()}
        if how.forward is not None:
            out = {k: np.concatenate(of)[how.forward[k][begin : begin + total]] for k, of in held.items()}
        lists: dict[int, dict[int, np.ndarray]] = {k: {} for k in x}
        for (size, pairs), end in zip(rounds, [*ends, total], strict=True):
            for s, t in pairs:
                if s in x:
                    lists[s][t] = out[s][end - size : end]
        got = delivered(lambda lists=lists: lists, mesh)
        for size, pairs in rounds:
            source = {t: s for s, t in pairs}
            for k, of in held.items():
                of.append(got[k][source[k]] if k in source else np.zeros(size, x[k].dtype))
        begin += total
    h = {k: np.concatenate(of) for k, (_, *of) in held.items()}
    return h if how.order is None else {k: a[np.asarray(how.order[k])] for k, a in h.items()}
