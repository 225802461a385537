"""Messages from host to host, by TCP and beside the devices, so that they need no order among the programs there.

Process 0 is connected with each of the others, which find it through JAX's coordination service. In a round it receives
a message from each, and sends them the list, from which all conclude the same:

    process 1   sends its message              receives the list
    process 2   sends its message              receives the list
    process 0   receives both, and sends the list of all three

A connection ends with its process, however that ends. The devices gather longer messages, after a round, by a program
of JAX's from the caller's thread, if that does not trace: XLA runs the programs of one thread in their order, which is
the same in all processes, on CPUs and in the streams of GPUs.
"""

import atexit
import contextlib
import functools
import pickle
import secrets
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._tracing import in_trace
from jaxsparse_fmt.kernels.backends import jax_versions

SHORT, MOST = 2**20, 2**26  # bytes of all messages: of a round between hosts, and that devices gather at a time
PATIENCE = 60  # seconds after which a process names those for which it waits


class ProcessGone(RuntimeError):
    """Another process has ended, or cannot be reached."""

    is_known_to_all = is_of_lost_process = True


rounds = 0  # so far
_gone: list[ProcessGone] = []


def gathered(message: bytes) -> list[bytes]:
    """The messages of all processes, by number; all of them must call this."""
    sent = message if len(message) * jax.process_count() <= SHORT else len(message)
    received = [pickle.loads(part) for part in _in_one_round(pickle.dumps(sent))]
    sizes = [part if isinstance(part, int) else len(part) for part in received]
    if all(isinstance(part, bytes) for part in received):
        return received
    parts: list[list[bytes]] = [[] for _ in sizes]
    most = MOST // len(sizes)
    for begin in range(0, max(sizes), most):
        size = min(most, 1 << (max(sizes) - begin - 1).bit_length())  # so that few sizes are compiled
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
    rounds += 1
    lines, count = {}, jax.process_count()
    try:
        lines = _lines()
        if jax.process_index():
            _send(lines[0], message)
            answer = _received(lines)
            answer = answer if isinstance(answer, int) else pickle.loads(answer[0])
        else:
            answer = _received(lines)
            if not isinstance(answer, int):
                of_all = [message, *(answer[k] for k in range(1, count))]
                answer = of_all if len({*of_all}) > 1 else None
            for line in lines.values():
                _send(line, pickle.dumps(answer))
    except BaseException:  # an interrupt, after which this process would take the answer of one round for another
        for line in lines.values():
            line.close()
        _lost(f"process {jax.process_index()} of {count} has left an agreement unfinished")
        raise
    if isinstance(answer, int):
        raise _lost(f"process {answer} of {count} is gone")
    return answer or count * [message]


@functools.cache
def _lines() -> dict[int, Connection]:
    """The connections of process 0 with all others, and of each other one with process 0."""
    me, count, (service, host) = jax.process_index(), jax.process_count(), jax_versions.coordination_service()
    if me:
        port, key = pickle.loads(service.blocking_key_value_get_bytes("jaxsparse/meeting", 10**8))
        line = Client((host, port), authkey=key)
        line.send(me)
        atexit.register(line.close)  # before JAX, which waits at the end of a process for all others
        return {0: line}
    key = secrets.token_bytes(32)
    here = host if host in ("localhost", "127.0.0.1") else ""  # no other host needs to reach it
    with Listener((here, 0), backlog=count, authkey=key) as listener:
        service.key_value_set_bytes("jaxsparse/meeting", pickle.dumps((listener.address[1], key)))
        lines: dict[int, Connection] = {}
        while len(lines) < count - 1:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):  # of one who does not know the key
                line = listener.accept()
                lines[line.recv()] = line
    for line in lines.values():
        atexit.register(line.close)
    return lines


def _send(line: Connection, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the other end has gone, as the next message that is awaited shows
        line.send_bytes(message)


def _received(lines: dict[int, Connection]) -> dict[int, bytes] | int:
    """The message of each process, however long it takes; or the number of one that has ended."""
    found: dict[int, bytes] = {}
    of_line, told = {line: k for k, line in lines.items()}, False
    while of_line:
        ready: Any = wait([*of_line], None if told else PATIENCE)
        if not ready:
            told = True
            warnings.warn(
                f"has waited {PATIENCE} s for processes {sorted(of_line.values())}, which have not made the same call",
                RuntimeWarning,
                stacklevel=2,
            )
        for line in ready:
            process = of_line.pop(line)
            try:
                found[process] = line.recv_bytes()
            except (EOFError, OSError):
                return process
    return found


def _lost(what: str) -> ProcessGone:
    _gone.append(
        ProcessGone(
            f"{what}; what it printed last says why. Start all processes again, from the last checkpoint if there is "
            "one (examples/checkpoint.py)"
        )
    )
    return _gone[0]


def leave_for(process: int, number: int, message: bytes) -> None:
    """Leaves a message for a process, which `found` gives it after the next agreement, that of this number."""
    service, _ = jax_versions.coordination_service()
    service.key_value_set_bytes(f"jaxsparse/to/{process}/{number}/{jax.process_index()}", message)


def found(number: int) -> list[bytes]:
    """The messages left for this process, and forgets them."""
    service, folder = jax_versions.coordination_service()[0], f"jaxsparse/to/{jax.process_index()}/{number}/"
    messages = [message for _, message in service.key_value_dir_get_bytes(folder)]
    if messages:
        service.key_value_delete(folder)
    return messages
