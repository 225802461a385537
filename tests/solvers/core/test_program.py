"""Functions as A and M: what they close over counts at every call, and the same function is compiled once."""

import dataclasses
import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt import _tracing
from jaxsparse_fmt.core import matrix, vector_passes
from jaxsparse_fmt.kernels.backends import jax_versions
from solvers import Adjoint, cg, eigsh, factors, gmres
from solvers.core import opaque, program
from tests.process import printed
from tests.solvers.core.test_structure import simplified_constants

N = 9
LARGE = np.ones(2000)
D = np.arange(1.0, N + 1)
B = np.ones(N)
SPARSE = jsf.from_dense(np.diag(D), "csr")


class Operator:
    def __init__(self):
        self.d, self.scale = jnp.asarray(D), 1.0

    def product(self, v):
        return self.scale * (self.d * v)


@pytest.mark.parametrize("kind", ["cg", "M", "eigsh"])
def test_the_same_function_compiles_once_and_counts_with_what_it_closes_over_now(kind, compiled):
    own = Operator()

    def answer():
        if kind == "eigsh":
            return eigsh(own.product, 1, v0=B + D).eigenvalues
        return cg(SPARSE, B, M=own.product, maxiter=1).x if kind == "M" else cg(own.product, B, rtol=1e-12).x

    first = answer()
    before = compiled()
    np.testing.assert_array_equal(answer(), first)
    own.d = jnp.asarray(1 / D if kind == "M" else 3 * D)
    exact = {"cg": 1 / (3 * D), "M": 1 / D, "eigsh": [3.0 * N]}[kind]
    np.testing.assert_allclose(answer(), exact, rtol=1e-9)
    assert compiled() == before
    own.scale = 2.0
    np.testing.assert_allclose(answer(), exact * np.array({"cg": 0.5, "M": 1.0, "eigsh": 2.0}[kind]), rtol=1e-9)
    assert compiled() == before


def test_an_array_inside_a_jitted_function_inside_counts_as_it_is_now(compiled):
    own = Operator()

    def product(v):
        return jax.jit(own.product)(v)  # its program holds own.d, which the text of a program leaves out

    np.testing.assert_allclose(cg(product, B, rtol=1e-12).x, 1 / D, rtol=1e-9)
    before = compiled()
    np.testing.assert_allclose(cg(product, B, rtol=1e-12).x, 1 / D, rtol=1e-9)
    assert compiled() == before
    own.d = jnp.asarray(3 * D)
    np.testing.assert_allclose(cg(product, B, rtol=1e-12).x, 1 / (3 * D), rtol=1e-9)


def test_new_functions_with_other_numbers_share_a_program(compiled):
    first = cg(lambda v: 1.5 * v, B, rtol=1e-14).x
    before = compiled()
    other = cg(lambda v: (1.5 + 1e-10) * v, B, rtol=1e-14).x
    assert compiled() == before
    np.testing.assert_allclose(first - other, 1e-10 / 1.5**2, rtol=1e-4)


def test_what_a_callback_holds_counts_as_it_is_now(compiled):
    def on_host(table, v):
        return table * np.asarray(v)

    held = {"table": 2 * LARGE}

    def product(v):
        return jax.pure_callback(functools.partial(on_host, held["table"]), v, v)

    def answer():
        return float(cg(product, LARGE).x[1000])

    assert answer() == pytest.approx(1 / 2)
    before = compiled()
    held["table"][500:1500] = 4.0  # in place: the program reads it
    assert answer() == pytest.approx(1 / 4)
    assert compiled() == before
    held["table"] = held["table"].copy()
    held["table"][500:1500] = 8.0
    assert answer() == pytest.approx(1 / 8)


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("make", [jnp.asarray, np.asarray])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_large_array_that_is_replaced_counts(simplified, make, is_inside):
    """The text of a program shortens it, also where it is a literal."""
    held = {}

    def product(v):
        inner = lambda v: v * make(held["d"])  # noqa: E731
        return (jax.jit(inner) if is_inside else inner)(v)

    def answer(middle):
        held["d"] = np.full(LARGE.size, 2.0)
        held["d"][500:1500] = middle
        return float(cg(product, LARGE).x[1000])

    with simplified_constants(simplified):
        assert [answer(2.0), answer(4.0), answer(8.0)] == pytest.approx([0.5, 0.25, 0.125])


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


def test_operations_are_compared_by_all_their_fields():
    """Otherwise the vmaps of two would share a program."""

    class Scaled(opaque.Operation):
        factor: float

        def compute(self, inputs):
            return self.factor * inputs

    assert [float(jax.vmap(Scaled(k))(jnp.ones(2))[0]) for k in (2.0, 3.0)] == [2.0, 3.0]
    assert Scaled(2.0) == Scaled(2.0) != Scaled(3.0)
    with pytest.raises(TypeError):
        dataclasses.dataclass(frozen=True, eq=False)(Scaled)


def test_xla_computes_no_norm_of_a_right_hand_side_in_a_closure():
    """It would take a second for a million numbers while it compiles, and say so on the terminal."""
    passed = jax.jit(lambda A, b: cg(A, b, maxiter=3).x).lower(SPARSE, B).compile().as_text()
    inside = jax.jit(lambda A: cg(A, B, maxiter=3).x).lower(SPARSE).compile().as_text()
    assert inside and passed and inside.count(" reduce(") == passed.count(" reduce(")


def test_does_jaxlib_have_the_options_of_quick_compiling(compiled):
    x, before = jnp.float32(3), compiled()
    program.jit(lambda scale, x: scale * x, True)(5, x)
    assert compiled() - before == 1  # another program would follow one that is refused


def test_are_errors_of_a_compiled_program_raised(monkeypatch):
    monkeypatch.setattr(jax_versions, "QUICK_TO_COMPILE", {"xla_gpu_experimental_enable_fusion_autotuner": "a word"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="bool"):
        program.jit(lambda scale, x: scale * x, True)(2, jnp.float32(3))


def test_may_the_first_use_of_a_solver_be_inside_jit():
    """Which imports it there, while JAX traces."""
    first = "import jax, jaxsparse as js; x = jax.jit(lambda a: js.cg(a, jax.numpy.ones(2)).x)(jax.numpy.eye(2)); "
    traced = "from jaxsparse_fmt.kernels.backends.jax_versions import is_traced_here; print(x.sum(), is_traced_here())"
    assert printed("-c", first + traced).split() == ["2.0", "False"]


def test_is_an_eager_solve_compiled_with_options_that_a_nested_jit_may_not_have():
    assert not jax_versions.is_traced_here()
    inside = jax.jit(lambda x: x * jax_versions.is_traced_here())
    assert inside(1.0) == 1
    assert jax.grad(lambda x: x * jax_versions.is_traced_here())(1.0) == 1
    np.testing.assert_allclose(jax.jit(lambda: cg(SPARSE, B, maxiter=1).x)(), cg(SPARSE, B, maxiter=1).x, rtol=1e-6)


def test_a_solve_without_a_derivative_keeps_nothing_of_a_report():
    def solve():
        held = Operator()

        def report(*_):
            assert held.scale == 1

        cg(SPARSE, B, adjoint=Adjoint(report=report))
        return weakref.ref(held)

    gone = solve()
    gc.collect()
    assert gone() is None


def test_programs_of_ever_new_sizes_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(_tracing, "PROGRAMS", 3)

    def f(n, x):
        return n * x

    bounded = _tracing.by_size(f, static_argnums=0)
    for n in range(1, 9):
        assert bounded(n, np.ones(n)).sum() == n * n and bounded(n, np.ones(n)).sum() == n * n
    gc.collect()
    assert sum(isinstance(o, functools.partial) and o.func is f for o in gc.get_objects()) == 3
    assert program.jit.cache_info().maxsize == opaque._jitted.cache_info().maxsize == 256
    for of_the_library in (matrix._applied, vector_passes.noise, factors._applied):
        assert isinstance(of_the_library, types.FunctionType)  # bounded so, which `jax.jit` makes none
