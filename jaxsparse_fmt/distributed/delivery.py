"""Messages from shard to shard on the host, and rows of matrices in them; a process receives only what it needs.

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
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.processes import everyones, of_each, of_processes, outside_traces, spread_message

Pieces = dict[int, Csr]  # rows by shard
Messages = dict[int, dict[int, Any]]  # by shard, then by the other shard


def delivered(make: Callable[[], Messages], over: Distribution) -> Messages:
    """The messages to each shard of this process, by rising sender; all processes must call this.

    make() returns those from each shard of this process, by receiver: any objects that can be pickled. They travel as
    bytes between one device of each process, in one round to the next process, one to that after it, and so on; rounds
    without messages are left out. What make() raises in one process, all processes raise.
    """
    made: Messages = {}
    packed: list[bytes] = []
    me, holders = jax.process_index(), over.holders

    def lengths() -> dict[int, Any]:
        made.update(make())
        sent = {s: to for s, to in made.items() if holders[s][-1] == me}  # by one of the processes with the shard
        for process in range(jax.process_count()):
            lacks = [(s, t) for s in sent if process not in holders[s] for t in sent[s] if process in holders[t]]
            packed.append(pickle.dumps({(s, t): sent[s][t] for s, t in lacks}) if lacks else b"")
        return {me: [*map(len, packed)]}

    size_of = everyones(lengths, over.mesh)
    received = {t: {s: made[s][t] for s in made if t in made[s]} for t in made}
    count = len(size_of)
    for step in range(1, count):
        if longest := max(size_of[process][(process + step) % count] for process in range(count)):
            message = _from_before(packed[(me + step) % count], longest, step, over.mesh)
            message = message[: size_of[(me - step) % count][me]]
            for (s, t), m in (pickle.loads(message) if message else {}).items():
                received[t][s] = m
    return {t: dict(sorted(by_sender.items())) for t, by_sender in received.items()}


def _from_before(message: bytes, longest: int, step: int, mesh: Mesh) -> bytes:
    """The message, of at most `longest` bytes, of the process `step` before this one; this one's goes `step` ahead."""
    over, width = of_processes(mesh), 1 << (longest - 1).bit_length()  # so that few sizes are compiled

    def permuted() -> bytes:
        return np.asarray(_permuted(spread_message(message, width, over), step, over).addressable_data(0)).tobytes()

    return outside_traces(permuted)


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


def fetched(wanted: dict[int, np.ndarray], B: Any, over: Distribution) -> Any:
    """The rows of the matrix B, by shard, with the numbers that each shard wants, rising."""
    starts = over.starts
    asked = delivered(lambda: {k: by_owner(rows, starts) for k, rows in wanted.items()}, over)

    def sent() -> Messages:
        return {k: {t: B[k][rows - starts[k]] for t, rows in by_asker.items()} for k, by_asker in asked.items()}

    rows = delivered(sent, over)
    return of_each(lambda k: stacked(B[k][:0], *rows[k].values()), rows, over.mesh)


def stacked(*parts: Csr) -> Csr:
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
