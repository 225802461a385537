"""format="auto": what is ranked first, and that it can be had."""

import dataclasses
import functools
import re
import types

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from benchmarks import suite
from jaxsparse_fmt import convert
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._types import CsrArrays, Target
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.core import conversions
from jaxsparse_fmt.formats import building, footprint, memory, statistics
from jaxsparse_fmt.kernels.backends import selection
from tests.formats.test_memory import arrow
from tests.marks import few
from tests.oracle import assert_refused, assert_same_storage
from tests.zoo import CASES


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("case", few(CASES.values(), 8), ids=str)
def test_every_choice_can_be_built_and_is_as_large_as_it_says(case, platform):
    choices = jsf.choose.rank(case.scipy(), platform=platform)
    assert {c.format for c in choices} <= set(jsf.FORMATS)
    assert [c.cost for c in choices] == sorted(c.cost for c in choices)
    for choice in choices:
        A = jsf.from_scipy(case.scipy(), choice.format, **choice.layout)
        assert choice.nbytes == A.nbytes_read
        assert choice.moved == choice.nbytes + 8 * sum(case.shape)
        assert "a product" in choice.reason
        assert ("padding" in choice.reason) == (choice.nbytes > 0 and round(1 - A.fill, 9) > 0)


# Large enough that bytes decide, and not what a kernel costs at least.
LARGE = {
    "7-point": lambda: jsf.gallery.poisson(60),
    "7-point, not symmetric": lambda: jsf.gallery.convection_diffusion(60),
    "blocks": lambda: sp.csr_array(sp.kron(suite.banded(60_000, 600_000, 5_000, 0.02), np.ones((3, 3)), "csr")),
    "diagonals that end": lambda: suite.kkt(50),
    "uneven rows in a band": lambda: jsf.gallery.irregular(400_000, 14, 2_000),
    "uneven rows anywhere": lambda: jsf.gallery.irregular(400_000, 14, 400_000),
    **{"power law": lambda: suite.r_mat(18, 4_000_000), "dense rows": lambda: suite.circuit(300_000)},
    "long rows": lambda: suite.banded(2_000, 3_000_000, 2_000),
    "short rows": lambda: jsf.gallery.irregular(500_000, 2, 1_000, 0.2),
}
SKEWED = ("uneven rows in a band", "uneven rows anywhere", "power law", "dense rows")


@functools.cache
def large(name: str) -> sp.csr_array:
    return LARGE[name]()


@functools.cache
def ranked(name: str) -> list[jsf.Choice]:
    return ranking.rank(large(name), platform="gpu")


def of(format: str, choices: list[jsf.Choice]) -> jsf.Choice:
    return next(c for c in choices if c.format == format)


FITTING = {
    **{"7-point": ("dia", {}), "7-point, not symmetric": ("dia", {}), "diagonals that end": ("hdia", {})},
    **{"blocks": ("bsr", {"block_shape": (3, 3)}), "long rows": ("csr5", {})},
    "uneven rows in a band": ("csr5", {"tile_shape": (512, 32)}),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_gpu_gets_the_format_made_for_the_pattern(name):
    first, (format, layout) = ranked(name)[0], FITTING[name]
    assert first.format == format and first.layout.items() >= layout.items()


def test_a_choice_that_turns_out_much_larger_than_it_looked_does_not_stand():
    """A row that is not symmetric spoils every pair of diagonals; here one that the sample does not see."""
    S = large("7-point").copy()
    looked_at = np.zeros(S.shape[0], bool)
    looked_at[statistics.sample(S, footprint.WINDOW).rows] = True
    row = int(np.flatnonzero((S != 0) @ looked_at == 0)[0])  # nor those that it has entries in common with
    entries = slice(*S.indptr[row : row + 2])
    S.data[entries] = np.where(S.indices[entries] == row, 6.0, -0.5)
    choices = ranking.rank(S, platform="gpu")
    assert choices[0].format == "dia" and "mirrored" in choices[0].reason
    A, choice = ranking.store(choices, S, Target(np.dtype(np.float64)))
    assert A.name == choice.format and "mirrored" not in choice.reason


def test_slices_at_equal_distances_do_not_stand_for_all():
    """Every tenth slice has half of the diagonals, as slices have that begin a plane of a grid."""
    row, k = np.divmod(np.arange(140 * 128 * 73), 73)
    kept = (row // 128 % 10 > 0) | (k < 36)
    S = sp.csr_array((np.ones(kept.sum()), (row[kept], row[kept] + 50 * k[kept])))
    choice = of("hdia", ranking.rank(S, platform="gpu"))
    assert choice.nbytes == pytest.approx(jsf.from_scipy(S, "hdia").nbytes_read, rel=0.15)


def test_long_rows_among_short_ones_are_cut_and_hot_columns_come_first_only_where_they_have_most_entries():
    for choices in map(ranked, ("power law", "dense rows")):
        assert choices[0].format == "csr5" and "rows cut" in choices[0].reason
        assert choices[0].cost < of("csr", choices).cost / 3
    assert [of("csr5", ranked(name)).layout["hot"] for name in SKEWED] == [0, 0, 2**15, 0]


@pytest.mark.parametrize("dtype", [jax.numpy.bfloat16, "float32", "float64", "complex128"])
def test_a_cpu_with_numba_gets_diagonals_or_csr(dtype):
    first = {name: ranking.rank(large(name), dtype, platform="cpu")[0].format for name in ("7-point", *SKEWED)}
    assert first == {"7-point": "dia"} | dict.fromkeys(SKEWED, "csr")


@pytest.mark.parametrize(("dim", "format"), [(1, "dia"), (3, "csr")])
def test_a_zero_keeps_a_cpu_from_diagonals_only_beside_holes(dim, format):
    S = jsf.gallery.poisson(12, dim)
    S.data[0] = 0
    assert ranking.rank(S, platform="cpu")[0].format == format


def test_a_cpu_without_numba_is_ranked_for_plain_xla(monkeypatch):
    S = large("7-point")
    plain = ranking.rank(S, platform="cpu", backend="xla")
    assert plain != ranking.rank(S, platform="cpu")
    monkeypatch.setattr(selection, "native_importable", lambda: False)
    assert ranking.rank(S, platform="cpu") == plain


def test_sums_are_kept_where_short_rows_read_x_from_the_l2_cache():
    """Not in a narrow band, nor where lanes share no memory."""
    between = jsf.gallery.irregular(400_000, 14, 5_000)
    first = ranking.rank(between, platform="gpu")[0]
    assert first.layout["keep_sums"] and first.nbytes == jsf.from_scipy(between, "csr5", **first.layout).nbytes_read
    assert not ranking.rank(between, platform="gpu", backend="triton")[0].layout["keep_sums"]
    assert not ranked("uneven rows in a band")[0].layout["keep_sums"]


def test_columns_far_apart_are_not_promised_16_bits():
    near, far = (of("csr5", ranked(f"uneven rows {where}")) for where in ("in a band", "anywhere"))
    assert "columns in 16 bits" in near.reason and "columns in 32 bits" in far.reason and near.nbytes < far.nbytes
    assert "sell" not in [c.format for c in ranked("uneven rows anywhere")]


@pytest.mark.parametrize("name", few(LARGE, 3))
def test_what_was_estimated_from_a_sample_is_nearly_so(name):
    S = large(name)
    assert S.nnz > 500_000  # more than is looked at
    for format in ("sell", "hdia", "bsr"):
        for choice in (c for c in ranked(name) if c.format == format):
            A = jsf.from_scipy(S, format, **choice.layout)
            assert choice.nbytes == pytest.approx(A.nbytes_read, rel=0.02)


def test_an_unsorted_matrix_with_duplicates_is_ranked_as_what_it_means():
    S = CASES["irregular"].scipy().tocsr()
    twice = sp.csr_array((np.repeat(S.data / 2, 2), np.repeat(S.indices, 2), 2 * S.indptr), shape=S.shape)
    unsorted = twice[:, ::-1][:, ::-1]
    for platform in ("cpu", "gpu"):
        assert ranking.rank(unsorted, platform=platform) == ranking.rank(S, platform=platform)
    assert twice.nnz == 2 * S.nnz


def test_is_an_index_out_of_range_refused_before_a_kernel_reads_it():
    S = sp.csr_array(jsf.gallery.poisson(150, dim=2))
    S.indices = np.where(np.arange(S.nnz) == 5, 10**9, S.indices)
    assert_refused(lambda: ranking.rank(S), ValueError, "column index 1000000000 is out of range")
    assert_refused(
        lambda: ranking.rank(sp.coo_array(np.ones(4))), TypeError, "2-D matrix of scipy.sparse, got coo_array"
    )


def test_a_refused_choice_gives_way_to_the_next(monkeypatch):
    S = arrow(20_000)
    csr = of("csr", ranking.rank(S))
    ell = dataclasses.replace(csr, format="ell", layout={}, cost=0.0, nbytes=1)  # a size estimated far too low
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: [ell, csr])
    assert jsf.from_scipy(S).name == "csr"
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: [ell])
    assert_refused(lambda: jsf.from_scipy(S), ValueError, "its longest row has 20000 entries")


@pytest.mark.parametrize("backend", ["xla", "interpret"])
def test_what_runs_as_plain_xla_on_a_gpu_is_ranked_for_that(backend):
    S = CASES["irregular"].scipy()
    assert ranking.rank(S, platform="gpu", backend=backend) == ranking.rank(S, platform="cpu", backend="xla")
    with jsf.use_backend(backend):
        assert ranking.rank(S, platform="gpu") == ranking.rank(S, platform="cpu", backend="xla")


def test_another_platform_or_backend_is_refused():
    words = "platform must be one of gpu, cpu, or None for the one that JAX runs on; got 'q'"
    assert_refused(lambda: ranking.rank(arrow(3), platform="q"), ValueError, words)
    assert_refused(lambda: ranking.rank(arrow(3), backend="q"), ValueError, "got 'q'")


def free(nbytes: float | None, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: nbytes and int(nbytes))


def test_auto_takes_the_best_that_fits_the_free_memory(monkeypatch):
    S = jsf.gallery.elasticity(5)
    choices = sorted(ranking.rank(S, platform="gpu"), key=lambda c: -c.moved)  # the larger, the better
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: choices)
    best = next(c for c in choices if c.moved < choices[0].moved)
    for room, choice in ((ranking.ROOM * best.moved + 1, best), (None, choices[0])):  # unknown memory rules nothing out
        free(room, monkeypatch)
        A = jsf.from_scipy(S)
        assert (A.name, A.nbytes) == (choice.format, pytest.approx(choice.nbytes, rel=0.02))


@pytest.mark.parametrize("format", few(["auto", "tune"], 1))
def test_where_nothing_fits_the_memory_what_would_is_said(format, monkeypatch):
    S = jsf.gallery.elasticity(5)
    wide, narrow = (min(c.moved for c in ranking.rank(S, dtype)) for dtype in ("float64", "float32"))
    free(ranking.ROOM * (wide + narrow) / 2, monkeypatch)
    words = r"at least [\d.]+ kB, in .* are free; dtype='float32', which rounds"
    assert readable_bytes(narrow) in assert_refused(lambda: jsf.from_scipy(S, format), ValueError, words)
    assert jsf.from_scipy(S, format, dtype="float32").dtype == np.float32
    free(1000, monkeypatch)
    words = r"1 kB of memory are free; free some of it, or use a device with more$"
    assert_refused(lambda: jsf.from_scipy(S, format), ValueError, words)


def test_a_limit_too_low_says_which_would_do():
    S = jsf.gallery.elasticity(5)
    words = r"max_bytes=10 allows none, max_bytes=(\d+) would"
    enough = int(re.findall(words, assert_refused(lambda: jsf.from_scipy(S, max_bytes=10), ValueError, words))[0])
    assert jsf.from_scipy(S, max_bytes=enough).nbytes <= enough


class Gpu:
    """A GPU that is not there, with some free memory."""

    platform, device_kind, client = "gpu", "NVIDIA H200", types.SimpleNamespace(platform_version="cuda 13")

    def memory_stats(self):
        return {"bytes_limit": 10**9 + 300, "bytes_in_use": 300}


def test_free_memory_is_the_device_s_the_host_s_or_the_container_s(monkeypatch, tmp_path):
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
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    assert memory.free() == 10**9


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
    A = jsf.from_scipy(S, "csr")
    there = lambda *given: Gpu() if any(a is A for a in given) else jax.local_devices()[0]  # noqa: E731
    monkeypatch.setattr(ranking, "device_of", there)
    assert ranking.rank(A) == ranking.rank(S, platform="gpu") != ranking.rank(S)
    assert ranking.rank(A, platform="cpu") == ranking.rank(S)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("S", [jsf.gallery.poisson(9), jsf.gallery.elasticity(3), suite.r_mat(9, 5_000)], ids="abc")
def test_an_accelerator_chooses_and_converts_what_lies_there(S, transpose, monkeypatch):
    """Nothing but samples and counts comes to the host; the choice and the storage are the host's."""
    for module in (ranking, building, convert, memory):
        monkeypatch.setattr(module, "device_of", lambda *_: Gpu())
    expected, there = jsf.from_scipy(S, transpose=transpose), jsf.from_scipy(S, "csr").csr_arrays()
    monkeypatch.setattr(conversions, "FEW", 0)
    monkeypatch.setattr(CsrArrays, "to_scipy", lambda csr: pytest.fail("the matrix came to the host"))
    assert_same_storage(convert.from_arrays(there, "auto", None, transpose=transpose), expected)


def test_is_a_matrix_with_the_arrays_of_one_that_auto_made_and_another_layout_not_taken_for_it(monkeypatch):
    monkeypatch.setattr(building, "where_it_converts", lambda A, target: A.csr_arrays())  # as on an accelerator
    A = jsf.from_scipy(suite.r_mat(7, 800), "csr", threads_per_row=1)
    first, second = A.asformat("auto"), A.asformat("auto")
    assert first.name == second.name == "csr" and first.layout == second.layout != A.layout


def test_a_matrix_that_auto_made_is_returned_as_it_is_only_while_auto_would_make_it():
    S = jsf.gallery.poisson(9)
    A = jsf.from_scipy(S)
    B = jsf.from_scipy(S, "ell").asformat("auto")
    assert A.asformat("auto") is A and B.asformat("auto") is B and B.name == A.name
    changed = A.with_data(A.data.at[1].add(1)).asformat("auto")
    np.testing.assert_array_equal(changed.data, A.data.at[1].add(1))
    with jsf.use_backend("xla"):
        assert A.asformat("auto").name == jsf.choose.rank(S)[0].format != A.name
    with jax.set_mesh(jax.make_mesh((1,), ("rows",))):  # on whose devices new matrices lie
        assert A.asformat("auto").values.sharding == A.asformat("csr").values.sharding != A.values.sharding
