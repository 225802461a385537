"""Messages from shard to shard on the host while a matrix is built: a process receives only those that it needs."""

import functools
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt.distributed.processes import alone, everyones

Messages = dict[int, dict[int, Any]]  # by shard, then by the other shard


def delivered(make: Callable[[], Messages], mesh: Mesh) -> Messages:
    """The messages to each shard of this process, by rising sender; all processes must call this.

    All processes learn the sizes of all messages. The messages travel as bytes between one device of each process.

    Args:
      make: returns the messages from each shard of this process, by receiver: any objects that can be pickled.

    Raises:
      What make() raises in one process, all processes raise.
    """
    if alone(mesh):
        made = make()
        return {t: {s: made[s][t] for s in sorted(made) if t in made[s]} for t in made}
    made, packed, me = {}, {}, jax.process_index()

    def sizes() -> dict[int, Any]:
        made.update(make())
        packed.update({(s, t): pickle.dumps(message) for s, to in made.items() for t, message in to.items() if s != t})
        return {me: {s: {t: len(packed[s, t]) for t in sorted(to) if s != t} for s, to in made.items()}}

    told = everyones(sizes, mesh)
    home = {s: process for process, of in told.items() for s in of}  # the last of those that have the shard
    sent: dict[tuple[int, int], dict[tuple[int, int], int]] = {}  # by processes, then by shards: the size
    for s, process in sorted(home.items()):
        for t, size in told[process][s].items():
            for other in (p for p, of in told.items() if t in of and s not in of):
                sent.setdefault((process, other), {})[s, t] = size
    own = {t: {s: made[s][t] for s in made if t in made[s]} for t in made}
    for messages, received in _travelled(sent, packed, mesh):
        for (s, t), end in zip(messages, itertools.accumulate(messages.values()), strict=True):
            own[t][s] = pickle.loads(received[end - messages[s, t] : end])
    return {t: dict(sorted(of.items())) for t, of in own.items()}


def to_owners(owner: np.ndarray, *arrays: np.ndarray) -> dict[int, Any]:
    """Splits arrays by the owner of each place, for `delivered`: {owner: its part of each array}."""
    return {t: tuple(a[owner == t] for a in arrays) for t in np.unique(owner).tolist()}


def _travelled(sent: dict[tuple[int, int], dict[tuple[int, int], int]], packed: dict[tuple[int, int], bytes], mesh):
    """The messages that this process receives from each other one, paired with their bytes."""
    if not sent:
        return []
    me, pairs = jax.process_index(), np.array([*sent])
    total = np.array([sum(messages.values()) for messages in sent.values()])
    distances, number = np.unique((pairs[:, 1] - pairs[:, 0]) % jax.process_count(), return_inverse=True)
    longest = np.zeros(len(distances), np.int64)
    np.maximum.at(longest, number, total)
    first = {d.process_index: d for d in mesh.devices.flat}
    over = NamedSharding(Mesh([first[p] for p in sorted(first)], ("process",)), PartitionSpec("process"))
    longest = 1 << np.ceil(np.log2(longest)).astype(np.int64)  # so that few sizes are compiled
    given = [np.zeros((1, size), np.uint8) for size in longest]
    for (sender, _), messages, c in zip(sent, sent.values(), number, strict=True):
        if sender == me:
            message = b"".join(packed[pair] for pair in messages)
            given[c][0, : len(message)] = np.frombuffer(message, np.uint8)
    arrays = [jax.make_array_from_callback((len(first), a.shape[1]), over, lambda index, a=a: a) for a in given]
    ends = (tuple(map(tuple, pairs[number == c].tolist())) for c in range(len(longest)))
    moved = [_permuted(a, to, over) for a, to in zip(arrays, ends, strict=True)]
    received = [np.asarray(a.addressable_shards[0].data).tobytes() for a in moved]
    mine = [(messages, c) for (_, to), messages, c in zip(sent, sent.values(), number, strict=True) if to == me]
    return [(messages, received[c]) for messages, c in mine]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _permuted(messages: jax.Array, pairs: tuple[tuple[int, int], ...], over: NamedSharding) -> jax.Array:
    """The messages [processes, size] of one round, each with its receiver."""
    permute = functools.partial(lax.ppermute, axis_name="process", perm=pairs)
    return jax.shard_map(permute, mesh=over.mesh, in_specs=over.spec, out_specs=over.spec)(messages)
