"""Agreement between processes while a matrix is built, and threads within one process."""

import dataclasses
import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

from jaxsparse_fmt._types import CORES, standard_promotion, x64_enabled
from jaxsparse_fmt.kernels.backends import selection


def alone(mesh: Mesh) -> bool:
    """Whether this process has all devices of the mesh, and need not agree with others.

    Raises:
      ValueError: the mesh leaves out processes. JAX gathers over all processes, and would wait for those left out.
    """
    if jax.process_count() == 1:
        return True
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
    """The union of the dicts by shard that make() gives in each process of the mesh, in rising order of shards.

    All processes must call it.

    Raises:
      What make() raises in one process, all raise, so that none waits forever for one that has left.
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
    message = np.frombuffer(pickle.dumps((mine, _portable(failure))), np.uint8)
    size = np.frombuffer(np.int64(message.size).tobytes(), np.uint8)  # bytes have one length with and without x64
    sizes = np.asarray(multihost_utils.process_allgather(size)).reshape(-1, 8).view(np.int64)[:, 0]
    padded = np.pad(message, (0, int(sizes.max()) - message.size))
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


def agree(make: Callable[[], dict[str, Any]], mesh: Mesh) -> dict[str, Any]:
    """make(), after a check that its values, the backend in use and the length of words agree in all processes of the
    mesh, all of which must call this.

    Processes that disagree would wait for each other forever, or compute with parts of different matrices.

    Args:
      make: returns by name arrays, CSR matrices, dataclasses of them, and objects with a `repr`.

    Raises:
      ValueError: a value differs between two processes; all raise it.
      What make() raises in one process, all raise.
    """
    if alone(mesh):
        return make()
    made: dict[str, Any] = {}

    def described() -> dict[int, dict[str, str]]:
        made.update(make())
        decides = {"backend in use": selection.active_backend("auto"), "jax_enable_x64": x64_enabled()} | made
        return {jax.process_index(): dict(pair for item in decides.items() for pair in _described(*item))}

    (first, theirs), *others = everyones(described, mesh).items()
    for process, ours in others:
        for name, words in theirs.items():
            if ours[name] != words:
                raise ValueError(
                    f"the processes disagree on {name}: {words} in process {first}, {ours[name]} in process {process}; "
                    "pass the same to this function in all processes"
                )
    return made


def _described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The value, or each field of a dataclass, in words; for arrays a digest."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _described(field.name, getattr(value, field.name))
    elif isinstance(value, Mesh):
        yield name, f"{dict(value.shape)} of devices {_digest(value.device_ids)}"
    elif scipy.sparse.issparse(value):
        yield name, f"{value.shape} with {', '.join(map(_digest, (value.data, value.indices, value.indptr)))}"
    else:
        yield name, _digest(value) if isinstance(value, np.ndarray | jax.Array) else repr(value)


def _digest(a: Any) -> str:
    words = f"{a.dtype}{list(a.shape)}"
    if isinstance(a, jax.Array) and not a.is_fully_addressable:  # one array of all processes
        return words
    return f"{words} {hashlib.blake2b(np.ascontiguousarray(a).tobytes(), digest_size=4).hexdigest()}"


def _portable(error: Exception | None) -> Exception | None:
    """The error, or one with its text if the error cannot be pickled and read again."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # the error's constructor may raise anything
        return RuntimeError(f"{type(error).__name__}: {error}")


def of_each(f: Callable[[int], Any], parts: Iterable[int], mesh: Mesh) -> dict[int, Any]:
    """f(k) for each part k of this process, in threads; what f raises in one process, all processes raise."""
    made: dict[int, Any] = {}

    def make() -> dict[int, Any]:
        made.update(together(f, [*parts]))
        return {}

    everyones(make, mesh)
    return made


def together(f: Callable[[Any], Any], inputs: Sequence[Any]) -> dict[Any, Any]:
    """f of each input, by input, in threads with this thread's word length and backend; NumPy releases the GIL."""
    wide, backend, standard = x64_enabled(), selection.active_backend("auto"), standard_promotion(f)

    def with_settings(each: Any) -> Any:
        with jax.enable_x64(wide), selection.use_backend(backend):
            return standard(each)

    with ThreadPoolExecutor(CORES) as pool:
        return dict(zip(inputs, pool.map(with_settings, inputs), strict=True))
