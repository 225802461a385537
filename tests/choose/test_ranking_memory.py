"""What the ranking takes where memory is short, and how it reads the free memory."""

import re
import types

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from benchmarks import suite
from jaxsparse_fmt._types import CsrArrays, readable_bytes
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.formats import building, memory
from tests.marks import few
from tests.oracle import assert_same_storage


def free(nbytes: float, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: int(nbytes))


def test_auto_takes_the_best_that_fits_the_free_memory(monkeypatch):
    S = jsf.gallery.elasticity(5)
    choices = sorted(ranking.rank(S, platform="gpu"), key=lambda c: -c.moved)  # the larger, the better
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: choices)
    smaller = next(c for c in choices if c.moved < choices[0].moved)
    free(ranking.ROOM * smaller.moved + 1, monkeypatch)
    A = jsf.from_scipy(S)
    best = next(c for c in choices if c.moved <= smaller.moved)
    assert (A.name, A.nbytes) == (best.format, pytest.approx(best.nbytes, rel=0.02))


@pytest.mark.parametrize("format", few(["auto", "tune"], 1))
def test_where_nothing_fits_the_memory_what_would_is_said(format, monkeypatch):
    S = jsf.gallery.elasticity(5)
    wide, narrow = (min(c.moved for c in ranking.rank(S, dtype)) for dtype in ("float64", "float32"))
    free(ranking.ROOM * (wide + narrow) / 2, monkeypatch)
    with pytest.raises(ValueError, match=r"at least [\d.]+ kB, in .* are free; dtype='float32', which rounds") as told:
        jsf.from_scipy(S, format)
    assert readable_bytes(narrow) in str(told.value)
    assert jsf.from_scipy(S, format, dtype="float32").dtype == np.float32
    free(1000, monkeypatch)
    with pytest.raises(ValueError, match=r"1 kB of memory are free; free some of it, or use a device with more$"):
        jsf.from_scipy(S, format)


def test_a_limit_too_low_says_which_would_do():
    S = jsf.gallery.elasticity(5)
    with pytest.raises(ValueError, match=r"max_bytes=10 allows none, max_bytes=(\d+) would") as told:
        jsf.from_scipy(S, max_bytes=10)
    enough = int(re.findall(r"max_bytes=(\d+) would", str(told.value))[0])
    assert jsf.from_scipy(S, max_bytes=enough).nbytes <= enough


def test_unknown_memory_rules_nothing_out(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: None)
    assert jsf.from_scipy(jsf.gallery.poisson(4)).name == ranking.rank(jsf.gallery.poisson(4))[0].format


def test_free_memory_is_the_device_s_the_host_s_or_the_container_s(monkeypatch, tmp_path):
    class Device:
        platform = "gpu"

        def memory_stats(self):
            return {"bytes_limit": 1000, "bytes_in_use": 300}

    monkeypatch.setattr(memory, "GROUP", tmp_path)
    host = memory.free()
    assert host is None or host > 10**6
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.of_host() is None or memory.of_host() > 10**6
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory.free() == 600
    (tmp_path / "memory.stat").write_text("anon 20\ninactive_file 100\nactive_file 30\n")
    assert memory.free() == 730
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   0 kB\n")
    assert memory.free() == 0
    monkeypatch.setattr(memory.jax, "local_devices", lambda: [Device()])
    assert memory.free() == 700


def test_auto_takes_what_fits_the_device_on_which_somebody_has_put_the_matrix(monkeypatch):
    first, second = jax.local_devices()[:2]
    S = jsf.gallery.elasticity(4)
    best, *_, least = sorted(ranking.rank(S, platform="gpu"), key=lambda c: -c.moved)
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: [best, least])
    limit = int(ranking.ROOM * least.moved) + 1
    stats = lambda self: {"bytes_limit": limit} if self == second else {"bytes_limit": 10**12}  # noqa: E731
    monkeypatch.setattr(type(first), "memory_stats", stats, raising=False)
    A = jsf.from_scipy(S, "csr")
    assert A.asformat("auto").name == best.format
    for B in (jax.device_put(A, second).asformat("auto"), jax.device_put(A, second).asformat("hll")):
        assert all(leaf.devices() == {second} and leaf.committed for leaf in jax.tree.leaves(B))
    assert jax.device_put(A, second).asformat("auto").name == least.format


def test_a_matrix_of_ours_is_ranked_for_its_backend_and_its_device(monkeypatch):
    S = jsf.gallery.elasticity(4)
    A = jsf.from_scipy(S, "csr", backend="numba")
    assert ranking.rank(A) == ranking.rank(S, backend="numba") == ranking.rank(S)
    assert ranking.rank(A, backend="xla") == ranking.rank(S, backend="xla") != ranking.rank(S)

    class Gpu:
        platform, device_kind, client = "gpu", "NVIDIA H200", types.SimpleNamespace(platform_version="cuda 13")

    A = jsf.from_scipy(S, "csr")
    monkeypatch.setattr(
        memory, "device", lambda *given: Gpu() if any(a is A for a in given) else jax.local_devices()[0]
    )
    assert ranking.rank(A) == ranking.rank(S, platform="gpu") != ranking.rank(S)
    assert ranking.rank(A, platform="cpu") == ranking.rank(S)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("S", [jsf.gallery.poisson(9), jsf.gallery.elasticity(3), suite.r_mat(9, 5_000)], ids="abc")
def test_an_accelerator_chooses_and_converts_what_lies_there(S, transpose, monkeypatch):
    """Nothing but samples and counts comes to the host; the choice and the storage are the host's."""
    platform, client = "gpu", types.SimpleNamespace(platform_version="cuda 13")
    gpu = types.SimpleNamespace(platform=platform, device_kind="NVIDIA H200", client=client, memory_stats=lambda: None)
    monkeypatch.setattr(memory, "device", lambda *_: gpu)
    expected = jsf.from_scipy(S, transpose=transpose)
    monkeypatch.setattr(building, "FEW", 0)
    monkeypatch.setattr(CsrArrays, "to_scipy", lambda csr: pytest.fail("the matrix came to the host"))
    assert_same_storage(jsf.from_scipy(S, transpose=transpose), expected)
