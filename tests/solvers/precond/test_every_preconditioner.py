"""What every preconditioner promises: a linear operator with a transpose, for one vector or several, in any jit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import precond
from solvers.precond.block_jacobi import block_jacobi
from solvers.precond.chebyshev import chebyshev
from solvers.precond.coarse_space import coarse_space
from solvers.precond.ilu import ilu
from solvers.precond.incomplete import incomplete_cholesky, incomplete_lu
from solvers.precond.jacobi import jacobi
from solvers.precond.multigrid import multigrid
from tests.formats.test_closed_over import slow
from tests.lowering import quick_jit
from tests.marks import few
from tests.solvers.precond.operators import apply, assert_near, dense, one_by_one, spd, unsymmetric

SYMMETRIC = {
    "jacobi": jacobi,
    "block_jacobi": lambda A: block_jacobi(A, 3),
    "chebyshev": lambda A: chebyshev(A, 2, M=jacobi(A)),
    "incomplete_cholesky": incomplete_cholesky,
    "multigrid": lambda A: multigrid(A, max_coarse=30, degree=1),
    "coarse_space": lambda A: coarse_space(A, np.eye(81, 4) + 0.1),
}
GENERAL = {
    "block_jacobi": lambda A: block_jacobi(A, 5),
    "incomplete_lu": lambda A: incomplete_lu(A, solve_sweeps=2),
    "ilu": lambda A: ilu(A, drop_tol=1e-2, fill=3),
}
NAMES = [*SYMMETRIC, "incomplete_lu", "ilu"]
every = pytest.mark.parametrize("name", NAMES)
one_of_all = pytest.mark.parametrize("name", few(NAMES, 1))
every_symmetric = pytest.mark.parametrize("name", SYMMETRIC)
DTYPES = (np.float32, np.float64, np.complex128)


@functools.cache
def made(name: str, dtype=np.float64, format: str = "csr"):
    """The preconditioner of `spd()` or, where it takes any matrix, of `unsymmetric()`."""
    general = name not in SYMMETRIC
    A = jsf.from_scipy(unsymmetric(dtype) if general else spd(dtype), format)
    return (GENERAL if general else SYMMETRIC)[name](A)


transposed = quick_jit(lambda M, y: jax.linear_transpose(lambda r: M @ r, y)(y)[0])


def vectors(M, *shape: int, seed: int = 3):
    rng = np.random.default_rng(seed)
    real, imaginary = rng.standard_normal((2, M.shape[0], *shape))
    return jnp.asarray(real + 1j * imaginary if jnp.iscomplexobj(jnp.zeros(0, M.dtype)) else real, M.dtype)


@pytest.mark.parametrize("dtype", few(DTYPES, 1))
@every_symmetric
def test_it_is_hermitian_and_positive_definite(name, dtype):
    D = dense(made(name, dtype))
    assert_near(D, D.conj().T)
    smallest, *_, largest = np.linalg.eigvalsh((D + D.conj().T) / 2)
    assert smallest > 1e-4 * largest


@pytest.mark.parametrize("dtype", few([np.float64, np.complex128], 1))
@every
def test_T_is_the_transpose(name, dtype):
    M = made(name, dtype)
    n = 81 if name in SYMMETRIC else 64
    assert M.T.shape == M.shape == (n, n) and M.T.dtype == M.dtype == dense(M).dtype == dtype
    assert_near(dense(M.T), dense(M).T)
    assert_near(dense(M.T.T), dense(M))


@one_of_all
def test_several_columns_are_as_many_vectors(name):
    M = made(name)
    R = vectors(M, M.shape[0])
    want = np.stack([apply(M, r) for r in R.T], axis=1)
    assert_near(apply(M, R), want)
    assert_near(one_by_one(M, R), want)
    assert jax.eval_shape(lambda M, r: M @ r, M, R[:, :1]).shape == (M.shape[0], 1)


@one_of_all
def test_it_is_linear_as_far_as_jax_can_see(name):
    M = made(name)
    y = vectors(M)
    assert_near(transposed(M, y), dense(M).T @ np.asarray(y), rounding=1000)


@pytest.mark.parametrize("name", few([name for name in NAMES if name != "multigrid"], 1))
def test_a_wider_vector_stays_wide(name):
    """Inside the cycle of multigrid vectors have the dtype of what it stores."""
    M = made(name, np.float32)
    r = vectors(M).astype(np.float64)
    z = apply(M, r)
    assert z.dtype == np.float64
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, M)
    assert_near(z, np.asarray(apply(wide, r)), rounding=1e4)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("ilu", "multigrid")])
@pytest.mark.parametrize("dtype", few(["bfloat16", "float16"], 1))
def test_narrow_values_are_worked_on_in_32_bits(name, dtype):
    """Whose inverse 16 bits may not hold; the levels of multigrid have the dtype of the matrix."""
    make, S = (SYMMETRIC[name], spd()) if name in SYMMETRIC else (GENERAL[name], unsymmetric())
    narrow = jsf.from_scipy(1e-5 * S, "csr", dtype)
    M = make(narrow)
    assert M.dtype == np.float32
    assert_near(dense(M), dense(make(narrow.astype(np.float32))))


@one_of_all
def test_whole_numbers_and_complex_ones_are_multiplied_as_they_are(name):
    M, r = made(name), np.arange(made(name).shape[0]) - 7
    assert_near(apply(M, r), dense(M) @ r)
    assert_near(apply(M, (2 - 1j) * r), dense(M) @ ((2 - 1j) * r))


PARTS = np.arange(512) // 64
REFRESHED = SYMMETRIC | GENERAL | {"coarse_space": lambda A: coarse_space(A, precond.subdomains(np.ones(512), PARTS))}


@pytest.mark.parametrize("name", REFRESHED)
def test_xla_folds_no_running_sum_and_no_loop_over_the_pattern_of_one_that_is_closed_over(name):
    """Applied, and refreshed."""
    A, v = jsf.from_scipy(jsf.gallery.poisson(8), "csr"), np.ones(512)
    M = REFRESHED[name](A)

    def both(M, A, v):
        return M @ v, M.refreshed(A.with_data(v[0] * A.data)) @ v if name != "multigrid" else 0

    assert not slow(lambda v: both(M, A, v), v)


@every
def test_what_is_no_vector_of_its_length_is_refused(name):
    M = made(name)
    n = M.shape[0]
    for shape in ((), (1,), (n - 1,), (n + 1,), (1, 3), (1, n), (3, n), (n, 1, 1), (1, n, 2)):
        with pytest.raises(ValueError, match=rf"takes r of shape \({n},\) or \({n}, p\); got \("):
            M @ np.ones(shape)
    for r in (["a"] * n, None, jsf.from_scipy(spd(), "csr")):
        with pytest.raises(TypeError):
            M @ r


@pytest.mark.parametrize("make", [*SYMMETRIC.values(), *GENERAL.values()])
def test_what_is_no_square_matrix_is_refused(make):
    with pytest.raises(ValueError, match=r"square matrix; got \(2, 3\)"):
        make(jsf.from_scipy(sp.csr_array(np.ones((2, 3)))))
    with pytest.raises(ValueError, match="got function"):
        make(jacobi)


def test_jacobi_of_a_matrix_is_one_program(compiled):
    A = jsf.from_scipy(jsf.gallery.poisson(43, dim=1), "ell")
    before = compiled()
    jacobi(A)
    assert compiled() - before == 1
