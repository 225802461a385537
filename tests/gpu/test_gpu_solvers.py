"""Solvers on a GPU: the answer, the count, the status and the derivative, through the kernels."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import Status, cg, direct, eigsh, precond
from solvers.precond import _device_hierarchy
from tests.solvers.methods import CASES as METHODS
from tests.solvers.methods import REFINED

pytestmark = pytest.mark.gpu

S = jsf.gallery.poisson(24)
B = np.random.default_rng(0).standard_normal(S.shape[0])


@pytest.mark.parametrize("case", METHODS + REFINED, ids=lambda case: case.name)
def test_every_method_reaches_its_residual_in_as_many_steps_as_in_plain_code(case):
    M, b = case.system()
    A = jsf.from_scipy(M, "hll")
    sol = case.solver(A, b, rtol=1e-9)
    with jsf.use_backend("xla"):
        plain = case.solver(jsf.from_scipy(M, "hll"), b, rtol=1e-9)
    assert sol.success and np.linalg.norm(b - M @ np.asarray(sol.x)) <= 1.01e-9 * np.linalg.norm(b)
    assert abs(sol.iterations - plain.iterations) <= max(2, 0.05 * plain.iterations)


@pytest.mark.parametrize("dialect", ["triton", "mosaic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("merged", [False, True], ids=["cg", "one_reduction"])
@pytest.mark.parametrize("format", ["dia", "sell", "bsr"])
def test_the_passes_of_both_dialects_take_the_steps_of_plain_code(format, merged, dtype, dialect):
    A, b = jsf.from_scipy(S, format, dtype, backend=dialect), B.astype(dtype)
    with jsf.use_backend("xla"):
        plain = cg(jsf.from_scipy(S, format, dtype), b, rtol=1e-5, one_reduction=merged)
    with jsf.use_backend(dialect):
        sols = [cg(A, b, rtol=1e-5, one_reduction=merged) for _ in range(2)]
    assert sols[0].success and abs(sols[0].iterations - plain.iterations) <= 1
    np.testing.assert_allclose(sols[0].x, plain.x, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(sols[0].x, sols[1].x)


def test_a_million_unknowns_go_through_the_passes_in_rounds():
    big = jsf.gallery.poisson(100)
    b = np.random.default_rng(2).standard_normal(big.shape[0])
    sol = cg(jsf.from_scipy(big, "dia"), b, rtol=1e-10)
    assert sol.success and np.linalg.norm(b - big @ np.asarray(sol.x)) <= 1.01e-10 * np.linalg.norm(b)


def test_columns_are_solved_together_and_end_alone():
    X = np.random.default_rng(3).standard_normal((S.shape[0], 8)) * 10.0 ** np.arange(8)
    X[:, 2] = 0
    sol = cg(jsf.from_scipy(S, "bsr", block_shape=(2, 2)), X, rtol=1e-8)
    assert np.all(sol.code == Status.CONVERGED) and sol.iterations[2] == 0
    residual = np.linalg.norm(X - S @ np.asarray(sol.x), axis=0)
    assert np.all(residual <= 1.01e-8 * np.linalg.norm(X, axis=0))


def test_multigrid_set_up_on_the_gpu_takes_the_steps_of_the_hosts(monkeypatch):
    A = jsf.from_scipy(jsf.gallery.poisson(40))
    b = np.random.default_rng(4).standard_normal(A.shape[0])
    host = cg(A, b, M=precond.multigrid(A), rtol=1e-8)
    monkeypatch.setattr(_device_hierarchy, "MANY", 1000)
    monkeypatch.setattr(_device_hierarchy, "FEW", 2**18)
    sol = cg(A, b, M=precond.multigrid(A), rtol=1e-8)
    assert sol.success and abs(sol.iterations - host.iterations) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pairs_near_a_singular_shift_are_right(dtype):
    """Neumann's Laplacian on 20 × 18 points; pairs of its inverse are up to 10^15 times larger than others."""
    path = lambda n: sp.diags_array([1.0, *[2.0] * (n - 2), 1.0]) - sp.eye_array(n, k=1) - sp.eye_array(n, k=-1)  # noqa: E731
    S = sp.csr_array(sp.kronsum(path(20), path(18)))
    sol = eigsh(jsf.from_scipy(S.astype(dtype), "csr"), 4, sigma=0)
    wanted = np.linalg.eigvalsh(S.toarray())[:4]
    assert sol.success and np.max(np.abs(np.asarray(sol.eigenvalues) - wanted)) <= 100 * np.finfo(dtype).eps


@pytest.mark.skipif(importlib.util.find_spec("spineax") is None, reason="the extra 'cudss' is not installed")
@pytest.mark.parametrize("symmetric", [True, False])
def test_cudss_solves_with_new_values_in_a_batch_and_differentiates(symmetric):
    P = sp.csr_array(jsf.gallery.poisson(20, dim=2) if symmetric else jsf.gallery.convection_diffusion(7))
    A, b = jsf.from_scipy(P, "csr"), np.random.default_rng(0).standard_normal(P.shape[0])
    x, scales = spla.spsolve(P.tocsc(), b), np.array([1.0, 2.0, -0.5])

    def solve(data, backend="cudss"):
        return direct(A.with_data(data), b, backend=backend, symmetric=symmetric).x

    batch = jax.jit(jax.vmap(solve))(scales[:, None] * A.data)
    np.testing.assert_allclose(batch, x / scales[:, None], rtol=1e-8, atol=1e-10)
    got, want = (
        jax.jit(jax.grad(lambda data, name=name: jnp.sum(jnp.sin(solve(data, name)))))(A.data)
        for name in ("cudss", "superlu")
    )
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-9 * np.abs(want).max())
    with jax.debug_nans(False):
        assert direct(0 * A, b, backend="cudss").status is Status.SINGULAR
