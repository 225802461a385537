"""Facts of matrices of ours on the host: those of a matrix by diagonals, and how long they are kept."""

import dataclasses
import gc

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxsparse_fmt as jsf
from solvers import hosted as module
from solvers.host import Host
from solvers.hosted import ByDiagonals, hosted

N = 9
LAPLACIAN = sp.diags_array([np.r_[1.0, np.full(N - 2, 2.0), 1.0], -np.ones(N - 1), -np.ones(N - 1)], offsets=[0, 1, -1])
GRID = sp.csr_array(jsf.gallery.poisson(3, dim=2))
HERMITIAN = GRID + 1j * sp.diags_array([np.ones(N - 1), -np.ones(N - 1)], offsets=[1, -1])


def changed(place: int, by: float) -> sp.csr_array:
    S = GRID.copy()
    S.data[place] += by
    return S


MATRICES = {
    "a grid": GRID,
    "constants go to 0": LAPLACIAN,
    "one alone does not": LAPLACIAN + sp.coo_array(([1e-3], ([N - 1], [N - 1])), shape=(N, N)),
    "a rounding apart": changed(1, 4e-16),
    "more than a rounding apart": changed(1, 1e-12),
    "a diagonal without image": GRID + sp.diags_array([np.full(N - 4, 0.5)], offsets=[4], shape=(N, N)),
    "an image of rounding": GRID + sp.diags_array([np.full(N - 4, 1e-16)], offsets=[4], shape=(N, N)),
    "no main diagonal": sp.diags_array([np.ones(N - 2), np.ones(N - 2)], offsets=[2, -2]),
    "hermitian": HERMITIAN,
    "complex symmetric": GRID * (1 + 1j),
    "NaN": changed(0, np.nan),
    "infinite, in both places": GRID * sp.coo_array(([np.inf], ([0], [0])), shape=(N, N)) + GRID,
    "stored zeros": changed(0, -4.0),
    "single": GRID.astype(np.float32),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("scaled", [False, True])
def test_facts_asked_of_diagonals_are_those_asked_of_columns(name, scaled):
    S = sp.csr_array(MATRICES[name])
    A = jsf.from_scipy(S, "dia")
    if scaled:  # whose mirrored diagonals are not found again
        A, S = A.with_data(A.data * 2), S * 2
    with np.errstate(invalid="ignore"):
        found, expected = hosted(A), Host(S)
        assert isinstance(found, ByDiagonals)
        assert (found.finite, found.symmetric) == (expected.finite, expected.finite and expected.symmetric)
        np.testing.assert_array_equal(found.diagonal, expected.diagonal)
        assert found.diagonal.dtype == expected.diagonal.dtype and found.eps == expected.eps
        assert found.cancels == expected.cancels
        assert "S" not in vars(found)
        np.testing.assert_array_equal(found.S.toarray(), expected.S.toarray())
    assert found.S.nnz == expected.S.nnz and found.S.dtype == expected.S.dtype
    assert (found.constants is None) == (expected.constants is None)


def test_sums_of_rows_are_taken_in_pieces(monkeypatch):
    monkeypatch.setattr(module, "PLACES", 4)
    for name in ("constants go to 0", "one alone does not", "a grid"):
        S = sp.csr_array(MATRICES[name])
        assert hosted(jsf.from_scipy(S, "dia")).cancels == (name == "constants go to 0")


@pytest.mark.parametrize("format", ["dia", "csr"])
def test_the_copy_on_the_host_lasts_as_long_as_the_matrix(format):
    A = jsf.from_scipy(GRID, format)
    found = hosted(A)
    assert found.symmetric and hosted(A) is found and found in module._hosts.values()
    del A
    gc.collect()
    assert found not in module._hosts.values()


def test_values_that_lie_in_pieces_over_devices_are_read_whole():
    A = jsf.from_scipy(changed(GRID.nnz - 1, np.nan), "dia")
    mesh = jax.make_mesh((5,), ("x",), devices=jax.devices("cpu")[:5])
    assert not hosted(dataclasses.replace(A, values=jax.device_put(A.values, NamedSharding(mesh, P("x"))))).finite
