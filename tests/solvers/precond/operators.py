"""What the tests of preconditioners share: operators as dense matrices, and the matrices to make them of."""

from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from tests.lowering import quick_jit

apply = quick_jit(lambda M, r: M @ r)
one_by_one = quick_jit(jax.vmap(lambda M, r: M @ r, in_axes=(None, 1), out_axes=1))


def dense(M: Any) -> np.ndarray:
    """M as a matrix: what it does to every unit vector, each on its own."""
    return np.asarray(one_by_one(M, np.eye(M.shape[0], dtype=M.dtype)))


def spd(dtype: Any = np.float64) -> sp.csr_array:
    """81 unknowns, 27 nodes with three displacements each, of different units; complex: with imaginary parts too."""
    S = jsf.gallery.elasticity(3)
    units = 10.0 ** np.linspace(-0.3, 0.3, 81)
    if np.issubdtype(dtype, np.complexfloating):
        noise = S.copy()
        noise.data = np.random.default_rng(1).uniform(-0.005, 0.005, S.nnz)
        S = S + 1j * (noise - noise.T)
    return sp.csr_array(sp.diags_array(units) @ S @ sp.diags_array(units)).astype(dtype)


def unsymmetric(dtype: Any = np.float64) -> sp.csr_array:
    """64 unknowns of convection and diffusion; complex: rotated row by row."""
    S = jsf.gallery.convection_diffusion(4, velocity=0.1)
    if np.issubdtype(dtype, np.complexfloating):
        S = sp.diags_array(np.exp(1j * np.arange(64))) @ S
    return sp.csr_array(S).astype(dtype)


def iterations(S: sp.csr_array, M: Any, method: str = "cg") -> int:
    """That SciPy's cg or gmres takes to 1e-8 with M; the products with M are ours."""
    b, steps = np.random.default_rng(0).standard_normal(S.shape[0]), []
    operator = spla.LinearOperator(S.shape, lambda r: np.array(apply(M, r.ravel())), dtype=S.dtype)
    if method == "cg":
        x, _ = spla.cg(S, b, M=operator, rtol=1e-8, maxiter=1000, callback=steps.append)
    else:
        options = {"restart": 200, "maxiter": 1, "callback_type": "pr_norm"}
        x, _ = spla.gmres(S, b, M=operator, rtol=1e-8, callback=steps.append, **options)
    assert np.linalg.norm(b - S @ x) <= 1e-6 * np.linalg.norm(b)
    return len(steps)


def assert_near(got: Any, want: np.ndarray, rounding: float = 100) -> None:
    """Within `rounding` units in the last place of the largest number in `want`."""
    got = np.asarray(got)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=rounding * np.finfo(got.dtype).eps * np.abs(want).max())


def trilinear(n: int) -> sp.csr_array:
    """Finite elements of the Laplace operator on cubes: 27 points, of which none is coupled strongly."""
    K, M = (sp.diags_array([a, b, a], offsets=[-1, 0, 1], shape=(n, n)) for a, b in ((-1.0, 2.0), (1 / 6, 2 / 3)))
    kron = lambda *of: sp.kron(sp.kron(*of[:2]), of[2])  # noqa: E731
    return sp.csr_array(kron(K, M, M) + kron(M, K, M) + kron(M, M, K))


def random_vector(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, *shape))


def scipy_iterations(S: sp.csr_array, b: np.ndarray, M: Any, rtol: float) -> int:
    """Of SciPy's cg, which compiles nothing but the cycle."""
    steps, operator = [], spla.LinearOperator(S.shape, lambda r: np.asarray(M @ r))
    x, info = spla.cg(S, b, rtol=rtol, M=operator, callback=steps.append)
    assert info == 0 and np.linalg.norm(b - S @ x) <= 1.01 * rtol * np.linalg.norm(b)
    return len(steps)
