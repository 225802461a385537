"""Rows that travel to the devices that a user names, and the numbers of unknowns and entries."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.distributed.problems import MESH, irregular


@pytest.mark.some(devices=3)
@pytest.mark.parametrize(("devices", "n"), [(8, 90), (3, 91), (5, 4), (7, 0), (1, 3)], ids=str)
def test_rows_made_in_pieces_are_the_matrix_that_is_cut_whole(devices, n):
    """To the last array, for a vector of parts and for a function."""
    mesh = jax.make_mesh((devices,), ("rows",), devices=MESH.devices[:devices])
    S = irregular(n, n) if n > 20 else sp.csr_array(np.triu(np.ones((n, n))))
    part = np.random.default_rng(0).integers(0, devices, n)
    A, made = jsf.shard(S, mesh, format="csr", by=part), []

    def rows_of(start, stop):
        made.append((start, stop))
        return S[start:stop]

    for by in (part.astype(np.uint8), lambda start, stop: part[start:stop]):
        B = jsf.shard_from_rows(rows_of, n, mesh, format="csr", by=by)
        assert jax.tree.structure(A) == jax.tree.structure(B) and B.domain.same(A.domain)
        for a, b in zip(jax.tree.leaves(A), jax.tree.leaves(B), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert max((stop - start for start, stop in made), default=0) <= -(-n // devices)


@pytest.mark.parametrize("devices", [3, 7])
def test_saved_rows_travel_to_boxes_on_an_odd_number_of_devices(devices, tmp_path):
    mesh = jax.make_mesh((devices,), ("rows",), devices=MESH.devices[:devices])
    S = jsf.gallery.poisson((10, 11))
    jsf.save_rows(tmp_path / "rows", S)
    saved = jsf.saved_rows(tmp_path / "rows")
    by = jsf.boxes((10, 11), devices)
    A = jsf.shard_from_rows(saved, 110, mesh, format="csr", starts=saved.starts(devices), by=by)
    assert A.domain.over.counts == tuple(np.bincount(by, minlength=devices))
    x = np.random.default_rng(0).standard_normal(110)
    np.testing.assert_allclose(A @ x, S @ x, atol=1e-12)
    np.testing.assert_array_equal(A.data, S.tocsr().data)
