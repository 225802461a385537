"""What multigrid refuses, with the cure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers.precond.multigrid import multigrid
from tests.solvers.precond.test_multigrid import CUBE, FLOW

pyamg = pytest.importorskip("pyamg")


def with_entry(value: float) -> sp.csr_array:
    S = CUBE.copy()
    S.data[10] = value
    return S


@pytest.mark.parametrize(
    ("A", "options", "error", "message"),
    [
        (CUBE[:5], {}, ValueError, r"square matrix.*\(5, 216\)"),
        (sp.csr_array((0, 0)), {}, ValueError, r"at least one row.*\(0, 0\)"),
        (CUBE.toarray(), {}, TypeError, "jaxsparse_fmt or scipy.sparse; got ndarray"),
        (with_entry(np.nan), {}, ValueError, "NaN or an infinity"),
        (sp.csr_array(CUBE - sp.diags_array(6.0 * (np.arange(216) == 7))), {}, ValueError, "diagonal, first in row 7"),
        (CUBE, {"cycle": "X"}, ValueError, "unknown cycle 'X'; choose one of V, W, F, K"),
        (CUBE, {"candidates": "random"}, ValueError, "unknown candidates 'random'; choose one of constant, adaptive"),
        (CUBE, {"theta": 1.0}, ValueError, "theta must be at least 0 and below 1; got 1"),
        (CUBE, {"smoother": "sor"}, ValueError, "unknown smoother 'sor'; choose one of chebyshev"),
        (CUBE, {"degree": 0}, ValueError, "degree must be at least 1; got 0"),
        (CUBE, {"fraction": 1.5}, ValueError, "between 0 and 1; got 1.5"),
        (CUBE, {"block_size": 5}, ValueError, "block_size 5 does not divide the 216 rows"),
        (CUBE, {"B": np.ones(7)}, ValueError, r"B must hold.*\(216, k\); got \(7, 1\)"),
        (CUBE, {"B": np.full(216, np.inf)}, ValueError, "B has a NaN or an infinity"),
        (CUBE, {"B": np.ones(216) * 1j}, TypeError, "B is complex"),
        (CUBE, {"presmoother": "jacobi"}, TypeError, "presmoother"),
        (FLOW, {"refreshable": True}, ValueError, "refreshable=True needs a Hermitian matrix"),
        (CUBE, {"setup": pyamg.ruge_stuben_solver(FLOW[:64, :64])}, ValueError, "a level of 216 rows has P of shape"),
        (1e30 * CUBE, {"dtype": "float16", "max_coarse": 50}, ValueError, "dtype float16 holds none above"),
        (jsf.gallery.poisson(17), {"max_levels": 1}, ValueError, "stopped at 4913 rows.*raise max_levels"),
        (CUBE, {"format": "nonesuch", "max_coarse": 50}, ValueError, "unknown format 'nonesuch'"),
    ],
)
def test_bad_input_is_refused_with_the_cure(A, options, error, message):
    with pytest.raises(error, match=message):
        multigrid(A, **options)


def test_a_traced_matrix_is_refused():
    with pytest.raises(TypeError, match="build M outside jit"):
        jax.jit(lambda A: multigrid(A) @ jnp.ones(216))(jsf.from_scipy(CUBE))


def test_a_vector_of_another_length_is_refused():
    for r in (np.ones(7), np.ones((1, 216)), np.ones((216, 2, 2))):
        with pytest.raises(ValueError, match=r"takes r of shape \(216,\) or \(216, p\); got"):
            multigrid(CUBE) @ r


def test_a_refresh_is_refused_with_the_cure():
    M = multigrid(CUBE)
    with pytest.raises(ValueError, match=r"make it with precond\.multigrid\(A, refreshable=True\)"):
        M.refreshed(jsf.from_scipy(2 * CUBE))
