"""Keywords that all solvers share: what a wrong one is told, and switches that do not bear on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
import solvers
from solvers import eigsh, lobpcg, lsmr


@pytest.mark.parametrize("name", ["cg", "fcg", "minres", "gmres", "bicgstab", "refine"])
@pytest.mark.parametrize(("keyword", "told"), [("tol", "here it is 'rtol'"), ("rtoll", "it has x0, M, rtol")])
def test_is_an_unknown_keyword_told_what_there_is(name, keyword, told):
    with pytest.raises(TypeError, match=rf"{name} has no keyword '{keyword}'.*{told}"):
        getattr(solvers, name)(np.eye(3), np.ones(3), **{keyword: 1e-3})


OTHERS = {
    "lsmr": lambda A, b: lsmr(A, b, damp=0.5).x,
    "lobpcg": lambda A, b: lobpcg(A, 1, X0=b[:, None]).eigenvalues,
    "eigsh": lambda A, b: eigsh(A, 1, v0=b).eigenvalues,
}


@pytest.mark.deep
@pytest.mark.parametrize("solve", OTHERS.values(), ids=OTHERS)
def test_switches_for_the_users_own_code_do_not_bear_on_solvers(solve):
    """Values of float64 and vectors of float32, and the derivatives of both."""
    A = jsf.from_scipy(jsf.gallery.poisson(8, dim=1), "csr")
    b = np.linspace(1, 2, 8, dtype=np.float32)

    def both(data, b):
        x, back = jax.vjp(lambda data, b: solve(A.with_data(data), b), data, b)
        return x, back(jnp.ones_like(x))

    want = both(A.data, b)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.tree.map(np.testing.assert_array_equal, both(A.data, b), want)
