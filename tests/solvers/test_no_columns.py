"""Systems without a right-hand side, b [n, 0], have x [n, 0] and no status that is a failure, as in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from solvers import precond
from tests.marks import few
from tests.solvers.methods import CASES, REFINED, N, neumann

S = neumann(N)
A = jsf.from_scipy(S + 0.1 * sp.eye_array(N), "csr")
BANDS = np.tile([[-1.0], [4.0], [-1.0]], N)
DOORS = {str(case): case.solver for case in CASES + REFINED} | {
    "direct": solvers.direct,
    "solve": solvers.solve,
    "solve by name": lambda A, b: solvers.solve(A, b, method="cg"),
    "lsmr": solvers.lsmr,
    "M": lambda A, b: solvers.cg(A, b, M=precond.jacobi(A), x0=b, history=True),
    "progress": lambda A, b: solvers.cg(A, b, progress=True),
    "null space": lambda A, b: solvers.cg(A, b, nullspace="constant"),
    "null space of factors": lambda A, b: solvers.direct(A, b, nullspace="constant"),
    "factors": lambda A, b: solvers.factorized(A).solve(b),
    "product with factors": lambda A, b: solvers.factorized(A) @ b,
    "triangle": lambda A, b: solvers.spsolve_triangular(jsf.tril(A), b),
    "bands": lambda A, b: solvers.solve_banded((1, 1), BANDS, b),
}


@pytest.mark.parametrize("name", few(DOORS, 8))
def test_no_right_hand_side_has_no_solution_and_no_failure(name):
    door, b = DOORS[name], jnp.zeros((N, 0))
    B = jsf.from_scipy(S, "csr") if "null" in name else A
    sol = door(B, b)
    x = sol.x if isinstance(sol, solvers.Solution) else sol
    assert x.shape == (N, 0)
    if isinstance(sol, solvers.Solution):
        assert sol.raise_for_status() is sol and sol.code.shape == sol.residual_norm.shape == (0,)
        assert "no systems" in repr(sol) and sol._repr_html_() is None
    if name in ("triangle", "bands"):
        return
    in_jit = jax.jit(lambda data: jax.tree.leaves(door(B.with_data(data), b))[0])
    assert in_jit(B.data).shape == (N, 0)
    assert jax.vmap(in_jit)(jnp.stack([B.data] * 3)).shape == (3, N, 0)
