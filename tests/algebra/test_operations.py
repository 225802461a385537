"""Slices, triangles, blocks, scalings, sums and norms against SciPy and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf

rng = np.random.default_rng(11)
S = sp.csr_array(sp.random_array((12, 12), density=0.3, rng=rng)) - 0.4 * sp.eye_array(12, format="csr")
S = sp.csr_array(S.astype(np.float32))
D = S.toarray()
A, H = jsf.from_scipy(S, "csr"), jsf.from_scipy(S, "hll")
d = rng.normal(size=12).astype(np.float32)
mask = d > 0

MATRICES = {
    "rows": (lambda M: M[2:9], D[2:9]),
    "columns": (lambda M: M[:, [5, 1, 1]], D[:, [5, 1, 1]]),
    "one row": (lambda M: M[-3], D[[-3]]),
    "a mask": (lambda M: M[mask], D[mask]),
    "both": (lambda M: M[[1, 4], ::3], D[[1, 4], ::3]),
    "lower": (lambda M: M.tril(), np.tril(D)),
    "upper": (lambda M: M.triu(2), np.triu(D, 2)),
    "rows scaled": (lambda M: M.scale_rows(d), d[:, None] * D),
    "columns scaled": (lambda M: M.scale_cols(d), D * d),
    "shifted": (lambda M: M.shift(3.0), D + 3 * np.eye(12)),
    "shifted by a diagonal": (lambda M: M.shift(d), D + np.diag(d)),
    "another diagonal": (lambda M: M.setdiag(d), D - np.diag(np.diag(D)) + np.diag(d)),
    "sum of three": (lambda M: sum([M, M, M]), 3 * D),
    "blocks": (lambda M: jsf.block([[M, M.T], [None, M[:, :12]]]), np.block([[D, D.T], [np.zeros((12, 12)), D]])),
    "side by side": (lambda M: jsf.hstack([M, M]), np.hstack([D, D])),
    "above": (lambda M: jsf.vstack([M, M[:3]]), np.vstack([D, D[:3]])),
    "kron": (lambda M: jsf.kron(M[:3, :3], M[:2]), np.kron(D[:3, :3], D[:2])),
    "pruned": (lambda M: M.prune(0.5), np.where(np.abs(D) > 0.5, D, 0)),
    "by a number": (lambda M: M.multiply(2.0), 2 * D),
}
ARRAYS = {
    "all": (lambda M: M.sum(), D.sum()),
    "sums of columns": (lambda M: M.sum(axis=0), D.sum(axis=0)),
    "sums of rows": (lambda M: M.sum(axis=1), D.sum(axis=1)),
    "largest": (lambda M: M.max(), D.max()),
    "smallest of rows": (lambda M: M.min(axis=1), D.min(axis=1)),
    "largest of columns": (lambda M: M.max(axis=-2), D.max(axis=0)),
    "largest of a full row": (lambda M: jsf.from_dense(-np.ones((2, 2), np.float32), "csr").max(axis=1), -np.ones(2)),
    "Frobenius": (lambda M: M.norm(), np.linalg.norm(D)),
    "norm 1": (lambda M: M.norm(1), np.linalg.norm(D, 1)),
    "norm inf": (lambda M: M.norm(np.inf), np.linalg.norm(D, np.inf)),
    "an entry": (lambda M: M[3, -1], D[3, -1]),
}


@pytest.mark.parametrize("own", [A, H, A.T.asformat("csr").T], ids=["csr", "hll", "transposed"])
@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_made_of_a_matrix_is_numpys(name, own):
    make, expected = MATRICES[name]
    np.testing.assert_allclose(make(own).todense(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("own", [A, H, A.T.asformat("csr").T], ids=["csr", "hll", "transposed"])
@pytest.mark.parametrize("name", ARRAYS)
def test_a_reduction_is_numpys(name, own):
    make, expected = ARRAYS[name]
    np.testing.assert_allclose(make(own), expected, rtol=1e-5)


def test_a_norm_neither_overflows_nor_underflows():
    M = jsf.eye(4) * 1e30
    np.testing.assert_allclose(M.norm(), 2e30, rtol=1e-5)
    assert float(jsf.from_coo([], [], np.zeros(0, np.float32), (3, 3), format="csr").norm()) == 0


def test_identity_and_diagonals():
    np.testing.assert_array_equal(jsf.eye(3, 5).todense(), np.eye(3, 5))
    made = jsf.diags([d[:11], 2.0, d[:10]], [-1, 0, 2], shape=(12, 12))
    expected = np.diag(d[:11], -1) + 2 * np.eye(12) + np.diag(d[:10], 2)
    np.testing.assert_allclose(made.todense(), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="has 11 numbers"):
        jsf.diags([d], [1], shape=(12, 12))


def test_slices_shifts_and_scalings_differentiate():
    rows = np.array([1, 5, 7])

    def ours(a, s, scale):
        return jnp.sum(A.with_data(a).shift(s).scale_rows(scale)[rows].data ** 2)

    place = np.nonzero(D)

    def dense(a, s, scale):
        M = jnp.zeros((12, 12)).at[place].set(a) + s * jnp.eye(12)
        return jnp.sum((scale[:, None] * M)[rows] ** 2)

    for f, g in zip(*(jax.jit(jax.grad(h, (0, 1, 2)))(A.data, 0.3, d) for h in (ours, dense)), strict=True):
        np.testing.assert_allclose(f, g, rtol=1e-4, atol=1e-5)
