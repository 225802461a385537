"""Messages from shard to shard on the host while a matrix is built: a process receives only those that it needs."""

import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt.distributed.processes import everyones

Messages = dict[int, dict[int, Any]]  # by shard, then by the other shard


def delivered(make: Callable[[], Messages], mesh: Mesh) -> Messages:
    """The messages to each shard of this process, by rising sender; all processes must call this.

    They travel as bytes between one device of each process, in one round to the next process, one to that after it, and
    so on; rounds without messages are left out.

    Args:
      make: returns the messages from each shard of this process, by receiver: any objects that can be pickled.

    Raises:
      What make() raises in one process, all processes raise.
    """
    made: Messages = {}
    me = jax.process_index()

    def shards() -> dict[int, Any]:
        made.update(make())
        return {me: [*made]}

    has = everyones(shards, mesh)
    own = {t: {s: made[s][t] for s in made if t in made[s]} for t in made}
    if (count := len(has)) > 1:
        home = {s: process for process, of in has.items() for s in of}  # the last of those that have the shard
        packed: list[bytes] = []

        def lengths() -> dict[int, Any]:
            mine = {s: of for s, of in made.items() if home[s] == me}
            for of_one in has.values():
                to = {(s, t): m for s, of in mine.items() if s not in of_one for t, m in of.items() if t in of_one}
                packed.append(pickle.dumps(to) if to else b"")
            return {me: [*map(len, packed)]}

        told = everyones(lengths, mesh)
        for step in range(1, count):
            if size := max(told[process][(process + step) % count] for process in range(count)):
                source = (me - step) % count
                received = _moved(packed[(me + step) % count], size, step, mesh)[: told[source][me]]
                for (s, t), message in (pickle.loads(received) if received else {}).items():
                    own[t][s] = message
    return {t: dict(sorted(of.items())) for t, of in own.items()}


def to_owners(owner: np.ndarray, *arrays: np.ndarray) -> dict[int, Any]:
    """Splits arrays by the owner of each place, for `delivered`: {owner: its part of each array}."""
    return {t: tuple(a[owner == t] for a in arrays) for t in np.unique(owner).tolist()}


def _moved(message: bytes, size: int, step: int, mesh: Mesh) -> bytes:
    """The message, of at most `size` bytes, of the process `step` before this one; this one's goes `step` ahead."""
    first = {d.process_index: d for d in mesh.devices.flat}
    over = NamedSharding(Mesh([first[p] for p in sorted(first)], ("process",)), PartitionSpec("process"))
    given = np.zeros((1, 1 << (size - 1).bit_length()), np.uint8)  # so that few sizes are compiled
    given[0, : len(message)] = np.frombuffer(message, np.uint8)
    sent = jax.make_array_from_callback((len(first), given.shape[1]), over, lambda index: given)
    return np.asarray(_permuted(sent, step, over).addressable_shards[0].data).tobytes()


@functools.partial(jax.jit, static_argnums=(1, 2))
def _permuted(messages: jax.Array, step: int, over: NamedSharding) -> jax.Array:
    """The messages [processes, size] of one round, each at its receiver."""
    ring = [(k, (k + step) % over.mesh.size) for k in range(over.mesh.size)]
    permute = functools.partial(lax.ppermute, axis_name="process", perm=ring)
    return jax.shard_map(permute, mesh=over.mesh, in_specs=over.spec, out_specs=over.spec)(messages)
