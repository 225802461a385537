"""The exchange of a halo on the devices, by one of four kinds of collective; `halo.py` plans it.

permute      ppermutes in rounds: in each a device sends to at most one neighbour, and receives from at most one
all_to_all   one collective with a list for every pair, all as long as the longest
ragged       one collective with a list for every pair, each of its own length; XLA has it on GPUs alone
gather       one collective: every device receives all of x

device 1:  | from 0        | from 2        |  permute, one round for each
           | from 0 | from 2 |                ragged
           | 0 | 1 (unused)| 2 | 3         |  gather
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed.delivery import delivered

Array = jax.Array

KINDS = ("permute", "all_to_all", "ragged", "gather")


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The collective that exchanges a halo, and the lists of each device.

    Attributes:
      send: [parts, sum(sizes)] int32, the places of its piece of x that each device sends; None: it sends none, or all.
        Inside shard_map, `send`, `order` and `runs` are the device's own rows.
      order: [parts, width] int32, the index of each place of the buffer among the unknowns that a device receives;
        None: they are in order.
      runs: [parts, 6·parts] int32, for a ragged exchange the first place and the length of the run that a device sends
        to each other one, and the place where it arrives there; then the same for what it receives, and the place where
        the sender has it. None: another kind.
      kind: one of `KINDS`, or "none".
      sizes: the sizes of the lists that a device sends: one for each round ("permute"), one for all together
        ("ragged"), or one that all lists have.
      pairs: for each round of a permute its (source, target) pairs.
      width: places of the buffer.
      before: [parts], how many places of each device's buffer belong to devices that precede it.
    """

    send: Array | None = None
    order: Array | None = None
    runs: Array | None = None
    kind: str = _static("none")
    sizes: tuple[int, ...] = _static(())
    pairs: tuple[tuple[tuple[int, int], ...], ...] = _static(())
    width: int = _static(0)
    before: tuple[int, ...] = _static(())

    def lists(self, part: int) -> tuple[dict[int, slice], dict[int, slice]]:
        """The slices of what device `part` sends to each other one, and of what it receives from each, by device."""
        if self.kind == "permute":
            return _lists(self.sizes, self.pairs)[part]
        if self.runs is not None:
            start, size, _, at, received, _ = np.reshape(self.runs[part], (6, -1)).tolist()
            return _slices(start, size), _slices(at, received)
        size = sum(self.sizes)
        each = {k: slice(k * size, (k + 1) * size) for k in range(len(self.before))}
        return (dict.fromkeys(each, slice(0, size)) if self.kind == "gather" else each), each


def _slices(starts: list[int], sizes: list[int]) -> dict[int, slice]:
    return {k: slice(start, start + size) for k, (start, size) in enumerate(zip(starts, sizes, strict=True)) if size}


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


def exchange(x: Array, how: Exchange, axis: str) -> Array:
    """The halo buffer of this device, for use inside shard_map; linear in x, and JAX knows its transpose.

    Args:
      x: [m] or [m, p], the device's piece.
      axis: the mesh axis.

    Returns:
      [width] or [width, p].
    """
    out = x if how.send is None else x.at[how.send].get(mode="promise_in_bounds")
    if how.kind == "gather":
        return lax.all_gather(out, axis, tiled=True)
    if how.kind == "all_to_all":
        return lax.all_to_all(out, axis, 0, 0, tiled=True)
    if how.kind == "ragged":
        return ragged_p.bind(*mesh_axes.varying((out, _runs(how))), width=how.width, axis=axis)
    lists = jnp.split(out, np.cumsum(how.sizes)[:-1])
    h = jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(lists, how.pairs, strict=True)])
    return h if how.order is None else h.at[how.order].get(mode="promise_in_bounds")


def returned(h: Array, how: Exchange, axis: str, n: int) -> Array:
    """The transpose of `exchange`: a device's piece [n] or [n, p] of the sum of what the others return.

    It serves integers too, for which JAX has no transposes.
    """
    if how.kind == "gather":
        return lax.psum_scatter(h, axis, tiled=True)
    if how.kind == "all_to_all":
        out = lax.all_to_all(h, axis, 0, 0, tiled=True)
    elif how.kind == "ragged":
        out = ragged_p.bind(*mesh_axes.varying((h, _home(_runs(how)))), width=sum(how.sizes), axis=axis)
    else:
        if how.order is not None:
            h = jnp.zeros((sum(how.sizes), *h.shape[1:]), h.dtype).at[how.order].add(h)
        lists = jnp.split(h, np.cumsum(how.sizes)[:-1])
        home = [tuple((target, source) for source, target in pairs) for pairs in how.pairs]
        out = jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(lists, home, strict=True)])
    return jnp.zeros((n, *h.shape[1:]), h.dtype).at[how.send].add(out)


def _runs(how: Exchange) -> Array:
    """[6, parts], the runs of this device."""
    assert how.runs is not None
    return how.runs.reshape(6, -1)


def _home(runs: Array) -> Array:
    """The runs of the way back."""
    return jnp.roll(runs, 3, axis=0)


def _ragged(a: Array, runs: Array, *, width: int, axis: str) -> Array:
    """[width, ...] the runs that the devices send one another, and zeros where none arrives."""
    out = mesh_axes.varying(jnp.zeros((width, *a.shape[1:]), a.dtype), a)
    start, size, to, _, received, _ = runs
    return lax.ragged_all_to_all(a, out, start, size, to, received, axis_name=axis)


# JAX's own primitive has no batching for runs that all of a batch share (0.10 and 0.11), and exchanges the places of
# the runs anew in its transpose.
ragged_p = Primitive("ragged_exchange")
ragged_p.def_abstract_eval(lambda a, runs, *, width, axis: a.update(shape=(width, *a.shape[1:])))
mlir.register_lowering(ragged_p, mlir.lower_fun(_ragged, multiple_results=False))


def _ragged_jvp(primals: Any, tangents: Any, **how: Any) -> Any:
    moved = functools.partial(ragged_p.bind, **how)
    (a, runs), (slope, _) = primals, tangents
    return moved(a, runs), moved(ad.instantiate_zeros(slope), runs)


def _ragged_transpose(cotangent: Any, a: Any, runs: Array, *, width: int, axis: str) -> Any:
    del width
    return ragged_p.bind(ad.instantiate_zeros(cotangent), _home(runs), width=a.aval.shape[0], axis=axis), None


def _ragged_batched(operands: Any, places: Any, **how: Any) -> Any:
    (a, runs), (place, _) = operands, places
    return ragged_p.bind(jnp.moveaxis(a, place, -1), runs, **how), a.ndim - 1


ad.primitive_jvps[ragged_p] = _ragged_jvp
ad.primitive_transposes[ragged_p] = _ragged_transpose
batching.primitive_batchers[ragged_p] = _ragged_batched


def exchange_on_host(x: dict[int, np.ndarray], how: Exchange, mesh: Mesh) -> dict[int, np.ndarray]:
    """The buffers that `exchange` gives the devices of this process, made in NumPy; all processes must call this.

    Args:
      x: the pieces of this process's devices.
      how: with lists that can be indexed by the number of a device.
    """

    def sent() -> dict[int, dict[int, np.ndarray]]:
        lists = x if how.send is None else {k: x[k][np.asarray(how.send[k])] for k in x}
        return {k: {t: lists[k][at] for t, at in how.lists(k)[0].items()} for k in x}

    out = {}
    for k, received in delivered(sent, mesh).items():
        h = np.zeros(sum(how.sizes) if how.kind == "permute" else how.width, x[k].dtype)
        for s, at in how.lists(k)[1].items():
            h[at] = received[s]
        out[k] = h if how.order is None else h[np.asarray(how.order[k])]
    return out
