"""What all tests share: 64-bit JAX, eight devices on the CPU, kept programs, the rng, and skips.

Tests skip where what they need is absent, as a GPU or a folder of matrices.
"""

import gc
import os
import pathlib
from collections.abc import Iterator

# Read when JAX starts, so it is set before the first import. It costs nothing where one device is used.
_DEVICES = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()

# Two thirds of a run is XLA compiling: what is compiled once is kept, for the other processes of this run and for
# the next one. JAX's own thresholds would keep next to nothing of it.
_CACHE = pathlib.Path(__file__).parents[1] / ".pytest_cache"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# NumPy's oracles are small: a second thread would spin beside the other processes of this run, which inherit this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)

TESTS_SEEN = pytest.StashKey[int]()


def _gpus() -> int:
    try:
        return len(jax.devices("cuda"))
    except RuntimeError:  # no CUDA plugin, or no device behind it
        return 0


@pytest.hookimpl(tryfirst=True)  # pytest deselects by marks in this hook too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needed = {"gpu": 1, "multigpu": 2}
    marked = [(i, n) for i in items for mark, n in needed.items() if i.get_closest_marker(mark)]
    found = _gpus() if marked else 0
    for item, n in marked:
        if found < n:
            reason = f"needs {n} NVIDIA GPU{'s' * (n > 1)}; JAX sees {found}"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end; where the collector does not walk them, a run takes 6% less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)


@pytest.fixture
def plain_xla() -> Iterator[None]:
    """Products in plain XLA, whose ranking of formats does not depend on this machine's kernels."""
    from jaxsparse_fmt import use_backend

    with use_backend("xla"):
        yield


@pytest.fixture(autouse=True)
def room_for_programs(request):
    """Every compiled program maps memory, and Linux allows a process 65,530 maps; beyond, XLA's compiler crashes.

    One test makes up to 3,000; to count them takes 10 ms, so every tenth does.
    """
    yield
    request.session.stash[TESTS_SEEN] = seen = request.session.stash.get(TESTS_SEEN, 0) + 1
    if seen % 10 == 0 and _maps() > 20_000:
        jax.clear_caches()


def _maps() -> int:
    file = pathlib.Path("/proc/self/maps")
    return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.fixture
def compiled():
    """Programs compiled by XLA so far."""
    count = []

    def listen(event, *_, **__):
        if event.endswith("backend_compile_duration"):
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(count)
    jax.monitoring.unregister_event_duration_listener(listen)
