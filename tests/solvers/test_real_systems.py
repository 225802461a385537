"""cg on the positive definite matrices of a folder of real ones, against SciPy."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import Status, cg, precond
from tests.solvers.real import each_file, is_hermitian_with_positive_diagonal

MAXITER = 3000
DENSE = 2500  # rows up to which positive definiteness is decided by eigenvalues


@each_file
def test_same_answer_as_scipy_or_an_honest_status(path):
    S = sp.csr_array(jsf.io.read_mtx(path))
    if not is_hermitian_with_positive_diagonal(S):
        pytest.skip("not Hermitian with a positive diagonal")
    b = S @ np.ones(S.shape[0])
    A = jsf.from_scipy(S)
    sol = cg(A, b, M=precond.jacobi(A), rtol=1e-8, maxiter=MAXITER)
    x = np.asarray(sol.x)
    relative = np.linalg.norm(b - S @ x) / np.linalg.norm(b)
    assert np.all(np.isfinite(x))
    assert float(sol.residual_norm) == pytest.approx(relative * np.linalg.norm(b), rel=1e-3)
    assert sol.success == (relative <= 1e-8)

    inverse, steps = sp.diags_array(1 / S.diagonal()), []
    want, info = spla.cg(S, b, M=inverse, rtol=1e-8, maxiter=MAXITER, callback=steps.append)
    if info == 0 and np.linalg.norm(b - S @ want) <= 1e-8 * np.linalg.norm(b):
        assert sol.status is Status.CONVERGED, sol
        assert abs(sol.iterations - len(steps)) <= max(2, 0.02 * len(steps))
    if sol.status is Status.NOT_POSITIVE_DEFINITE and S.shape[0] <= DENSE:
        assert np.linalg.eigvalsh(S.toarray())[0] < 1e-10 * abs(S).max()
