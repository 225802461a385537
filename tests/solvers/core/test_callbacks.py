"""Callbacks and progress: each sees its own solve, to the last call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import cg, lsmr

N = 40
S = jsf.gallery.poisson(N, dim=1)
A = jsf.from_scipy(S, "csr")
B = np.linspace(1.0, 2.0, N)


@pytest.mark.parametrize("solver", [cg, lsmr])
def test_a_callback_and_progress_see_their_own_solve(solver):
    def watched(scale):
        iterates, reports = [], []
        sol = solver(A, scale * B, callback=iterates.append, progress=lambda k, norm: reports.append((k, norm)))
        return sol, iterates, reports

    for scale in (2.0, 3.0):
        sol, iterates, reports = watched(scale)
        assert len(iterates) == sol.iterations > 16 and len(reports) > 0
        np.testing.assert_allclose(iterates[-1], sol.x, rtol=1e-5)


def test_a_callback_may_solve_with_a_callback_of_its_own():
    inner = []

    def outer(x):
        del x
        if not inner:
            cg(A, B, maxiter=1, callback=inner.append)

    cg(A, B, maxiter=2, callback=outer)
    jax.effects_barrier()
    assert len(inner) == 1


def test_an_error_of_a_callback_is_raised_and_the_next_solve_runs():
    def fails(x):
        raise ArithmeticError("stop here")

    with pytest.raises(Exception, match="stop here"):
        jax.block_until_ready(cg(A, B, callback=fails).x)
        jax.effects_barrier()
    seen = []
    assert cg(A, B, callback=seen.append).iterations == len(seen)


def test_inside_jit_and_under_vmap_and_grad_every_iterate_is_shown():
    seen = []
    solve = lambda b: cg(A, b, maxiter=3, callback=lambda x: seen.append(np.shape(x))).x  # noqa: E731
    jax.block_until_ready(jax.jit(solve)(B))
    jax.effects_barrier()
    assert seen == [(N,)] * 3
    for transformed, times in (
        (jax.grad(lambda b: solve(b).sum()), 3),
        (lambda b: jax.vmap(solve)(np.stack([b, b])), 6),
    ):
        seen.clear()
        jax.block_until_ready(transformed(jnp.asarray(B)))
        jax.effects_barrier()
        assert seen == [(N,)] * times
