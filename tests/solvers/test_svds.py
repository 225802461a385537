"""svds of the smallest singular values, and of functions; those of the largest are tested with pencils."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import svds
from tests.marks import few

K = 3
SPREAD = np.linspace(0.1, 1, 12)
CASES = {
    "graded, square": ((16, 16), 10.0 ** -np.arange(16), 0),
    "rank deficient, wide, complex": ((14, 30), np.r_[np.linspace(1e-3, 1, 13), 0], 1),
    "two null vectors, tall": ((40, 14), np.r_[SPREAD, 0, 0], 0),
    "two null vectors, square": ((14, 14), np.r_[SPREAD, 0, 0], 0),
    "tiny ones, tall": ((30, 14), np.r_[SPREAD, 1e-6, 1e-10], 1),
    "copies, wide": ((12, 30), np.r_[np.ones(8), 0.1, 0.1, 0.1, 0.1], 0),
    "zero": ((8, 5), np.zeros(5), 0),
}


def of_values(shape, values, imaginary, seed=0):
    rng = np.random.default_rng(seed)
    r = len(values)
    U, V = (np.linalg.qr(rng.standard_normal((n, r)) + 1j * imaginary * rng.standard_normal((n, r)))[0] for n in shape)
    a = (U * values) @ V.conj().T
    return a if imaginary else a.real


@pytest.mark.parametrize("size", few([1e160, 1e-200], 1))
def test_the_smallest_of_matrices_of_any_size_are_found_from_a_start_in_any_dtype(size):
    a = of_values((30, 12), SPREAD, 0)
    sol = svds(size * a, 2, which="SM", v0=np.ones(min(a.shape), np.float32))
    assert sol.success and sol.s.dtype == np.float64
    np.testing.assert_allclose(sol.s / size, np.linalg.svd(a, compute_uv=False)[-2:], rtol=1e-12)
    single = svds(a.astype(np.float32), 2, which="SM", v0=np.ones(min(a.shape)))
    assert single.success and single.s.dtype == np.float32


@pytest.mark.parametrize("name", few(list(CASES), 3))
def test_the_smallest_triples_are_as_exact_as_the_dtype_allows(name):
    shape, values, imaginary = CASES[name]
    a = of_values(shape, values, imaginary)
    sol = svds(jsf.from_dense(a, "csr"), K, which="SM")
    u, s, vh = (np.asarray(part) for part in sol)
    assert sol.success
    np.testing.assert_allclose(s, np.sort(values)[:K][::-1], rtol=0, atol=1e-13)
    for residual in (a @ vh.conj().T - u * s, a.conj().T @ u - vh.conj().T * s):
        assert np.max(np.linalg.norm(residual, axis=0), initial=0) <= 1e-13
    np.testing.assert_allclose((u.conj().T @ u, vh @ vh.conj().T), (np.eye(K), np.eye(K)), rtol=0, atol=1e-13)


def test_derivatives_of_the_smallest_are_those_of_dense_arithmetic():
    shape, at = (12, 7), np.cos(np.arange(7.0))
    a = np.random.default_rng(0).standard_normal(shape)
    A = jsf.from_dense(a, "csr")

    def number(s, vh):
        return jnp.sum(s * jnp.array([1.0, 2.0]) + (vh @ at) ** 2)

    got = jax.grad(lambda data: number(*list(svds(A.with_data(data), 2, which="SM"))[1:]))(A.data)
    want = jax.grad(lambda a: number(*[part[-2:] for part in jnp.linalg.svd(a, full_matrices=False)[1:]]))(a)
    np.testing.assert_allclose(got, want.ravel(), rtol=0, atol=1e-10)
    with pytest.raises(TypeError, match="outside jit, and needs its entries; got CSR of traced values"):
        jax.jit(lambda A: svds(A, 2, which="SM").s)(A)


@pytest.mark.parametrize("imaginary", few([0, 1], 1))
def test_two_functions_have_the_triples_and_derivatives_of_their_matrix(imaginary):
    a = jnp.asarray(of_values((20, 9), np.linspace(0.1, 1, 9), imaginary))
    pair = lambda t: (lambda v: t * (a @ v), lambda u: t * (a.conj().T @ u))  # noqa: E731
    sol = svds(pair(1.0), K, shape=(20, 9))
    want = np.linalg.svd(a, compute_uv=False)[:K]
    assert sol.success
    np.testing.assert_allclose(a @ sol.vh.conj().T, sol.u * sol.s, rtol=0, atol=1e-13)
    by_jit, slope = jax.jit(lambda t: jax.jvp(lambda t: svds(pair(t), K, shape=(20, 9)).s, (t,), (1.0,)))(2.0)
    np.testing.assert_allclose((sol.s, by_jit / 2, slope), (want, want, want), rtol=1e-12)
    with pytest.raises(ValueError, match=r"needs shape=\(m, n\); got None"):
        svds(pair(1.0), K)
    with pytest.raises(ValueError, match=r"of shape \(9, 20\) the functions take"):
        svds((lambda v: v, lambda u: u), K, shape=(9, 20))
    with pytest.raises(TypeError, match="needs its entries; got Functions"):
        svds(pair(1.0), K, shape=(20, 9), which="SM")
