"""The exchange of a halo on the devices, by one of three kinds of collective; `halo.py` plans it.

permute      a ppermute for each distance between neighbours, as large as the longest list at that distance
all_to_all   one collective with a list for every pair, all as long as the longest
gather       one collective: every device sends all others what any of them needs (or all of its piece)

device 1:  | from 0        | from 2        |  permute, distances −1 and +1
           | 0 | 1 (unused)| 2 | 3         |  gather, the boundary of each
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array

KINDS = ("permute", "all_to_all", "gather")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The collective that exchanges a halo: static and hashable.

    Attributes:
      kind: one of `KINDS`, or "none".
      sizes: of the buffer's pieces: one for each distance ("permute"), or the one size that all have.
      distances: of a permute: piece i comes from device k + distances[i] to device k.
      pairs: of a permute: for each distance the (source, target) pairs.
      parts: devices.
      whole: a gather sends all of x, without a list.
    """

    kind: str
    sizes: tuple[int, ...] = ()
    distances: tuple[int, ...] = ()
    pairs: tuple[tuple[tuple[int, int], ...], ...] = ()
    parts: int = 1
    whole: bool = False

    @property
    def width(self) -> int:
        """Places of the buffer."""
        return sum(self.sizes) * (1 if self.kind == "permute" else self.parts)

    def before(self, part):
        """Places of the buffer whose unknowns precede those of device `part`, a number or traced."""
        if self.kind == "permute":
            return sum(size for size, distance in zip(self.sizes, self.distances, strict=True) if distance < 0)
        return part * sum(self.sizes)


def exchange(x: Array, send: Array | None, how: Exchange, axis: str) -> Array:
    """The halo buffer of this device, for use inside shard_map; linear in x, and JAX knows its transpose.

    Args:
      x: [m] or [m, p], the device's piece.
      send: [k] int32, the device's row of `Halo.send`.
      axis: the mesh axis.

    Returns:
      [width] or [width, p].
    """
    out = x if send is None else x.at[send].get(mode="promise_in_bounds")
    if how.kind == "gather":
        return lax.all_gather(out, axis, tiled=True)
    if how.kind == "all_to_all":
        return lax.all_to_all(out, axis, 0, 0, tiled=True)
    ends = np.cumsum(how.sizes)
    pieces = [out[end - size : end] for size, end in zip(how.sizes, ends, strict=True)]
    return jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(pieces, how.pairs, strict=True)])


def returned(h: Array, send: Array | None, how: Exchange, axis: str, n: int) -> Array:
    """The transpose of `exchange`: every device adds up what the others return to its piece [n] or [n, p].

    Written out for integers, for which JAX has no transposes.
    """
    if how.kind == "gather":
        out = lax.psum_scatter(h, axis, tiled=True)
    elif how.kind == "all_to_all":
        out = lax.all_to_all(h, axis, 0, 0, tiled=True)
    else:
        pieces = jnp.split(h, np.cumsum(how.sizes)[:-1])
        home = [tuple((target, source) for source, target in pairs) for pairs in how.pairs]
        out = jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(pieces, home, strict=True)])
    return out if send is None else jnp.zeros((n, *h.shape[1:]), h.dtype).at[send].add(out)


def exchange_on_host(x: np.ndarray, send: np.ndarray | None, how: Exchange, part: int) -> np.ndarray:
    """The result of `exchange` on device `part`, computed in NumPy from all pieces x [parts, m]."""
    if how.kind == "none":
        return x[part, :0]
    sent = x if send is None else np.take_along_axis(x, send, axis=1)
    if how.kind == "gather":
        return sent.reshape(-1)
    if how.kind == "all_to_all":
        return sent.reshape(how.parts, how.parts, -1)[:, part].reshape(-1)
    source = np.repeat(part + np.array(how.distances), how.sizes)
    return sent[np.clip(source, 0, how.parts - 1), np.arange(how.width)]  # clipped places are never read
