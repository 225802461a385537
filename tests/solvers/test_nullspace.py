"""Null spaces that are found: their number, that A takes them to 0, and that solvers take them."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse as js
from solvers import cg, nullspace
from tests.marks import few
from tests.solvers.methods import neumann

PIECES = sp.csr_array(sp.block_diag([neumann(20), neumann(15)]))  # a graph of two parts
RNG = np.random.default_rng(4)
CHAIN = RNG.random((30, 30)) * (RNG.random((30, 30)) < 0.3) + np.eye(30)
CHAIN = sp.csr_array(CHAIN / CHAIN.sum(axis=1, keepdims=True) - np.eye(30))  # of Markov, less 1
TURN = sp.diags_array(np.exp(1j * np.arange(35)))
CASES = {
    "two pieces": (PIECES, 2),
    "Markov chain": (CHAIN, 1),
    "complex": (sp.csr_array(TURN @ PIECES @ TURN.conj()), 2),
    "regular": (PIECES + sp.eye_array(35) / 100, 0),
}


@pytest.mark.parametrize(("name", "single"), few([(name, single) for single in (False, True) for name in CASES], 3))
def test_are_null_vectors_as_many_as_a_dense_decomposition_finds(name, single):
    S, expected = CASES[name]
    S = S.astype(np.result_type(S.dtype, np.complex64) if S.dtype.kind == "c" else np.float32) if single else S
    S = S.astype(np.complex64) if single and S.dtype.kind == "c" else S
    Z = nullspace(js.from_scipy(S), 4)
    eps = np.finfo(S.dtype).eps
    assert Z.shape == (S.shape[0], expected)
    np.testing.assert_allclose(Z.conj().T @ Z, np.eye(expected), atol=100 * eps)
    np.testing.assert_allclose(S @ Z, 0, atol=1e3 * eps)


@pytest.mark.parametrize("small", [1e-3, 1e-5, 1e-7, 1e-9])
def test_small_singular_values_hide_no_null_vector(small):
    Q, P = (np.linalg.qr(np.random.default_rng(i).standard_normal((30, 30)))[0] for i in (0, 1))
    S = (Q * np.r_[np.linspace(0.5, 1, 27), small, 2 * small, 0]) @ P.T
    for k in (1, 2):
        Z = np.asarray(nullspace(js.from_dense(S), k))
        assert Z.shape == (30, 1)
        np.testing.assert_allclose(abs(Z[:, 0] @ P[:, -1]), 1, rtol=1e-10)


@pytest.mark.parametrize(
    "S", [sp.csr_array((8, 8)), sp.csr_array(np.tril(np.ones((8, 8)), -7))], ids=["zero", "rank 1"]
)
def test_are_k_vectors_found_where_there_are_more(S):
    Z = np.asarray(nullspace(js.from_scipy(S), 2))
    np.testing.assert_allclose(Z.T @ Z, np.eye(2), atol=1e-13)
    np.testing.assert_allclose(S @ Z, 0, atol=1e-13)


def test_is_a_default_k_of_any_size():
    assert nullspace(js.from_dense(np.diag([0.0, 1, 2]))).shape == (3, 1)
    assert nullspace(js.from_dense(np.diag([1.0, 1], 1))).shape == (3, 1)


def test_does_cg_take_what_was_found():
    A, b = js.from_scipy(PIECES), np.sin(np.arange(35.0))
    sol = cg(A, b, nullspace=nullspace(A), rtol=1e-10)
    np.testing.assert_allclose(sol.x, np.linalg.pinv(PIECES.toarray()) @ b, atol=1e-8)


def test_refuses_what_it_cannot_factor():
    A = js.from_scipy(PIECES)
    with pytest.raises(ValueError, match="traced here"):
        jax.jit(nullspace)(A)
    with pytest.raises(TypeError, match="takes a jaxsparse matrix; got function"):
        nullspace(lambda v: v)
    with pytest.raises(ValueError, match="square"):
        nullspace(A[:3])
