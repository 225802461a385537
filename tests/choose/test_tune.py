"""format="tune": the fastest is taken, remembered, and no file can do harm."""

import json
import os
import pathlib
import types
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._types import Target, exposed
from jaxsparse_fmt.choose import ranking, tune
from jaxsparse_fmt.formats import building, memory

S = jsf.gallery.poisson(5)
X = np.arange(S.shape[1]) / 8.0


@pytest.fixture
def file(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jaxsparse" / "tuned.json"


@pytest.fixture(autouse=True)
def plain_xla():
    """In which "hll" is among the first few for `S`."""
    with jsf.use_backend("xla"):
        yield


@pytest.fixture
def clock(monkeypatch) -> list[str]:
    """Products that seem to take long, but for "hll"; and the formats that were timed."""
    timed: list[str] = []

    def seconds(A: jsf.SparseMatrix) -> float:
        timed.append(A.name)
        return 1e-3 if A.name == "hll" else 1.0

    monkeypatch.setattr(tune, "seconds_per_product", seconds)
    return timed


def test_the_fastest_of_the_first_few_is_taken_and_right(file, clock):
    A = jsf.from_scipy(S, "tune")
    few = list(dict.fromkeys(c.format for c in ranking.rank(S)))[: tune.CANDIDATES]
    assert "hll" in few and clock == few and A.name == "hll"
    np.testing.assert_allclose(A @ X, S @ X)


def test_a_real_clock_finds_one_too(file):
    A = jsf.from_scipy(jsf.gallery.poisson(4), "tune", dtype="float32")
    (answer,) = json.loads(file.read_text())["fastest"].values()
    assert answer["format"] == A.name and 0 < answer["seconds"] < 1


def test_the_second_time_nothing_is_timed_whatever_the_values(file, clock):
    first = jsf.from_scipy(S, "tune")
    clock.clear()
    second = jsf.from_scipy(2 * S, "tune")
    assert clock == [] and (second.name, second.layout) == (first.name, first.layout)
    np.testing.assert_allclose(second @ X, 2 * (S @ X))


@pytest.mark.parametrize(
    "other",
    [
        lambda: jsf.from_scipy(S, "tune", dtype="float32"),
        lambda: jsf.from_scipy(S, "tune", backend="numba"),
        lambda: jsf.from_scipy(S, "tune", max_bytes=10**9),
        lambda: jsf.from_scipy(sp.csr_array(S[::-1]), "tune"),
        lambda: jsf.from_scipy(jsf.gallery.poisson((5, 5, 4)), "tune"),
    ],
    ids=["dtype", "backend", "limit", "pattern", "shape"],
)
def test_another_question_is_measured_anew(file, clock, other):
    jsf.from_scipy(S, "tune")
    clock.clear()
    other()
    assert clock


def test_blocks_come_back_as_blocks(file, clock, monkeypatch):
    bsr = ranking.Choice("bsr", {"block_shape": (3, 3)}, 1, 1, 1.0, "", 1.0)
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: [bsr])
    E = jsf.gallery.elasticity(2)
    assert [jsf.from_scipy(E, "tune").layout for _ in range(2)] == [{"block_shape": (3, 3)}] * 2 and clock == ["bsr"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"version": VERSION, "fastest": 3}',
        b'{"version": 99, "fastest": {"SIGNATURE": ANSWER}}',
        b'{"version": VERSION, "fastest": {"SIGNATURE": null}}',
        b'{"version": VERSION, "fastest": {"SIGNATURE": {}}}',
        b'{"version": VERSION, "fastest": {"SIGNATURE": {"format": "csr", "layout": {}}}}',
        *(
            b'{"version": VERSION, "fastest": {"SIGNATURE": {"nbytes": 1, "moved": 1, "seconds": 1.0, %s}}}' % what
            for what in (
                b'"format": "nonsense", "layout": {}',
                b'"format": "hll", "layout": {"slice_size": -3}',
                b'"format": "hll", "layout": {"dtype": "float16", "slice_size": 0}',
                b'"format": ["hll"], "layout": {}',
                b'"format": "hll", "layout": []',
                b'"format": "tune", "layout": {}',
                b'"format": "auto", "layout": {}',
                b'"format": "csr", "layout": {"threads_per_row": "2"}',
                b'"format": "csr", "layout": {"threads_per_row": true}',
                b'"format": "csr", "layout": {"threads_per_row": [2]}',
                b'"format": "csr", "layout": {"dtype": "float16"}',
                b'"format": "bsr", "layout": {"block_shape": [3]}',
                b'"format": "bsr", "layout": {"block_shape": 3}',
                b'"format": "csr5", "layout": {"tile_shape": {"a": 1}}',
                b'"format": "hll", "layout": {}, "more": 1',
            )
        ),
        *(
            b'{"version": VERSION, "fastest": {"SIGNATURE": {"format": "csr", "layout": {}, %s}}}' % what
            for what in (
                b'"nbytes": "1", "moved": "1", "seconds": "1"',
                b'"nbytes": 1, "moved": 1, "seconds": NaN',
                b'"nbytes": 1, "moved": 1, "seconds": -1',
                b'"nbytes": 1, "moved": true, "seconds": 1.0',
                b'"nbytes": 1, "moved": 1',
            )
        ),
        b"[" * 100_000,
    ],
)
def test_a_broken_file_counts_as_empty_and_is_mended(file, clock, content):
    jsf.from_scipy(S, "tune")
    ((signature, answer),) = json.loads(file.read_text())["fastest"].items()
    clock.clear()
    content = content.replace(b"SIGNATURE", signature.encode()).replace(b"VERSION", str(tune.VERSION).encode())
    file.write_bytes(content.replace(b"ANSWER", json.dumps(answer | {"format": "csr", "layout": {}}).encode()))
    assert jsf.from_scipy(S, "tune").name == "hll" and clock
    assert json.loads(file.read_text())["fastest"][signature]["format"] == "hll"


def test_a_layout_comes_back_from_the_file_as_it_was():
    for matrix in (S, jsf.gallery.elasticity(2), jsf.gallery.power_law(300)):
        for platform in ("cpu", "gpu"):
            for c in ranking.rank(matrix, platform=platform):
                answer = {"format": c.format, "layout": c.layout, "nbytes": c.nbytes, "moved": c.moved, "seconds": 1e-6}
                assert tune._choice(**json.loads(json.dumps(answer))).layout == c.layout


@pytest.mark.parametrize("kind", ["folder", "pipe", "large"])
def test_what_is_no_file_of_answers_is_not_read(kind, tmp_path, monkeypatch):
    path = tmp_path / "tuned.json"
    monkeypatch.setattr(tune, "LARGEST", 5)
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "large": lambda: path.write_text("{}" * 3)}[kind]()
    assert tune._read(path) == {}


def test_what_others_have_written_stays(file, clock):
    jsf.from_scipy(S, "tune")
    jsf.from_scipy(jsf.gallery.poisson(3), "tune")
    assert len(json.loads(file.read_text())["fastest"]) == 2
    assert [p.name for p in file.parent.iterdir()] == ["tuned.json"]  # no scratch file is left


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows does not tell by modes who may write")
def test_machine_code_may_lie_beside_the_answers_whatever_the_umask_was(file, clock):
    before = os.umask(0)
    try:
        jsf.from_scipy(S, "tune")
    finally:
        os.umask(before)
    assert file.exists() and exposed(file.parent) == ""


def test_only_the_newest_answers_are_kept(file, clock, monkeypatch):
    monkeypatch.setattr(tune, "KEPT", 1)
    jsf.from_scipy(S, "tune")
    (first,) = json.loads(file.read_text())["fastest"]
    jsf.from_scipy(jsf.gallery.poisson(3), "tune")
    (second,) = json.loads(file.read_text())["fastest"]
    assert first != second


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, clock):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be remembered"):
        assert jsf.from_scipy(S, "tune").name == "hll"


def test_a_folder_that_may_only_be_read_costs_a_warning_and_loses_nothing(file, clock, monkeypatch):
    jsf.from_scipy(S, "tune")
    before = file.read_bytes()

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tune, "write_whole", refused)
    with pytest.warns(UserWarning, match="cannot be remembered"):
        assert jsf.from_scipy(jsf.gallery.poisson(3), "tune").name == "hll"
    clock.clear()
    assert jsf.from_scipy(S, "tune").name == "hll" and clock == [] and file.read_bytes() == before


def test_writers_at_the_same_time_leave_a_whole_file(file):
    answers = [f"matrix {k}" for k in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: tune._remember(file, name, {"format": "csr"}), answers))
    kept = json.loads(file.read_text())["fastest"]
    assert kept and set(kept) <= set(answers)  # some may be lost, none is half written
    assert [p.name for p in file.parent.iterdir()] == ["tuned.json"]


def test_what_no_longer_fits_the_memory_is_measured_anew(file, clock, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: 10**9)
    hll = jsf.from_scipy(S, "tune")
    choices = {c.format: c for c in ranking.rank(S)}
    monkeypatch.setattr(memory, "free", lambda: int(choices["hll"].moved * ranking.ROOM) - 1)
    assert jsf.from_scipy(S, "tune").nbytes < hll.nbytes and clock.count("hll") == 1


def test_the_context_s_backend_is_another_question(file, clock):
    jsf.from_scipy(S, "tune")
    clock.clear()
    with jsf.use_backend("numba"):
        jsf.from_scipy(S, "tune")
    assert clock
    clock.clear()
    assert jsf.from_scipy(S, "tune", backend="numba").backend == "numba" and clock == []


@pytest.mark.parametrize("backend", ["auto", "interpret"])  # jnp, and kernels
def test_inside_jit_it_is_measured_and_right(backend, file):
    y = jax.jit(lambda x: jsf.from_scipy(S, "tune", backend=backend) @ x)(X)
    np.testing.assert_allclose(y, S @ X)
    assert file.exists()


def test_memory_that_runs_out_while_measuring_rules_a_format_out(file, monkeypatch):
    def seconds(A: jsf.SparseMatrix) -> float:
        if A.name != "csr":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return 1.0

    few = [c for c in ranking.rank(S) if c.format in ("ell", "csr")]
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: few)
    monkeypatch.setattr(tune, "seconds_per_product", seconds)
    assert jsf.from_scipy(S, "tune").name == "csr"


def test_a_mistake_of_a_conversion_or_a_kernel_is_not_taken_for_a_refusal(file, clock, monkeypatch):
    jsf.from_scipy(S, "tune")
    for error in (TypeError("mistake"), AttributeError("mistake"), jax.errors.JaxRuntimeError("INTERNAL: mistake")):

        def fail(*_, error=error, **__):
            raise error

        with monkeypatch.context() as broken:
            broken.setattr(ranking, "build", fail)
            broken.setattr(tune, "build", fail)
            with pytest.raises(type(error), match="mistake"):  # what the file names
                jsf.from_scipy(S, "tune")
            with pytest.raises(type(error), match="mistake"):  # what would be measured
                jsf.from_scipy(S, "tune", dtype="float32")


def test_what_was_passed_over_is_told(file, clock, monkeypatch):
    build, refused = tune.build, ["ell"]

    def refuse(csr, name, target, **layout):
        if name in refused:
            raise building.TooLarge(f"{name} is too large")
        return build(csr, name, target, **layout)

    monkeypatch.setattr(tune, "build", refuse)
    few = [c for c in ranking.rank(S) if c.format in ("ell", "hll")]
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: few)
    _, choice = tune.fastest(S, Target(np.dtype("float64")))
    assert choice.format == "hll" and choice.reason.endswith("'ell' was passed over: ell is too large")
    refused.append("hll")
    with pytest.raises(building.TooLarge) as caught:
        tune.fastest(S, Target(np.dtype("float32")))
    assert all(f"{name!r} was passed over: {name} is too large" in caught.value.__notes__[0] for name in refused)


def test_the_question_names_the_device_on_which_it_is_measured(file, clock, monkeypatch):
    jsf.from_scipy(S, "tune")
    clock.clear()
    with jax.default_device(jax.devices()[1]):  # of the same kind
        jsf.from_scipy(S, "tune")
    assert clock == []
    monkeypatch.setattr(memory, "device", lambda: types.SimpleNamespace(device_kind="another", platform="cpu"))
    monkeypatch.setattr(memory, "free", lambda: None)
    jsf.from_scipy(S, "tune")
    assert clock


def test_a_relative_cache_folder_is_not_heeded(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tune.answers_file() == tmp_path / ".cache" / "jaxsparse" / "tuned.json"


def test_a_refused_format_is_passed_over(file, clock, monkeypatch):
    build = tune.build

    def refuse(csr, name, target, **layout):
        if name == "ell":
            raise building.TooLarge("too large")
        return build(csr, name, target, **layout)

    monkeypatch.setattr(tune, "build", refuse)
    assert jsf.from_scipy(S, "tune").name == "hll" and "ell" not in clock


def test_where_nothing_fits_the_refusal_is_told(file):
    with pytest.raises(ValueError, match="max_bytes=10 allows none, max_bytes="):
        jsf.from_scipy(S, "tune", max_bytes=10)
    assert not file.exists()


def test_a_layout_cannot_be_asked_for():
    with pytest.raises(ValueError, match="format='tune' chooses the layout itself; name a format to set sigma"):
        jsf.from_scipy(S, "tune", sigma=1)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_a_matrix_without_entries_can_be_tuned(file, shape):
    assert jsf.from_scipy(sp.csr_array(shape), "tune").shape == shape
