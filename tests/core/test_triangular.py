"""Triangular solves by levels and in native code; their answers: `tests/solvers/test_triangular.py`."""

import jax
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.triangular import Triangle
from tests.lowering import lowered, quick_jit

N = 300
R = np.random.default_rng(1).standard_normal(N)
CHAIN = sp.csr_array(sp.diags_array(np.full(N - 1, 0.5), offsets=-1))
solve = quick_jit(lambda T, r: T.solve(r))


def test_a_long_level_and_as_many_levels_as_rows_are_cut_into_chunks():
    """A bidiagonal matrix, one entry a level; and an arrow, all entries but one row's in one level."""
    arrow = sp.lil_array((N, N))
    arrow[1:, 0] = 0.25
    for S in (CHAIN, sp.csr_array(arrow)):
        T = Triangle.of(S, False)
        sizes = np.diff(T.starts)
        assert T.starts[0] == 0 and T.starts[-1] == S.nnz and sizes.min() > 0 and sizes.max() <= T.width
        for turned, D in ((T, np.eye(N) + S.toarray()), (T.T, np.eye(N) + S.toarray().T)):
            with jsf.use_backend("xla"):
                np.testing.assert_allclose(solve(turned, R), np.linalg.solve(D, R), rtol=1e-12, atol=1e-12)


def test_a_cpu_runs_one_native_call_and_an_exported_program_none():
    T = Triangle.of(CHAIN, False)
    assert lowered(Triangle.solve, T, R, platforms=("cpu",)).count("jaxsparse_native") >= 1
    assert "jaxsparse_native" not in jax.export.export(jax.jit(lambda r: T.solve(r)))(R).mlir_module()
