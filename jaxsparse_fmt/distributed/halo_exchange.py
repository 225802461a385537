"""The exchange of a halo on the devices, in one of two ways; `halo.py` plans it.

permute      ppermutes in rounds, one for each distance of senders and receivers on the ring of all devices
all_to_all   one collective with a list for every pair, all as long as the longest

device 1:  | from 2        | from 0        |  permute, one round for each
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
from jaxsparse_fmt.distributed.delivery import Messages, delivered

Array = jax.Array


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The collective that exchanges a halo, and the lists of each device.

    Attributes:
      send: [parts, width] int32, the places of its piece of x that each device sends, list after list; inside shard_map
        the device's own row. None: nothing is exchanged.
      sizes: the length of the lists of each round; "all_to_all" is one round.
      pairs: the (source, target) pairs of each round; None: "all_to_all".
      width: places of the buffer.
    """

    send: Array | None = None
    sizes: tuple[int, ...] = _static(())
    pairs: tuple[tuple[tuple[int, int], ...], ...] | None = _static(())
    width: int = _static(0)

    @property
    def kind(self) -> str:
        return "all_to_all" if self.pairs is None else "permute"


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
    sent = x.at[how.send].get(mode="promise_in_bounds")
    if how.pairs is None:
        return lax.all_to_all(sent, axis, 0, 0, tiled=True)
    lists = jnp.split(sent, np.cumsum(how.sizes)[:-1].tolist())
    return jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(lists, how.pairs, strict=True)])


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
    sizes = how.sizes if how.pairs is not None else how.sizes * (how.width // how.sizes[0])
    lists = {k: np.split(a[np.asarray(send[k])], np.cumsum(sizes)[:-1]) for k, a in x.items()}

    def sent() -> Messages:
        if how.pairs is None:
            return {k: dict(enumerate(of)) for k, of in lists.items()}
        return {k: {t: lists[k][i] for i, of in enumerate(how.pairs) for s, t in of if s == k} for k in lists}

    senders = [{t: s for s, t in of} for of in how.pairs] if how.pairs is not None else None
    out = {}
    for k, of in delivered(sent, mesh).items():
        came = of.values()
        if senders is not None:
            came = [of[s[k]] if k in s else np.zeros(n, x[k].dtype) for s, n in zip(senders, sizes, strict=True)]
        out[k] = np.concatenate([*came])
    return out
