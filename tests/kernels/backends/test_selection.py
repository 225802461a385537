"""Which backend computes on which platform."""

import sys
import warnings

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels.backends import selection
from tests.lowering import lowered
from tests.zoo import CASES, Layout


@pytest.mark.parametrize("backend", ["auto", "xla"])
@pytest.mark.parametrize("platform", [None, "rocm", "tpu"])
def test_other_platforms_run_plain_xla(backend, platform):
    assert selection.resolve(backend, platform) == "xla"


@pytest.fixture
def forgetful():
    """The preferred dialect is decided once; here it is decided anew, and again afterwards."""
    selection._preferred_dialect.cache_clear()
    yield
    selection._preferred_dialect.cache_clear()


def test_without_triton_mosaic_is_preferred(monkeypatch, forgetful):
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    assert selection.resolve("auto", "cuda") == "mosaic"


def test_where_lanes_share_memory_mosaic_is_preferred_if_it_is_there(monkeypatch, forgetful):
    assert selection.resolve("auto", "cuda", shared=True) == "mosaic"
    selection._preferred_dialect.cache_clear()
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.mosaic_gpu", None)
    assert selection.resolve("auto", "cuda", shared=True) == "triton"


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="Mosaic GPU imports absl before JAX 0.11 alone")
def test_without_absl_there_is_no_mosaic(monkeypatch, forgetful):
    monkeypatch.setitem(sys.modules, "absl", None)
    assert selection.resolve("auto", "cuda", shared=True) == "triton"


def test_without_any_dialect_xla_runs_with_one_warning(monkeypatch, forgetful):
    for name in ("triton", "mosaic_gpu"):
        monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.{name}", None)
    with pytest.warns(UserWarning, match="no Pallas dialect for this GPU.*absl-py") as caught:
        assert [selection.resolve("auto", "cuda") for _ in range(3)] == ["xla"] * 3
    assert len(caught) == 1


def test_kernels_lower_without_any_warning():
    A = Layout("hll", (("slice_size", 4),)).of(CASES["irregular"].scipy())
    for backend in ("triton", "mosaic", "auto"):
        with warnings.catch_warnings(), jsf.use_backend(backend):
            warnings.simplefilter("error")
            lowered(lambda A, x: A @ x, A, np.ones(13))


# --------------------------------------------------------------------------------------------------------- use_backend


def test_use_backend_nests_and_ends_with_its_block():
    assert selection.active_backend("auto") == "auto"
    with jsf.use_backend("xla"):
        with jsf.use_backend("interpret"):
            assert selection.active_backend("auto") == "interpret"
            assert selection.active_backend("triton") == "triton"
        assert selection.active_backend("auto") == "xla"
        with pytest.raises(RuntimeError), jsf.use_backend("interpret"):
            raise RuntimeError
        assert selection.active_backend("auto") == "xla"
    assert selection.active_backend("auto") == "auto"


def test_an_unknown_backend_is_named_with_those_that_exist():
    known = "backend must be one of auto, triton, mosaic, numba, xla, interpret; got 'cuda'"
    with pytest.raises(ValueError, match=known), jsf.use_backend("cuda"):
        pass
    with pytest.raises(ValueError, match="got 'cuda'"):
        Layout("csr").of(CASES["irregular"].scipy(), backend="cuda")
