"""What processes tell each other while a matrix is made, and what the threads of one do side by side."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsparse_fmt._types import x64_enabled


def alone(mesh: Mesh) -> bool:
    """Whether this process has all devices of the mesh, and so nobody to agree with.

    Raises:
      ValueError: the mesh leaves processes out. JAX gathers over all, and some would wait for those left out.
    """
    has, count = sorted({d.process_index for d in mesh.devices.flat}), jax.process_count()
    if has == [jax.process_index()]:
        return True
    if len(has) < count:
        raise ValueError(
            f"the mesh has devices of {len(has)} of {count} processes, of number {', '.join(map(str, has))}; make the "
            "mesh of the devices of all processes, jax.devices(), or of this one's alone, jax.local_devices()"
        )
    return False


def everyones(make: Callable[[], dict[int, Any]], mesh: Mesh) -> dict[int, Any]:
    """What the processes of the mesh know, by shard, from what make() gives each; rising. All of them must call it.

    Raises:
      Whatever make() raises in one of them, in all: others would wait forever for one that has left.
      ValueError: as `alone`.
    """
    if alone(mesh):
        return dict(sorted(make().items()))
    from jax.experimental import multihost_utils  # slow to import

    mine, failure = {}, None
    try:
        mine = make()
    except Exception as error:
        failure = error
    told = np.frombuffer(pickle.dumps((mine, _portable(failure))), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.array(told.size)))
    padded = np.pad(told, (0, int(sizes.max()) - told.size))
    of_process = np.asarray(multihost_utils.process_allgather(padded))
    if failure is not None:
        raise failure
    whole: dict[int, Any] = {}
    for process, (row, size) in enumerate(zip(of_process, sizes, strict=True)):
        of_one, failure = pickle.loads(row[:size].tobytes())
        if failure is not None:
            failure.add_note(f"in process {process}")
            raise failure
        whole |= of_one
    return dict(sorted(whole.items()))


def _portable(error: Exception | None) -> Exception | None:
    """The error, or where it does not survive the way its words."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the constructor of somebody's error raises
        return RuntimeError(f"{type(error).__name__}: {error}")


def together(f: Callable[[Any], Any], inputs: Sequence[Any]) -> list[Any]:
    """f of each, in threads, while NumPy lets others run. JAX's word length is a thread's own, and is handed on."""
    workers = min(len(inputs), os.cpu_count() or 1)
    if workers < 2:
        return [f(each) for each in inputs]
    wide = x64_enabled()

    def with_settings(each: Any) -> Any:
        with jax.enable_x64(wide):
            return f(each)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(with_settings, inputs))
