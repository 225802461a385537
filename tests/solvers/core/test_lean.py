"""Programs stay small, which is what a first call costs; and dense products have full precision on a GPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt._one_kernel import LAST_TRIED, one_kernel
from tests.lowering import equations
from tests.marks import deep, few
from tests.solvers.methods import CASES, Case

S = jsf.gallery.poisson(8)
X_OF = {
    name: functools.partial(lambda solver, A, b: solver(A, b, rtol=1e-8).x, getattr(solvers, name))
    for name in ("cg", "fcg", "bicgstab", "gmres", "idrs", "minres", "lsmr")
}
PROGRAMS = X_OF | {
    "gradient of cg": jax.grad(lambda A, b: jnp.sum(X_OF["cg"](A, b) ** 2), argnums=1),
    "gradient of gmres": jax.grad(lambda A, b: jnp.sum(X_OF["gmres"](A, b) ** 2), argnums=1),
}
# Operations of the program that XLA gets, and kernels that it makes of them for a CPU. Another JAX writes some of
# them otherwise, by a tenth.
counted = pytest.mark.skipif(jax.__version_info__[:2] != (0, 10), reason="the counts are those of JAX 0.10")
BARS = {
    "cg": (421, 24),
    "fcg": (441, 33),
    "bicgstab": (435, 33),
    "gmres": (499, 39),
    "idrs": (769, 39),
    "minres": (622, 44),
    "lsmr": (480, 33),
    "gradient of cg": (518, 35),
    "gradient of gmres": (701, 56),
}


def lowered(name: str):
    A = jsf.from_scipy(S, "csr")
    return jax.jit(PROGRAMS[name]).lower(A, jnp.ones(S.shape[0]))


@counted
@pytest.mark.parametrize("name", PROGRAMS)
def test_how_many_operations_has_a_program(name):
    operations = len(re.findall(r"= .?stablehlo", lowered(name).as_text()))
    assert 0.8 * BARS[name][0] <= operations <= BARS[name][0]  # lower the bar after a program has become smaller


def kernels(program: str) -> int:
    """How many kernels XLA compiles: equal fusions once, and each call of `one_kernel`, whatever it calls."""
    bodies = dict(re.findall(r"^(%\S+) \(.*?\{\n(.*?)^\}", program, re.M | re.S))
    calls = set(re.findall(r" call\(.*to_apply=(%[\w.-]+), frontend_attributes", program))
    fused = {n for name in bodies.keys() - calls for n in re.findall(r" fusion\(.*calls=(%[\w.-]+)", bodies[name])}

    def renamed(body: str) -> str:
        names: dict[str, str] = {}
        body = re.sub(r", metadata=\{.*?\}|, frontend_attributes=\{.*?\}", "", body)
        return re.sub(r"%[\w.-]+", lambda found: names.setdefault(found[0], str(len(names))), body)

    return len({renamed(bodies[name]) for name in fused}) + len(calls)


@counted
@pytest.mark.parametrize("name", [deep(name) for name in PROGRAMS])
def test_how_many_kernels_does_a_cpu_compile(name):
    assert kernels(lowered(name).compile().as_text() or "") <= BARS[name][1]


def test_does_the_mark_of_one_kernel_reach_the_compiler_of_this_jax():
    """After a new JAX: raise LAST_TRIED if, with it, this module and those of the solvers pass, else leave it."""
    assert jax.__version_info__[:2] <= LAST_TRIED
    f = one_kernel(lambda a: (jnp.sqrt(a), 1 / a))
    program = jax.jit(lambda v: v * f(jnp.max(v))[0] + f(jnp.sum(v))[1]).lower(jnp.ones(300)).compile().as_text() or ""
    calls = re.findall(r" call\(.*to_apply=(%[\w.-]+), frontend_attributes.*xla_cpu_small_call", program)
    assert len(calls) == 2 and " sqrt(" not in "".join(re.findall(r"fused_computation.*?\n}", program, re.S))


def test_takes_one_kernel_constants_and_arguments_that_nothing_reads():
    f = one_kernel(lambda scale, a, b, flag: (scale * a, jnp.where(flag, a, b)), 1)

    def steps(v):
        def step(state):
            v, k = state
            top, bottom = f(2.0, jnp.max(v), 0.25, k < 100)
            return jnp.where(top > 0, v * bottom, v), k + 1

        return jax.lax.while_loop(lambda state: state[1] < 3, step, (v, 0))[0]

    v = np.array([[0.5, 0.25], [1.0, 0.5]])
    expected = v * v.max(1, keepdims=True) ** 7
    np.testing.assert_allclose(jax.jit(jax.vmap(steps))(v), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda: steps(jnp.asarray(v[0])))(), expected[0], rtol=1e-6)
    slope = jax.jit(jax.grad(lambda a: sum(f(3.0, a, 0.25, True))))(2.0)
    assert slope == 4 and f(3.0, 2.0, 0.25, False) == (6, 0.25)
    kept = one_kernel(lambda a: (a, a * a))  # of whose results a checkpoint keeps the first
    thrice = jax.checkpoint(lambda a: jax.lax.scan(lambda c, _: (kept(c)[1] * kept(c)[0], None), a, None, 3)[0])
    assert jax.jit(jax.grad(thrice))(1.0) == 27


@pytest.mark.parametrize("case", few(CASES, 2), ids=str)
def test_have_products_of_vectors_full_precision_where_a_gpu_would_take_tf32(case: Case):
    A, b = np.eye(9, dtype=np.float32), np.ones((9, 3), np.float32)
    for rhs in (b, b[:, 0]):
        program = jax.make_jaxpr(lambda A, b: case.solver(A, b, M=A).x)(jnp.asarray(A), jnp.asarray(rhs))
        dots = [e.params["precision"] for e, _ in equations(program.jaxpr) if e.primitive.name == "dot_general"]
        assert dots and all(p is not None and set(p) == {jax.lax.Precision.HIGHEST} for p in dots)
