"""Shards whose arrays differ in size, width or presence, made alike."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.distributed.problems import brought_together, irregular

FAR = 200_000  # columns that 16 bits do not reach


def narrow():
    return sp.csr_array((np.arange(1.0, 9), ([0, 0, 1, 2, 3, 4, 7, 7], [0, 5, 1, 2, 9, 9, 3, 8])), shape=(8, FAR))


def wide():
    cols = [0, FAR - 1, 70_000, 1, 2, 140_000, 0, 150_000, 3]
    return sp.csr_array((np.arange(1.0, 10), ([0, 0, 1, 2, 2, 3, 5, 5, 6], cols)), shape=(8, FAR))


def both():
    S = narrow().tolil()
    S[0, FAR - 2] = 3.0
    return sp.csr_array(S)


def tailed():
    S = narrow().tolil()
    S[6, :600] = np.arange(1.0, 601)
    return sp.csr_array(S)


def none():
    return sp.csr_array((8, FAR))


MAKERS = [(narrow, wide), (narrow, both, none), (both, wide)]


@pytest.mark.some(format=2)
@pytest.mark.parametrize(
    ("format", "makers"),
    [*(("sell", makers) for makers in MAKERS), ("hyb", (narrow, tailed, none))],  # "hyb" knows no widths
    ids=lambda given: given if isinstance(given, str) else "-".join(f.__name__ for f in given),
)
def test_they_stay_what_they_were_and_have_one_shape(format, makers):
    options = {"sell": {"slice_size": 4}, "hyb": {"width": 2}}[format]
    matrices = [f() for f in makers]
    made = brought_together([jsf.from_scipy(S, format, **options) for S in matrices])
    shapes = {jax.tree.structure(A): [leaf.shape for leaf in jax.tree.leaves(A)] for A in made}
    assert len(shapes) == 1
    x = np.random.default_rng(0).standard_normal(FAR)
    for S, A in zip(matrices, made, strict=True):
        assert [leaf.shape for leaf in jax.tree.leaves(A)] == next(iter(shapes.values()))
        np.testing.assert_allclose(A @ x, S @ x, rtol=1e-13)
        np.testing.assert_array_equal(np.asarray(A.data)[: S.nnz], S.data)
        with jsf.use_backend("interpret"):
            np.testing.assert_allclose(A @ x, S @ x, rtol=1e-13)


@pytest.mark.some(makers=1)
@pytest.mark.parametrize("makers", [(narrow, both, none), (wide, tailed, none)], ids=["widths", "pieces"])
@pytest.mark.parametrize("hot", [0, 4])
def test_tiles_stay_what_they_were_and_each_shard_has_its_own_order_of_columns(hot, makers):
    matrices = [f() for f in makers]
    made = brought_together([jsf.from_scipy(S, "csr5", tile_shape=(128, 8), hot=hot) for S in matrices])
    assert len({(jax.tree.structure(A), *(leaf.shape for leaf in jax.tree.leaves(A))) for A in made}) == 1
    x = np.random.default_rng(0).standard_normal(FAR)
    for S, A in zip(matrices, made, strict=True):
        if hot:
            by_use = np.lexsort((np.arange(FAR), -np.bincount(S.indices, minlength=FAR)))
            assert A.col_order[:hot].tolist() == by_use[:hot].tolist()
        np.testing.assert_array_equal(np.asarray(A.data)[: S.nnz], S.data)
        for backend in ("xla", "interpret"):
            with jsf.use_backend(backend):
                np.testing.assert_allclose(A @ x, S @ x, rtol=1e-13)


@pytest.mark.parametrize("format", ["dia", "hdia", "bsr"])
def test_stored_zeros_keep_their_place_beside_shards_without_a_pattern(format):
    full = sp.csr_array(np.arange(1.0, 37).reshape(6, 6))
    holes, zeros = irregular(20, 20)[:6, :6].tocsr(), full.copy()
    zeros.data[4] = 0.0
    options = {"bsr": {"block_shape": (3, 3)}, "hdia": {"slice_size": 3}}.get(format, {})
    matrices = [full, holes, zeros]
    for S, A in zip(matrices, brought_together([jsf.from_scipy(S, format, **options) for S in matrices]), strict=True):
        np.testing.assert_array_equal(np.asarray(A.data)[: S.nnz], S.data)
        np.testing.assert_array_equal(A @ np.ones(6), S @ np.ones(6))
