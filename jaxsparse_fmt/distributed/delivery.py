"""What travels from shard to shard on the host: messages, and rows of matrices. A process receives only what it needs.

The rows of a shard are in canonical CSR with all columns, numbered as in `entries.py`.
"""

import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy
from jax import lax
from jax.sharding import Mesh, NamedSharding

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.distributed.processes import everyones, of_each, of_processes, outside_traces, spread_message

Pieces = dict[int, Csr]  # rows by shard
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


def _moved(message: bytes, size: int, step: int, mesh: Mesh) -> bytes:
    """The message, of at most `size` bytes, of the process `step` before this one; this one's goes `step` ahead."""
    over, width = of_processes(mesh), 1 << (size - 1).bit_length()  # so that few sizes are compiled
    moved = lambda: _permuted(spread_message(message, width, over), step, over)  # noqa: E731
    return outside_traces(lambda: np.asarray(moved().addressable_data(0)).tobytes())


@functools.partial(jax.jit, static_argnums=(1, 2))
def _permuted(messages: jax.Array, step: int, over: NamedSharding) -> jax.Array:
    """The messages [processes, size] of one round, each at its receiver."""
    ring = [(k, (k + step) % over.mesh.size) for k in range(over.mesh.size)]
    permute = functools.partial(lax.ppermute, axis_name="process", perm=ring)
    return jax.shard_map(permute, mesh=over.mesh, in_specs=over.spec, out_specs=over.spec)(messages)


def needed(indices: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The halo of a device that owns [start, stop): the columns in `indices` outside that range, rising and unique."""
    return np.unique(indices[(indices < start) | (indices >= stop)])


def by_owner(needs: np.ndarray, starts: np.ndarray) -> dict[int, np.ndarray]:
    """The parts of a rising list of unknowns that each device owns; devices without any are left out."""
    owner = np.searchsorted(starts, needs, side="right") - 1
    owners, first = np.unique(owner, return_index=True)
    return dict(zip(owners.tolist(), np.split(needs, first)[1:], strict=True))


def fetched(wanted: dict[int, np.ndarray], B: Any, starts: np.ndarray, mesh: Mesh) -> Any:
    """The rows of B, matrices or arrays by shard, with the numbers that each shard wants, rising."""
    asked = delivered(lambda: {k: by_owner(rows, starts) for k, rows in wanted.items()}, mesh)
    sent = lambda: {k: {t: B[k][rows - starts[k]] for t, rows in of.items()} for k, of in asked.items()}  # noqa: E731
    of = delivered(sent, mesh)
    return of_each(lambda k: stacked(B[k][:0], *of[k].values()), of, mesh)


def stacked(*parts: Any) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
