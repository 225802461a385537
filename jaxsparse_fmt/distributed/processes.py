"""Agreement between processes while a matrix is built, and threads within one process."""

import contextlib
import dataclasses
import functools
import hashlib
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import scipy
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt._dtypes import x64_enabled
from jaxsparse_fmt._tracing import in_trace, standard_promotion
from jaxsparse_fmt._types import CORES
from jaxsparse_fmt.kernels.backends import selection


def alone(mesh: Mesh) -> bool:
    """Whether this process has all devices of the mesh, and need not agree with others.

    Raises:
      ValueError: the mesh leaves out processes. JAX gathers over all processes, and would wait for those left out.
    """
    if jax.process_count() == 1:
        return True
    processes, count = sorted({d.process_index for d in mesh.devices.flat}), jax.process_count()
    if processes == [jax.process_index()]:
        return True
    if len(processes) < count:
        raise ValueError(
            f"the mesh has devices of {len(processes)} of {count} processes, of number {', '.join(map(str, processes))}"
            "; make the mesh of the devices of all processes, jax.devices(), or of this one's alone, "
            "jax.local_devices()"
        )
    return False


def everyones(make: Callable[[], dict[int, Any]], mesh: Mesh) -> dict[int, Any]:
    """The union of the dicts by shard that make() gives in each process of the mesh, in rising order of shards.

    All processes must call it. What make() raises in one, all raise, so that none waits for one that has left.
    """
    if alone(mesh):
        return dict(sorted(make().items()))
    mine: dict[int, Any] = {}
    failure = None
    try:
        mine = make()
    except Exception as error:
        failure = error
    messages = gathered(pickle.dumps((mine, _portable(failure))), mesh)
    whole: dict[int, Any] = {}
    for process, message in messages.items():
        theirs, their_failure = pickle.loads(message)
        if failure is None and their_failure is not None:
            failure = their_failure
            failure.add_note(f"in process {process}")
        whole |= theirs
    if failure is not None:
        failure.is_known_to_all = True  # pyright: ignore[reportAttributeAccessIssue]
        raise failure
    return dict(sorted(whole.items()))


FIRST = 256  # bytes that travel in the first round
MOST = 2**24  # and in each other, which bounds the memory of a device


def gathered(message: bytes, mesh: Mesh) -> dict[int, bytes]:
    """The message of every process of the mesh, by process; all of them must call this."""
    first = _in_one_round((np.int64(len(message)).tobytes() + message)[:FIRST], FIRST, mesh)
    sizes = {process: int(np.frombuffer(part[:8], np.int64)[0]) for process, part in first.items()}
    found = {process: [part[8:]] for process, part in first.items()}
    longest = max(sizes.values())
    for begin in range(FIRST - 8, longest, MOST):
        size = min(MOST, 1 << (longest - begin - 1).bit_length())  # so that few sizes are compiled
        for process, part in _in_one_round(message[begin : begin + size], size, mesh).items():
            found[process].append(part)
    return {process: b"".join(parts)[: sizes[process]] for process, parts in found.items()}


def _in_one_round(message: bytes, size: int, mesh: Mesh) -> dict[int, bytes]:
    """The messages of all processes, each padded to this size."""
    over: Any = of_processes(mesh)
    rows = outside_traces(lambda: np.asarray(_copied(spread_message(message, size, over), over).addressable_data(0)))
    return {d.process_index: row.tobytes() for d, row in zip(over.mesh.devices, rows, strict=True)}


@functools.lru_cache(maxsize=8)
def of_processes(mesh: Mesh) -> NamedSharding:
    """The first device of each process of the mesh, in the order of the processes."""
    first = {d.process_index: d for d in mesh.devices.flat[::-1]}
    return NamedSharding(Mesh([first[process] for process in sorted(first)], ("process",)), PartitionSpec("process"))


def spread_message(message: bytes, size: int, over: NamedSharding) -> jax.Array:
    """The messages [processes, size], each on its process."""
    padded = np.frombuffer(message.ljust(size, b"\0"), np.uint8)[None]
    return jax.make_array_from_callback((over.mesh.size, size), over, lambda index: padded)


@functools.partial(jax.jit, static_argnums=1)
def _copied(messages: jax.Array, over: NamedSharding) -> jax.Array:
    return lax.with_sharding_constraint(messages, NamedSharding(over.mesh, PartitionSpec()))


_OUTSIDE = ThreadPoolExecutor(1, "jaxsparse-processes")


def outside_traces(f: Callable[[], Any]) -> Any:
    """f() in another thread, where JAX knows neither the trace nor the mesh of the caller's context."""
    return _OUTSIDE.submit(f).result()


def agree(make: Callable[[], dict[str, Any]], mesh: Mesh) -> dict[str, Any]:
    """make(), after a check that its values, the backend in use and the length of words agree in all processes of the
    mesh, all of which must call this: after the checks of arguments, any of which may raise in one process alone, and
    before the first program that runs on all processes, which would wait for the one that has raised.

    make() returns by name arrays, CSR matrices, dataclasses of them, and objects with a `repr`. Of an array on devices
    only dtype and shape are compared. Processes exchange a digest, and the values in words only if digests differ:
    then all raise ValueError. What make() raises in one process, all raise.
    """
    if alone(mesh):
        return make()
    made: dict[str, Any] = {}
    words: dict[str, str] = {}

    def digest() -> dict[int, bytes]:
        made.update(make())
        decides = {"backend in use": selection.in_use.value, "jax_enable_x64": x64_enabled()} | made
        words.update(pair for item in decides.items() for pair in _described(*item))
        return {jax.process_index(): hashlib.blake2b(repr(words).encode(), digest_size=16).digest()}

    if len({*everyones(digest, mesh).values()}) == 1:
        return made
    (first, theirs), *others = everyones(lambda: {jax.process_index(): words}, mesh).items()
    # Processes that call different functions have arguments of different names.
    differ = (
        (process, name, theirs.get(name, "nothing"), ours.get(name, "nothing"))
        for process, ours in others
        for name in theirs | ours
        if ours.get(name) != theirs.get(name)
    )
    process, name, of_first, of_other = next(differ)
    error: Any = ValueError(
        f"the processes disagree on {name}: {of_first} in process {first}, {of_other} in process {process}; pass the "
        "same to this function in all processes"
    )
    error.is_known_to_all = True
    raise error


@contextlib.contextmanager
def failing_together(mesh: Mesh) -> Iterator[None]:
    """A context in which an argument that one process refuses is refused by all, at their next agreement.

    Inside a trace processes do not agree, since a program that one of them has kept is not traced again there.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if getattr(error, "is_known_to_all", False) or alone(mesh) or in_trace():
            raise
        everyones(functools.partial(_raised, error), mesh)


def _raised(error: Exception) -> Any:
    raise error


def _described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The value, or each field of a dataclass, in words; for arrays a digest."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _described(field.name, vars(value)[field.name])
    elif isinstance(value, Mesh):
        yield name, f"{dict(value.shape)} of devices {_digest(value.device_ids)}"
    elif scipy.sparse.issparse(value):
        yield name, f"{value.shape} with {', '.join(map(_digest, (value.data, value.indices, value.indptr)))}"
    else:
        yield name, _digest(value) if isinstance(value, np.ndarray | jax.Array) else repr(value)


def _digest(a: Any) -> str:
    words = f"{a.dtype}{list(a.shape)}"
    if isinstance(a, jax.Array):
        return words
    message: Any = np.ascontiguousarray(a).view(np.uint8)
    return f"{words} {zlib.crc32(message):08x}"


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
    wide, backend, standard = x64_enabled(), selection.in_use.value, standard_promotion(f)

    def with_settings(each: Any) -> Any:
        with jax.enable_x64(wide), selection.use_backend(backend):
            return standard(each)

    with ThreadPoolExecutor(CORES) as pool:
        return dict(zip(inputs, pool.map(with_settings, inputs), strict=True))
