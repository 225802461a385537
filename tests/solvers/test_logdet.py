"""Determinants, entries of inverses and samples: against dense ones, their derivatives, and singular matrices."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import SolverError, Status, factorized, host_calls, logdet, superlu
from solvers.host import Host
from tests.lowering import quick_jit

RNG = np.random.default_rng(0)


def unsymmetric(n: int) -> sp.csr_array:
    """With zeros on its diagonal, so that pivots lie elsewhere."""
    S = sp.random_array((n, n), density=0.1, rng=RNG)
    S.data = RNG.standard_normal(S.nnz)
    return sp.csr_array(S + sp.coo_array((np.full(n, 2.0), (np.arange(n), RNG.permutation(n))), shape=(n, n)))


CASES = {
    "precision": sp.csr_array(jsf.gallery.poisson(6, dim=2) + 0.1 * sp.eye_array(36)),
    "indefinite": sp.csr_array(jsf.gallery.poisson(5, dim=2) - 3.3 * sp.eye_array(25)),
    "unsymmetric": unsymmetric(30),
    "ill-conditioned": sp.csr_array(jsf.gallery.poisson(5, dim=2).multiply(10.0 ** np.linspace(-7, 7, 25)[:, None])),
    "complex": sp.csr_array(jsf.gallery.convection_diffusion(3) * (1 + 0.5j)),
}
each = pytest.mark.parametrize("name", CASES)
entries = quick_jit(lambda A: factorized(A).inverse_entries())


def dense(S: sp.csr_array, data):
    return jnp.zeros(S.shape, data.dtype).at[S.tocoo().coords].set(data)


@each
def test_determinants_and_entries_of_the_inverse_are_those_of_a_dense_matrix(name):
    S = CASES[name]
    A, inverse = jsf.from_scipy(S), np.linalg.inv(S.toarray())
    for of in (factorized(A), factorized(A).T):
        sign, size = of.logdet()
        want = np.linalg.slogdet(S.toarray())
        assert abs(sign - want.sign) <= 1e-12 and abs(size - want.logabsdet) <= 1e-10 * max(1, abs(want.logabsdet))
    row, col = S.tocoo().coords
    scale = np.sqrt(np.abs(inverse).max(1)[row] * np.abs(inverse).max(0)[col])
    assert np.max(np.abs(np.asarray(entries(A)) - inverse[row, col]) / scale) <= 1e-10
    row, col = A.T.row_ids, A.T.col_ids
    scale = np.sqrt(np.abs(inverse).max(0)[row] * np.abs(inverse).max(1)[col])
    assert np.max(np.abs(np.asarray(factorized(A).T.inverse_entries()) - inverse.T[row, col]) / scale) <= 1e-10


@pytest.mark.parametrize("name", ["precision", "indefinite", "unsymmetric"])
def test_first_and_second_derivatives_are_those_of_a_dense_determinant(name):
    S = CASES[name]
    A, data, v = jsf.from_scipy(S, "csr"), jnp.asarray(S.data), jnp.asarray(RNG.standard_normal(S.nnz))
    of, want_of = (lambda d: logdet(A.with_data(d))), (lambda d: jnp.linalg.slogdet(dense(S, d))[1])

    def all_of(f):
        gradient = jax.grad(f)
        return lambda d: (
            jax.jvp(f, (d,), (v,))[1],
            gradient(d),
            jax.jvp(gradient, (d,), (v,))[1],
            jax.grad(lambda d: jnp.vdot(gradient(d), v))(d),
        )

    for got, want in zip(quick_jit(all_of(of))(data), all_of(want_of)(data), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9 * np.abs(want).max())
    h = 1e-5
    differences = (jax.grad(of)(data + h * v) - jax.grad(of)(data - h * v)) / (2 * h)
    np.testing.assert_allclose(differences, all_of(want_of)(data)[2], rtol=0, atol=1e-5 * np.abs(differences).max())


def test_the_derivative_of_a_variance_is_that_of_a_dense_inverse():
    S = CASES["precision"]
    A, data, (row, col) = jsf.from_scipy(S, "csr"), jnp.asarray(S.data), S.tocoo().coords
    of = lambda d: jnp.sum(jnp.sin(factorized(A.with_data(d)).inverse_entries()))  # noqa: E731
    want = lambda d: jnp.sum(jnp.sin(jnp.linalg.inv(dense(S, d))[row, col]))  # noqa: E731
    np.testing.assert_allclose(quick_jit(jax.grad(of))(data), jax.grad(want)(data), rtol=0, atol=1e-10)


def test_entries_of_the_inverse_are_right_where_32_bits_do_not_hold_n_squared():
    n = 50_000
    S = sp.coo_array(sp.diags_array([-np.ones(n - 1), np.full(n, 2.5), -np.ones(n - 1)], offsets=[-1, 0, 1]))
    row, col = S.coords
    found = superlu.factored(Host(S.tocsc()))
    X = sys.modules["solvers.logdet"].entries_of_inverse(found, (row, col, S.data), col, row)
    np.testing.assert_allclose(np.bincount(row, S.data * X), 1, rtol=1e-12)  # the diagonal of A·A⁻¹


def test_vmap_maps_over_values_and_the_hessian_of_few_parameters():
    S = CASES["precision"]
    A, unit = jsf.from_scipy(S, "csr"), jnp.asarray((S.tocoo().row == S.tocoo().col).astype(float))
    of = lambda p: logdet(A.with_data(p[0] * S.data + p[1] * unit))  # noqa: E731
    want = lambda p: jnp.linalg.slogdet(p[0] * S.toarray() + p[1] * jnp.eye(36))[1]  # noqa: E731
    P = np.array([[1.0, 0.5], [2.0, 0.1], [0.3, 3.0]])
    np.testing.assert_allclose(quick_jit(jax.vmap(of))(P), jax.vmap(want)(P), rtol=1e-12)
    got = quick_jit(jax.vmap(jax.hessian(of)))(P)
    np.testing.assert_allclose(got, jax.vmap(jax.hessian(want))(P), rtol=1e-9, atol=1e-10)
    with pytest.raises(NotImplementedError, match="up to the second"):
        jax.jacfwd(jax.hessian(of))(P[0])


def test_samples_have_the_inverse_as_covariance():
    for S in (CASES["precision"], sp.csr_array(np.array([[2.0, 1j], [-1j, 3.0]]))):
        A, n = jsf.from_scipy(S), S.shape[0]
        R = quick_jit(lambda A, z: factorized(A).sample(z))(A, np.eye(n, dtype=S.dtype))
        np.testing.assert_allclose(R @ np.conj(R).T, np.linalg.inv(S.toarray()), atol=1e-13)
        turned = jax.jacrev(lambda z, A=A: factorized(A).sample(z).real)(np.ones(n))
        np.testing.assert_allclose(turned, R.real, atol=1e-13)


@pytest.mark.parametrize("name", ["indefinite", "unsymmetric"])
def test_a_matrix_that_is_not_positive_definite_has_no_samples(name):
    A = jsf.from_scipy(CASES[name])
    with pytest.raises(SolverError) as caught:
        factorized(A).sample(np.ones(A.shape[0]))
    assert caught.value.status is Status.NOT_POSITIVE_DEFINITE
    with jax.debug_nans(False):
        assert np.all(np.isnan(quick_jit(lambda A, z: factorized(A).sample(z))(A, np.ones(A.shape[0]))))


def test_a_singular_matrix_has_a_determinant_of_zero_and_a_nan_is_passed_on():
    S = CASES["precision"].copy()
    with jax.debug_nans(False):
        S.data[:] = 0
        assert logdet(jsf.from_scipy(S)) == -np.inf
        S.data[:] = np.nan
        assert np.isnan(logdet(jsf.from_scipy(S)))


@pytest.mark.deep  # 200 solves
def test_gradients_called_again_and_again_take_no_more_memory():
    S = CASES["precision"]
    A = jsf.from_scipy(S, "csr")
    of = lambda d: logdet(A.with_data(d)) + jnp.sum(factorized(A.with_data(d)).inverse_entries())  # noqa: E731

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    for k in range(20):
        jax.grad(of)(S.data * (1 + k))
    before = resident()
    for k in range(200):
        jax.grad(of)(S.data * (30 + k))
    assert resident() - before < 20e6


def test_is_an_interrupt_of_the_host_raised_as_such(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    A = jsf.from_scipy(CASES["precision"], "csr")
    F = factorized(A)
    for name in ("determinant", "entries_of_inverse", "root"):
        monkeypatch.setattr(sys.modules["solvers.logdet"], name, interrupted)
    gradient = jax.grad(lambda data: logdet(A.with_data(data)))
    for f in (lambda: logdet(A), F.logdet, F.inverse_entries, lambda: F.sample(np.ones(36)), lambda: gradient(A.data)):
        with pytest.raises(KeyboardInterrupt):
            f()


def test_an_interrupt_of_the_host_leaves_a_program_of_the_users_as_such(monkeypatch):
    A = jsf.from_scipy(CASES["precision"], "csr")
    of = lambda data: logdet(A.with_data(data))  # noqa: E731
    programs = [jax.jit(f) for f in (of, jax.grad(of), lambda data: factorized(A.with_data(data)).inverse_entries())]
    before, tracing = [f(A.data) for f in programs], sys.gettrace()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host_calls, "kept", interrupted)
        for f in programs:
            with pytest.raises(KeyboardInterrupt):
                f(A.data)
    sys.settrace(tracing)  # else the tests after this one would not count in a measurement of coverage
    for f, x in zip(programs, before, strict=True):
        np.testing.assert_array_equal(f(A.data), x)
