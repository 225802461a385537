"""Messages from host to host through JAX's coordination service, by TCP.

No device takes part, so that messages need no order among the programs that run there. In a round every process leaves
one with the service, which process 0 hosts; process 0 leaves the list, from which all conclude the same:

    process 1   leaves its message              reads the list
    process 2   leaves its message              reads the list
    process 0   reads both, and leaves the list of all three

The devices gather longer messages, after a round, by a program of JAX's from the caller's thread: XLA runs the programs
of one thread in their order, which is the same in all processes, on CPUs and in the streams of GPUs.
"""

import atexit
import contextlib
import pickle
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._tracing import in_trace
from jaxsparse_fmt.kernels.backends import jax_versions

SHORT, MOST = 2**20, 2**24  # bytes of a message that the service takes, and of one that devices gather at a time
KEPT = 64  # rounds whose messages are deleted together, once all processes have read them
PATIENCE = 60  # seconds after which a process names the one for which it waits
LEFT = b"left"  # the last message of a process


class ProcessGone(RuntimeError):
    """Another process has ended, or cannot be reached."""

    is_known_to_all = is_of_lost_process = True


rounds = 0  # so far
_gone: list[ProcessGone] = []


def gathered(message: bytes) -> list[bytes]:
    """The messages of all processes, by number; all of them must call this."""
    sent = message if len(message) <= SHORT else len(message)
    received = [pickle.loads(part) for part in _in_one_round(pickle.dumps(sent))]
    sizes = [part if isinstance(part, int) else len(part) for part in received]
    if all(isinstance(part, bytes) for part in received):
        return received
    parts: list[list[bytes]] = [[] for _ in sizes]
    for begin in range(0, max(sizes), MOST):
        size = min(MOST, 1 << (max(sizes) - begin - 1).bit_length())  # so that few sizes are compiled
        rows = _by_devices(np.frombuffer(message[begin : begin + size].ljust(size, b"\0"), np.uint8))
        for part, row in zip(parts, rows, strict=True):
            part.append(row.tobytes())
    return [b"".join(part)[:size] for part, size in zip(parts, sizes, strict=True)]


def _by_devices(message: np.ndarray) -> np.ndarray:
    from jax.experimental.multihost_utils import process_allgather

    if not in_trace():
        return process_allgather(message)
    with ThreadPoolExecutor(1) as thread:  # where JAX knows neither the trace nor the mesh of the caller's context
        return thread.submit(process_allgather, message).result()


def _in_one_round(message: bytes) -> list[bytes]:
    """As `gathered`. ProcessGone, in all others: a process has ended before this round."""
    global rounds
    if _gone:
        raise _gone[0]
    if not rounds:
        atexit.register(_leave)
    number, me, count = rounds, jax.process_index(), jax.process_count()
    rounds += 1
    if me:
        _asked(0, "key_value_set_bytes", _key(number, me), message)
        of_all = _awaited(_key(number, 0), 0)
        messages = [of_all] if of_all == LEFT else pickle.loads(of_all) or count * [message]
    else:
        messages = [message, *(_awaited(_key(number, k), k) for k in range(1, count))]
        of_all = pickle.dumps(messages if len({*messages}) > 1 else None)
        _asked(0, "key_value_set_bytes", _key(number, 0), of_all)
        if number % KEPT == 0 and number:  # all messages of this round are here, so all before it were read
            _asked(0, "key_value_delete", f"jaxsparse/{number // KEPT - 1}/")
    if LEFT in messages:
        raise _lost(messages.index(LEFT), "it has left the program")
    return messages


def _key(number: int, process: int) -> str:
    return f"jaxsparse/{number // KEPT}/{number}/{process}"


def _leave() -> None:
    """Answers for this process, which ends, in the round that others may be in."""
    with contextlib.suppress(Exception):
        _asked(0, "key_value_set_bytes", _key(rounds, jax.process_index()), LEFT)


def _asked(of: int, name: str, *arguments: Any, may_be_late: bool = False) -> Any:
    """The service's answer; None if it has none in time. ProcessGone: the service, or process `of`, is gone."""
    try:
        return getattr(jax_versions.coordination_client(), name)(*arguments)
    except jax.errors.JaxRuntimeError as error:
        if may_be_late and "DEADLINE_EXCEEDED" in str(error):
            return None
        raise _lost(of, str(error)) from error


def _awaited(key: str, process: int) -> bytes:
    """The message of a process, however long it takes: it may compute, and JAX ends all others if it has died."""
    begin, told = time.monotonic(), False
    while (message := _asked(process, "blocking_key_value_get_bytes", key, 1000, may_be_late=True)) is None:
        if time.monotonic() - begin > PATIENCE and not told:  # a wait in parts, after which Python sees Ctrl-C
            told = True
            warnings.warn(f"waiting for process {process} since {PATIENCE} s", RuntimeWarning, stacklevel=2)
    return message


def _lost(process: int, why: str) -> ProcessGone:
    _gone.append(
        ProcessGone(
            f"process {process} of {jax.process_count()} is gone: {why}. Start all of them again, from the last "
            "checkpoint if there is one (examples/checkpoint.py)"
        )
    )
    return _gone[0]


def leave_for(process: int, number: int, message: bytes) -> None:
    """Leaves a message for a process, which `found` gives it after the next agreement, that of this number."""
    _asked(0, "key_value_set_bytes", f"jaxsparse/to/{process}/{number}/{jax.process_index()}", message)


def found(number: int) -> list[bytes]:
    """The messages left for this process, and forgets them."""
    folder = f"jaxsparse/to/{jax.process_index()}/{number}/"
    messages = [message for _, message in _asked(0, "key_value_dir_get_bytes", folder)]
    if messages:
        _asked(0, "key_value_delete", folder)
    return messages
