"""Messages from shard to shard on the host, and rows of matrices in them; a process receives only what it needs.

The rows of a shard are in canonical CSR with all columns, numbered as in `entries.py`.
"""

import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.distributed import messages
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.processes import alone, everyones, of_each

Pieces = dict[int, Csr]  # rows by shard
Messages = dict[int, dict[int, Any]]  # by shard, then by the other shard


def delivered(make: Callable[[], Messages], over: Distribution) -> Messages:
    """The messages to each shard of this process, by rising sender; all processes must call this.

    make() returns those from each shard of this process, by receiver: any objects that can be pickled. Those for other
    processes wait with JAX's coordination service until an agreement. What make() raises in one process, all raise.
    """
    made: Messages = {}
    me, holders, number = jax.process_index(), over.holders, messages.rounds

    def left() -> dict[int, Any]:
        made.update(make())
        sent = {s: to for s, to in made.items() if holders[s][-1] == me}  # by one of the processes with the shard
        for process in range(jax.process_count() if sent and not alone(over.mesh) else 0):
            lacks = {(s, t) for s in sent if process not in holders[s] for t in sent[s] if process in holders[t]}
            if lacks:
                messages.leave_for(process, number, pickle.dumps({(s, t): sent[s][t] for s, t in lacks}))
        return {}

    everyones(left, over.mesh)
    received = {t: {s: made[s][t] for s in made if t in made[s]} for t in made}
    for message in [] if alone(over.mesh) else messages.found(number):
        for (s, t), m in pickle.loads(message).items():
            received[t][s] = m
    return {t: dict(sorted(by_sender.items())) for t, by_sender in received.items()}


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
