"""What multigrid refuses, with the cure."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers.precond.multigrid import multigrid, rigid_body_modes
from tests.solvers.precond.test_multigrid import CUBE, magnetic


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
        (CUBE, {"method": "geometric"}, ValueError, "unknown method 'geometric'; choose one of smoothed_aggregation"),
        (CUBE, {"smoother": "sor"}, ValueError, "unknown smoother 'sor'; choose one of chebyshev"),
        (CUBE, {"degree": 0}, ValueError, "degree must be at least 1; got 0"),
        (CUBE, {"fraction": 1.5}, ValueError, "between 0 and 1; got 1.5"),
        (CUBE, {"block_size": 5}, ValueError, "block_size 5 does not divide the 216 rows"),
        (CUBE, {"near_null": np.ones(7)}, ValueError, r"near_null.*\(216, m\); got \(7,\)"),
        (CUBE, {"near_null": np.full(216, np.inf)}, ValueError, "near_null has a NaN or an infinity"),
        (CUBE, {"near_null": np.ones(216) * 1j}, TypeError, "near_null is complex"),
        (CUBE, {"near_null": np.ones(216), "method": "ruge_stuben"}, TypeError, "cannot take near_null"),
        (magnetic(4), {"method": "ruge_stuben"}, TypeError, "cannot take a complex matrix"),
        (CUBE, {"presmoother": "jacobi"}, TypeError, "no option 'presmoother'; .* strength, aggregate"),
        (CUBE, {"CF": "PMIS"}, TypeError, "no option 'CF'"),
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
    with pytest.raises(NotImplementedError, match=r"make it anew outside jit with precond\.multigrid\(A\)"):
        M.refreshed(jsf.from_scipy(2 * CUBE))


def test_coordinates_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(points, 2\) or \(points, 3\); got \(7,\)"):
        rigid_body_modes(np.ones(7))


def test_without_pyamg_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyamg", None)
    with pytest.raises(ImportError, match="pip install pyamg"):
        multigrid(CUBE)
