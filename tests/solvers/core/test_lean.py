"""Programs stay small, which is what a first call costs; and dense products have full precision on a GPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
import solvers
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
# Operations of the program that XLA gets, and fusions of the one that it makes for a CPU.
BARS = {
    "cg": (400, 62),
    "fcg": (430, 66),
    "bicgstab": (470, 74),
    "gmres": (550, 70),
    "idrs": (800, 98),
    "minres": (610, 116),
    "lsmr": (475, 104),
    "gradient of cg": (460, 131),
    "gradient of gmres": (985, 156),
}


def lowered(name: str):
    A = jsf.from_scipy(S, "csr")
    return jax.jit(PROGRAMS[name]).lower(A, jnp.ones(S.shape[0]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_how_many_operations_has_a_program(name):
    operations = len(re.findall(r"= .?stablehlo", lowered(name).as_text()))
    assert 0.8 * BARS[name][0] <= operations <= BARS[name][0]  # lower the bar after a program has become smaller


@pytest.mark.parametrize("name", [deep(name) for name in PROGRAMS])
def test_how_many_fusions_does_a_cpu_run(name):
    fusions = len(re.findall(r" fusion\(", lowered(name).compile().as_text() or ""))
    assert fusions <= BARS[name][1]


@pytest.mark.parametrize("case", few(CASES, 2), ids=str)
def test_have_products_of_vectors_full_precision_where_a_gpu_would_take_tf32(case: Case):
    A, b = np.eye(9, dtype=np.float32), np.ones((9, 3), np.float32)
    for rhs in (b, b[:, 0]):
        program = jax.make_jaxpr(lambda A, b: case.solver(A, b, M=A).x)(jnp.asarray(A), jnp.asarray(rhs))
        dots = [e.params["precision"] for e, _ in equations(program.jaxpr) if e.primitive.name == "dot_general"]
        assert dots and all(p is not None and set(p) == {jax.lax.Precision.HIGHEST} for p in dots)
