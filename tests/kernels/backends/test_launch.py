"""What a kernel does through its dialect: loads, stores and sums over threads."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels.backends import launch, mosaic, tuning
from tests.lowering import SIGNATURES, lowered
from tests.zoo import CASES, Layout


def launched(kernel, blocks=1, size=128, dialect="interpret", dtype=jnp.float32):
    """What `kernel` leaves in `out` [size], over blocks of 128 lanes, with an input `a` of three numbers."""
    return launch.launch(
        kernel,
        dialect,
        block=tuning.Block(rows=128, lanes_per_thread=1, unroll=1),
        blocks=blocks,
        inputs={"a": jnp.full(3, 5.0)},
        outputs={"out": jax.ShapeDtypeStruct((size,), dtype)},
    )[0]


def test_interpreted_outputs_start_as_nan():
    """What lets the kernel tests see a place that was left out."""
    assert np.isnan(launched(lambda d, a, out: None)).all()


def test_dead_lanes_store_nothing_wherever_they_point():
    """Also not what was there before: another lane may be writing it."""

    def kernel(d, a, out):
        lane = d.lanes()
        d.store(out, jnp.where(lane < 4, lane, 0), lane.astype(jnp.float32) + 1, lane < 4)

    out = np.asarray(launched(kernel))
    np.testing.assert_array_equal(out[:4], [1, 2, 3, 4])
    assert np.isnan(out[4:]).all()


def test_dead_lanes_load_the_other_value_even_out_of_bounds():
    def kernel(d, a, out):
        lane = d.lanes()
        d.store(out, lane, d.load(a, 1000 * lane, lane < 1, 7), lane < 128)

    np.testing.assert_array_equal(launched(kernel), [5] + [7] * 127)


def test_every_block_runs_once():
    def kernel(d, a, out):
        block = d.program_id()
        d.store(out, block + d.lanes(), d.full(block, jnp.float32), d.lanes() < 1)

    np.testing.assert_array_equal(launched(kernel, blocks=5, size=5), np.arange(5))


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
def test_a_lowering_imports_no_module_in_vain(backend, monkeypatch):
    """Python looks for a module that it does not find anew each time, and MLIR asks for one at each type and value."""
    A = Layout("csr").of(CASES["irregular"].scipy(), backend=backend)
    lowered(lambda A, x: A @ x, A, jnp.ones(A.shape[1], A.dtype))  # what is there is imported
    names = []
    finder = SimpleNamespace(find_spec=lambda name, *_: names.append(name))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    lowered(lambda A, x: 2 * (A @ x), A, jnp.ones(A.shape[1], A.dtype))
    assert names == []


def test_what_mosaic_reads_once_leaves_the_cache_first():
    A = Layout("csr").of(CASES["irregular"].scipy(), backend="mosaic")
    mirrored = jsf.from_scipy(jsf.gallery.poisson(5), "dia", backend="mosaic")  # reads values twice, and has no index
    first, second = (lowered(lambda A, x: A @ x, A, np.ones(A.shape[1])) for A in (A, mirrored))
    assert mosaic.STREAMED in first and mosaic.STREAMED not in second


@pytest.mark.parametrize("load", tuning.LAUNCH.loads)
def test_maxima_over_the_lanes_of_a_mosaic_block_are_those_of_one_warpgroup(load):
    """Each would have its own, of a part of the rows."""
    blocks = tuning.block("mosaic", load, 128), *(tuning.columns_block("mosaic", load, n) for n in (1, 2, 4, 8))
    assert {block.rows / (128 * block.lanes_per_thread) for block in blocks} == {1}


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
    np.testing.assert_array_equal(launched(kernel), np.bincount(groups, lane)[groups])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", SIGNATURES)
def test_sums_over_threads_lower_for_cuda(name, dtype):
    def kernel(d, a, out):
        total = d.full(0, dtype)
        for n, stride in GROUPS:
            total = total + sums(d, n, stride, dtype)
        d.store(out, d.lanes(), total, d.lanes() < 128)

    assert SIGNATURES[name] in lowered(lambda: launched(kernel, dialect=name, dtype=dtype))
