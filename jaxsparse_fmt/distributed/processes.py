"""Agreement between processes on what they are about to do, and threads within one process."""

import contextlib
import contextvars
import functools
import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Mesh

from jaxsparse_fmt._dtypes import x64_enabled
from jaxsparse_fmt._tracing import in_trace, is_concrete, standard_promotion
from jaxsparse_fmt._types import CORES
from jaxsparse_fmt.core import in_words
from jaxsparse_fmt.distributed import messages
from jaxsparse_fmt.kernels.backends import selection


def alone(mesh: Any) -> bool:
    """Whether this process has all devices of the mesh, and need not agree with others. What is no mesh has none.

    Raises:
      ValueError: the mesh leaves out processes. Messages go to all processes, which would wait for those left out.
    """
    if jax.process_count() == 1 or not isinstance(mesh, Mesh):
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

    All processes must call it, in the same operation. What make() raises in one, all raise.
    """
    if alone(mesh):
        return dict(sorted(make().items()))
    return _exchanged(lambda: ({}, make()))


def agree(make: Callable[[], dict[str, Any]], mesh: Mesh) -> dict[str, Any]:
    """make(), after a check that its values, the operation and its matrix, the backend in use and the length of words
    agree in all processes of the mesh, all of which must call this: after the checks of arguments, any of which may
    raise in one process alone, and before the first program that runs on all processes, which would wait for the one
    that has raised.

    make() returns by name arrays, CSR matrices, dataclasses, functions, pytrees, and objects with a `repr`. Processes
    exchange a digest, and the values in words only if digests differ: then all raise ValueError, in the same words.
    What make() raises in one process, all raise. Of an array that lies over several processes dtype and shape count,
    and where it was made if `named` knows; of any other its numbers, in a sum that its own device computes once.
    """
    if alone(mesh):
        return make()
    made: dict[str, Any] = {}

    def given() -> tuple[dict[str, Any], dict[int, Any]]:
        made.update(make())
        return {"backend in use": selection.in_use.value, "jax_enable_x64": x64_enabled()} | made, {}

    _exchanged(given)
    return made


def _exchanged(make: Callable[[], tuple[dict[str, Any], dict[int, Any]]]) -> dict[int, Any]:
    """The union of the second dicts that make() gives, if the first ones agree. All raise the error of the first
    process that has one, or one about the first value that differs.
    """
    words: dict[str, str] = {}
    mine: dict[int, Any] = {}
    failure = None
    try:
        compared, mine = make()
        operations = _operations.get()
        where = {"operation": ": ".join(name for name, _ in operations), "number of calls": _calls}
        where |= operations[-1][1] if operations else {}
        words.update(pair for item in (where | compared).items() for pair in in_words.described(*item))
    except Exception as error:
        failure = error
    digest = hashlib.blake2b(repr(words).encode(), digest_size=16).digest()
    answers = [pickle.loads(m) for m in messages.gathered(pickle.dumps((digest, _portable(failure), mine)))]
    for process, (_, error, _) in enumerate(answers):
        if error is not None:
            if failure is None or process != jax.process_index():
                error.add_note(f"in process {process}")
                failure = error
            failure.is_known_to_all = True  # pyright: ignore[reportAttributeAccessIssue]
            raise failure
    if len({digest for digest, *_ in answers}) > 1:
        raise _disagreement([pickle.loads(m) for m in messages.gathered(pickle.dumps(words))])
    whole: dict[int, Any] = {}
    for *_, theirs in answers:
        whole |= theirs
    return dict(sorted(whole.items()))


def _disagreement(of_all: list[dict[str, str]]) -> Exception:
    # Processes that call different functions have arguments of different names.
    first = of_all[0]
    process, name = next(
        (process, name)
        for process, words in enumerate(of_all)
        for name in first | words
        if first.get(name) != words.get(name)
    )
    one, other = (words.get(name, "nothing") for words in (first, of_all[process]))
    error: Any = ValueError(
        f"the processes disagree on {name}: {one} in process 0, {other} in process {process}; pass the same to this "
        "function in all processes, and call the same functions in the same order"
    )
    error.is_known_to_all = True
    return error


_operations: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("operations", default=())
_calls = 0  # of operations, so far


@contextlib.contextmanager
def failing_together(mesh: Mesh, operation: str, matrix: Any = None) -> Iterator[None]:
    """A context of an operation, perhaps on a matrix with these values. What is raised in it in one process, all raise
    at their next agreement; and they agree on the operation and the matrix.

    Inside a trace processes do not agree, since a program that one of them has kept is not traced again there.
    """
    global _calls
    if alone(mesh) or in_trace():
        yield
        return
    around = _operations.get()
    _calls += not around
    if matrix is not None and id(matrix) not in in_words.names:
        named(matrix)
    token = _operations.set((*around, (operation, {} if matrix is None else {"A": matrix})))
    try:
        yield
    except Exception as error:
        if getattr(error, "is_known_to_all", False):
            raise
        everyones(functools.partial(_raised, error), mesh)
    finally:
        _operations.reset(token)


def _raised(error: Exception) -> Any:
    raise error


_made = 0, 0  # the round after which arrays were last named, and how many were


def named(a: Any) -> Any:
    """`a`, an array over several processes, which make it by the same programs and compare its name afterwards.

    On CPUs it is ready: XLA runs programs in as many threads as there are cores, and after 32 programs of one device
    each further one holds a thread until an earlier one ends. If no thread is left, no program ends in any process.
    """
    global _made
    if jax.process_count() > 1 and is_concrete(a) and not a.is_fully_addressable:
        if jax.default_backend() == "cpu":
            a.block_until_ready()
        number = messages.rounds
        _made = number, _made[1] + 1 if _made[0] == number else 1
        in_words.note(a, f"number {_made[1]} after agreement {number}")
    return a


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
