"""Several processes that begin together and end together, as Slurm or mpirun starts them.

Every other process holds a connection to process 0. The kernel closes the connection when a process dies, however busy
Python is, and after some unanswered probes when a host or the network fails. Process 0 passes messages on, so that no
other process needs a second connection.
"""

import atexit
import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxsparse_fmt._types import whole_number
from jaxsparse_fmt.kernels.backends import jax_versions

# The variables in which launchers store the number of this process and the number of processes.
LAUNCHERS = (
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
PATIENCE = 1  # second that an error waits: if a collective failed, the watch then knows which process is gone
INTRODUCTION = 5  # seconds that process 0 waits for the number of a process that has connected
GOODBYE = "goodbye"


def connect_processes(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None, *, timeout: int = 60
) -> None:
    """Makes this process one of several, by `jax.distributed.initialize`; if one fails or is killed, all end.

    Call it before any other function of JAX, in every process. Under Slurm and Open MPI 4's mpirun JAX finds all
    arguments. Under other launchers set JAX_COORDINATOR_ADDRESS, or pass `coordinator`; `process` and `processes` then
    come from JAX_PROCESS_ID and JAX_NUM_PROCESSES, from Open MPI or from PMI (MPICH, Intel MPI). Without arguments and
    without a launcher the process stays alone, so that the same program runs on one machine.

    An uncaught exception in one process ends all processes, which print its text. When a process is killed, the others
    print its number and end at once. All exit with code 1 and run no `atexit` handlers.

    Args:
      coordinator: "host:port", an address of process 0 that all can reach, and a free port.
      processes, process: how many processes there are, and the number of this one, from 0.
      timeout: seconds that a process waits for the others to start, and about the time in which the others end after
        a host or the network has failed.

    Raises:
      ValueError: this is one of several processes, without the address of process 0; or a number is invalid.
    """
    timeout = whole_number("timeout", timeout, 1)
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    number, of = (n if n is not None else k for n, k in zip((process, processes), _launcher(), strict=True))
    if coordinator is not None:
        process, processes = number, of
    peers: dict[int, socket.socket] = {}
    atexit.register(lambda: _tell(peers, GOODBYE))  # before JAX registers its handler, so called after it
    name = "this process" if coordinator is None else f"process {process} of {processes}"
    with _deadline(timeout, f"{name} did not meet the others at {coordinator or 'the address that JAX found'}"):
        try:
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                initialization_timeout=timeout + 10,
                heartbeat_timeout_seconds=2 * max(timeout, 10),
            )
        except ValueError as error:
            if coordinator is not None or "coordinator_address" not in str(error):
                raise
            if of is not None and of > 1:
                raise ValueError(
                    f"this is one of {of} processes, and the address of process 0 is unknown; set "
                    "JAX_COORDINATOR_ADDRESS to its host:port"
                ) from None
            return
        store, host, mine, count = jax_versions.coordination()
        peers |= _connected(store, host, mine, count, timeout)
    threading.Thread(target=_watch, args=(peers, count), daemon=True).start()
    sys.excepthook = _ending_all(peers, f"process {mine} of {count}", sys.excepthook)


def _launcher() -> list[int | None]:
    """The number of this process and the number of processes, as the launcher has set them."""

    def number(name: str) -> int | None:
        if name not in os.environ:
            return None
        try:
            return int(os.environ[name])
        except ValueError:
            raise ValueError(f"{name} must be a whole number; got {os.environ[name]!r}") from None

    found = next((names for names in LAUNCHERS if any(name in os.environ for name in names)), LAUNCHERS[0])
    return [number(name) for name in found]


@contextlib.contextmanager
def _deadline(seconds: int, what: str):
    """Ends this process with a message after `seconds`; JAX would abort with a stack trace."""
    cure = "is each of them started, with the same address and number of processes, and can that address be reached?"
    timer = threading.Timer(seconds, _end, [f"{what} within {seconds} s; {cure}"])  # a thread, since the main one waits
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _connected(store: Any, host: str, process: int, processes: int, timeout: int) -> dict[int, socket.socket]:
    """The connections of this process: process 0 has one to every other process, and the others one to process 0."""
    if process > 0:
        port = int(store.blocking_key_value_get("jaxsparse_fmt/watch", 1000 * timeout))
        peer = socket.create_connection((host, port), timeout)
        _tell({0: peer}, str(process))
        return {0: _watched(peer, timeout)}
    peers = {}
    with socket.create_server(("", 0), backlog=processes) as server:
        store.key_value_set("jaxsparse_fmt/watch", str(server.getsockname()[1]))
        while len(peers) < processes - 1:
            peer, _ = server.accept()
            peer.settimeout(INTRODUCTION)
            if (number := _heard(peer)).isdigit() and 0 < int(number) < processes:  # else no process of this run
                peers[int(number)] = _watched(peer, timeout)
    return peers


def _watched(peer: socket.socket, timeout: int) -> socket.socket:
    """A connection that fails about `timeout` seconds after its other end has stopped answering."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": max(timeout // 2, 1), "TCP_KEEPINTVL": max(timeout // 6, 1), "TCP_KEEPCNT": 3}
    for name, value in options.items():
        if hasattr(socket, name):  # not on every system
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer


def _watch(peers: dict[int, socket.socket], processes: int) -> None:
    with selectors.DefaultSelector() as waiting:
        for process, peer in peers.items():
            waiting.register(peer, selectors.EVENT_READ, process)
        while waiting.get_map():
            for key, _ in waiting.select():
                heard = _heard(peers[key.data])
                if heard == GOODBYE:
                    waiting.unregister(key.fileobj)
                    continue
                gone = f"process {key.data} of {processes} is gone: killed, or its host or the network failed"
                _tell(peers, heard or gone)
                _end(heard or gone)


def _ending_all(peers: dict[int, socket.socket], name: str, shown: Callable[..., Any]) -> Callable[..., Any]:
    """A `sys.excepthook` that ends all processes."""

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        time.sleep(PATIENCE)
        shown(kind, error, trace)
        _tell(peers, f"{name} ended with {kind.__name__}: {error}")
        os._exit(1)

    return hook


def _end(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    os._exit(1)


def _tell(peers: dict[int, socket.socket], text: str) -> None:
    for peer in peers.values():
        with contextlib.suppress(OSError):
            peer.sendall(json.dumps(text).encode() + b"\n")


def _heard(peer: socket.socket) -> str:
    """A line from the other end, or "" if that is gone; read byte by byte, so that `select` sees what follows."""
    line = b""
    with contextlib.suppress(OSError, ValueError):
        while not line.endswith(b"\n") and (byte := peer.recv(1)):
            line += byte
        return str(json.loads(line))
    return ""
