"""The seam between kernels and what runs them."""

from __future__ import annotations

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels import dialect, mosaic
from tests.lowering import SIGNATURES, lowered
from tests.zoo import CASES, Layout


def launch(kernel, blocks=1, size=128):
    """`kernel` interpreted over blocks of 128 lanes, with one output of `size` float32."""
    return dialect.launch(
        kernel,
        "interpret",
        name="probe",
        block=dialect.Block(rows=128, lanes_per_thread=1, unroll=1),
        blocks=blocks,
        inputs={"a": jnp.full(3, 5.0)},
        outputs={"out": jax.ShapeDtypeStruct((size,), jnp.float32)},
    )[0]


def test_interpreted_outputs_start_as_nan():
    """What lets the kernel tests see a place that was left out."""
    assert np.isnan(launch(lambda d, a, out: None)).all()


def test_dead_lanes_store_nothing_wherever_they_point():
    """Also not what was there before: another lane may be writing it."""

    def kernel(d, a, out):
        lane = d.lanes()
        d.store(out, jnp.where(lane < 4, lane, 0), lane.astype(jnp.float32) + 1, lane < 4)

    out = np.asarray(launch(kernel))
    np.testing.assert_array_equal(out[:4], [1, 2, 3, 4])
    assert np.isnan(out[4:]).all()


def test_dead_lanes_load_the_other_value_even_out_of_bounds():
    def kernel(d, a, out):
        lane = d.lanes()
        d.store(out, lane, d.load(a, 1000 * lane, lane < 1, 7), lane < 128)

    np.testing.assert_array_equal(launch(kernel), [5] + [7] * 127)


def test_every_block_runs_once():
    def kernel(d, a, out):
        block = d.program_id()
        d.store(out, block + d.lanes(), d.full(block, jnp.float32), d.lanes() < 1)

    np.testing.assert_array_equal(launch(kernel, blocks=5, size=5), np.arange(5))


@pytest.mark.parametrize("slice_size", [1, 4, 31, 32, 48, 64, 128, 200, 256])
@pytest.mark.parametrize("load", dialect.LAUNCH.loads)
def test_a_block_is_a_whole_slice_only_where_that_is_a_power_of_two_that_fits(load, slice_size):
    """And gives every thread of a warp something to do."""
    block, most = dialect.block("triton", load, slice_size), dialect.LAUNCH.rows
    least = dialect.LAUNCH.warp * block.lanes_per_thread
    assert block.rows % least == 0
    assert block.rows == (slice_size if slice_size in (32, 64, 128) and slice_size >= least else most)
    in_mosaic = dialect.block("mosaic", load, slice_size)
    assert in_mosaic.rows == most * in_mosaic.lanes_per_thread
    assert most % 128 == 0  # a warpgroup


@pytest.mark.parametrize(("n_rows", "rows"), [(10**7, 512), (512 * 264, 512), (125_000, 256), (1000, 128)])
def test_a_block_of_whole_diagonals_is_as_large_as_leaves_every_multiprocessor_two(n_rows, rows):
    assert dialect.block("triton", "whole diagonals", n_rows).rows == rows
    assert (
        dialect.block("triton", "full", n_rows).rows == dialect.block("mosaic", "whole diagonals", n_rows).rows == 128
    )


def warpgroups(block: dialect.Block) -> float:
    return block.rows / (128 * block.lanes_per_thread)


@pytest.mark.parametrize("load", dialect.LAUNCH.loads)
def test_maxima_over_the_lanes_of_a_mosaic_block_are_those_of_one_warpgroup(load):
    """Each would have its own, of a part of the rows."""
    assert warpgroups(dialect.block("mosaic", load, 128)) == 1
    assert [warpgroups(dialect.columns_block("mosaic", load, n)) for n in (1, 2, 4, 8)] == [1] * 4


def test_the_lanes_of_a_tile_are_those_of_its_warpgroups():
    assert warpgroups(dialect.tile_block(512, 1)) == 4
    assert mosaic.Mosaic(512, 4).rows == 512  # where a block's rows begin is counted in these


def test_what_mosaic_reads_once_leaves_the_cache_first():
    A = Layout("csr").of(CASES["irregular"].scipy(), backend="mosaic")
    mirrored = jsf.from_scipy(jsf.gallery.poisson(5), "sdia", backend="mosaic")  # reads values twice, and has no index
    first, second = (lowered(lambda A, x: A @ x, A, np.ones(A.shape[1])) for A in (A, mirrored))
    assert mosaic.STREAMED in first and mosaic.STREAMED not in second


# ------------------------------------------------------------------------------------------------- sums over threads

GROUPS = [(n, stride) for n in (2, 4, 8, 16, 32) for stride in (1, 2, 4, 8, 16) if n * stride <= 32]


def sums(d, n: int, stride: int, dtype) -> jax.Array:
    """In every lane the sum of the numbers of the lanes in its group."""
    return d.sum_threads(d.lanes().astype(dtype), n, stride)


@pytest.mark.parametrize("n, stride", GROUPS)
def test_every_lane_gets_the_sum_of_its_group(n, stride):
    def kernel(d, a, out):
        d.store(out, d.lanes(), sums(d, n, stride, jnp.float32), d.lanes() < 128)

    lane = np.arange(128)
    groups = lane // (n * stride) * stride + lane % stride
    np.testing.assert_array_equal(launch(kernel), np.bincount(groups, lane)[groups])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", SIGNATURES)
def test_sums_over_threads_lower_for_cuda(name, dtype):
    def kernel(d, a, out):
        total = d.full(0, dtype)
        for n, stride in GROUPS:
            total = total + sums(d, n, stride, dtype)
        d.store(out, d.lanes(), total, d.lanes() < 128)

    def run(a):
        return dialect.launch(
            kernel,
            name,
            name="probe",
            block=dialect.Block(rows=128, lanes_per_thread=1, unroll=1),
            blocks=1,
            inputs={"a": a},
            outputs={"out": jax.ShapeDtypeStruct((128,), dtype)},
        )[0]

    assert SIGNATURES[name] in lowered(run, jnp.zeros(3))


# ------------------------------------------------------------------------------------------------ choosing a backend


@pytest.mark.parametrize("backend", ["auto", "xla"])
@pytest.mark.parametrize("platform", [None, "cpu", "rocm", "tpu"])
def test_other_platforms_run_plain_xla(backend, platform):
    assert dialect.resolve(backend, platform) == "xla"


def test_cuda_runs_a_kernel_unless_told_otherwise():
    assert dialect.resolve("auto", "cuda") in ("triton", "mosaic")
    for backend in ("triton", "mosaic", "xla", "interpret"):
        assert dialect.resolve(backend, "cuda") == backend


@pytest.fixture
def forgetful():
    """The preferred dialect is decided once; here it is decided anew, and again afterwards."""
    dialect._preferred_dialect.cache_clear()
    yield
    dialect._preferred_dialect.cache_clear()


def test_without_triton_mosaic_is_preferred(monkeypatch, forgetful):
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    assert dialect.resolve("auto", "cuda") == "mosaic"


def test_where_lanes_share_memory_mosaic_is_preferred_if_it_is_there(monkeypatch, forgetful):
    assert [dialect.resolve(b, "cuda", shared=True) for b in ("auto", "triton", "xla")] == ["mosaic", "triton", "xla"]
    assert dialect.resolve("auto", "cpu", shared=True) == "xla"
    dialect._preferred_dialect.cache_clear()
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.mosaic_gpu", None)
    assert dialect.resolve("auto", "cuda", shared=True) == "triton"


def test_without_any_dialect_xla_runs_with_one_warning(monkeypatch, forgetful):
    for name in ("triton", "mosaic_gpu"):
        monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.{name}", None)
    with pytest.warns(UserWarning, match="no Pallas dialect for this GPU.*absl-py") as caught:
        assert [dialect.resolve("auto", "cuda") for _ in range(3)] == ["xla"] * 3
    assert len(caught) == 1


def test_kernels_lower_without_any_warning():
    A = Layout("hll", (("slice_size", 4),)).of(CASES["irregular"].scipy())
    for backend in ("triton", "mosaic", "auto"):
        with warnings.catch_warnings(), jsf.use_backend(backend):
            warnings.simplefilter("error")
            lowered(lambda A, x: A @ x, A, np.ones(13))


# --------------------------------------------------------------------------------------------------------- use_backend


def test_use_backend_nests_and_ends_with_its_block():
    assert dialect.active_backend("auto") == "auto"
    with jsf.use_backend("xla"):
        with jsf.use_backend("interpret"):
            assert dialect.active_backend("auto") == "interpret"
            assert dialect.active_backend("triton") == "triton"
        assert dialect.active_backend("auto") == "xla"
        with pytest.raises(RuntimeError), jsf.use_backend("interpret"):
            raise RuntimeError
        assert dialect.active_backend("auto") == "xla"
    assert dialect.active_backend("auto") == "auto"


def test_an_unknown_backend_is_named_with_those_that_exist():
    known = "unknown backend 'cuda'; choose one of auto, triton, mosaic, numba, xla, interpret"
    with pytest.raises(ValueError, match=known), jsf.use_backend("cuda"):
        pass
    with pytest.raises(ValueError, match="unknown backend 'cuda'"):
        Layout("csr").of(CASES["irregular"].scipy(), backend="cuda")
