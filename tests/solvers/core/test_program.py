"""Functions as A and M: what they close over counts at every call, and equal programs are compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import cg, eigsh, gmres
from solvers.core import program

N = 9
D = np.arange(1.0, N + 1)
B = np.ones(N)
SPARSE = jsf.from_dense(np.diag(D), "csr")


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["array", "matrix", "nested", "preconditioned", "derivative", "eigsh"])
def test_does_a_new_function_of_the_same_structure_compile_nothing_and_count_with_its_own_values(kind, compiled):
    def answer(scale):
        if kind == "array":
            d = jnp.asarray(scale * D)
            return cg(lambda v: d * v, B, rtol=1e-12).x
        A = SPARSE.with_data(jnp.asarray(scale * D))
        if kind == "matrix":
            return cg(lambda v: A @ v, B, rtol=1e-12).x
        if kind == "nested":
            return cg(lambda v: cg(A, v, rtol=1e-13).x, B, rtol=1e-12).x
        if kind == "preconditioned":
            d = jnp.asarray(1 / (scale * D))
            return cg(A, B, M=lambda r: d * r, rtol=1e-12).x
        if kind == "eigsh":
            return eigsh(lambda v: A @ v, 1, v0=B + D).eigenvalues
        return jax.grad(lambda s: cg(lambda v: s * (A @ v), B, rtol=1e-12).x.sum())(jnp.asarray(1.0))

    exact = {"nested": lambda s: s * D, "eigsh": lambda s: s * D[-1:], "derivative": lambda s: -np.sum(1 / (s * D))}
    exact = exact.get(kind, lambda s: 1 / (s * D))
    np.testing.assert_allclose(answer(2.0), exact(2.0), rtol=1e-9)
    np.testing.assert_allclose(answer(3.0), exact(3.0), rtol=1e-9)
    before = compiled()
    np.testing.assert_allclose(answer(5.0), exact(5.0), rtol=1e-9)
    assert compiled() == before


def test_are_programs_told_apart_by_constants_parameters_and_equations():
    like = jnp.ones(3)
    functions = [
        lambda v: 2.0 * v,
        lambda v: 3.0 * v,
        lambda v: -0.0 * v,
        lambda v: 0.0 * v,
        lambda v: v**2,
        lambda v: v**3,
        lambda v: jnp.roll(v, 1),
        lambda v: jnp.roll(v, 2),
        lambda v: v + v[0],
        lambda v: v + v[1],
        lambda v: jax.lax.fori_loop(0, 3, lambda _, v: 2.0 * v, v),
        lambda v: jax.lax.fori_loop(0, 3, lambda _, v: 4.0 * v, v),
        lambda v: jax.lax.fori_loop(0, 4, lambda _, v: 2.0 * v, v),
    ]
    programs = [program.traced(f, like).program for f in functions]
    again = [program.traced(f, like).program for f in functions]
    for i, one in enumerate(programs):
        assert [one == other for other in again] == [i == j for j in range(len(again))]
        assert hash(one) == hash(again[i])
    assert program.traced(functions[0], jnp.ones(4)).program != programs[0]
    assert program.traced(functions[0], jnp.ones(3, jnp.float32)).program != programs[0]


def test_is_what_compiled_functions_keep_bounded():
    assert program.jit.cache_info().maxsize == program.PROGRAMS


@pytest.mark.parametrize("solver", [cg, gmres])
def test_do_second_calls_and_eager_gradients_compile_nothing(solver, compiled):
    def answers(scale):
        A = SPARSE.with_data(jnp.asarray(scale * D))
        total = lambda data, b: solver(A.with_data(data), b, rtol=1e-10).x.sum()  # noqa: E731
        return solver(A, scale * B).x, *jax.grad(total, (0, 1))(A.data, B)

    answers(1.0)
    before = compiled()
    x, d_data, d_b = answers(2.0)
    assert compiled() == before
    np.testing.assert_allclose(x, 1 / D, rtol=1e-5)
    np.testing.assert_allclose(d_data, -1 / (2 * D) ** 2, rtol=1e-5)
    np.testing.assert_allclose(d_b, 1 / (2 * D), rtol=1e-5)
