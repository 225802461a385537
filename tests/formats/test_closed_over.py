"""A matrix that a function closes over, whose pattern is constant: what of it a program computes and holds."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.extend.core import Literal

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.zoo import FIRST_LAYOUTS, Layout

S = jsf.gallery.poisson(8)
T = sp.csr_array(S + sp.diags_array([1.0], offsets=[2], shape=S.shape))
X = np.ones(S.shape[0])
LEAST = 64
BYTES = {"pred": 1, "u8": 1, "u16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}
every_format = pytest.mark.parametrize("layout", FIRST_LAYOUTS, ids=str)


def of_constants(jaxpr, known) -> tuple[set[str], set]:
    """The operations on constant arrays alone, which XLA computes itself while it compiles; and what they give.

    A barrier hides a constant; arrays of fewer than `LEAST` numbers do not count.
    """
    names, known = set(), set(known)
    is_known = lambda v: isinstance(v, Literal) or v in known  # noqa: E731
    for eqn in jaxpr.eqns:
        inner = getattr(eqn.params.get("jaxpr"), "jaxpr", None)
        if inner is not None:
            given = [v for v, w in zip(inner.invars, eqn.invars, strict=True) if is_known(w)]
            found, made = of_constants(inner, [*given, *inner.constvars])
            names |= found
            known |= {v for v, w in zip(eqn.outvars, inner.outvars, strict=True) if w in made}
        elif eqn.primitive.name != "optimization_barrier" and all(map(is_known, eqn.invars)):
            known |= set(eqn.outvars)
            if any(v.aval.size >= LEAST for v in eqn.invars):
                names.add(eqn.primitive.name)
    return names, {v for v in known if not isinstance(v, Literal)}


def program(f, *args) -> tuple[set[str], int]:
    """The names of its operations on constants, and the bytes of its constants."""
    closed = jax.make_jaxpr(f)(*args)
    found, _ = of_constants(closed.jaxpr, closed.jaxpr.constvars)
    return found, sum(a.nbytes for a in {id(a): a for a in closed.consts}.values())


def slow(f, *args) -> list[str]:
    """The operations on constants that XLA folds for minutes in a large matrix: running sums, sorts, loops."""
    names = ("cum", "sort", "argsort", "reduce_window", "while", "scan")
    return [name for name in program(f, *args)[0] if name.startswith(names)]


def faces(A, x):
    """Both products, the derivative by the values, and new entries."""
    gradient = jax.grad(lambda values: jnp.vdot(x, A._with_values(values) @ x))(A.values)
    return A @ x, A.T @ x, gradient, A.with_data(A.data * x[0]), A.diagonal()


@every_format
def test_xla_folds_no_running_sum_and_no_sort_over_a_pattern_that_is_closed_over(layout):
    A = layout.of(S, backend="xla")
    assert not slow(lambda x: faces(A, x), X)


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 9), ids=str)
def test_a_gradient_by_data_holds_the_pattern_and_one_index_and_folds_nothing(layout):
    """Also where nothing in it is traced, since a derivative by entries depends on the vectors alone.

    And XLA has no more to compile than for a matrix that is passed, counted in operations: seconds are the machine's.
    """
    A, x = layout.of(S, backend="xla"), jnp.asarray(X)
    gradient = jax.grad(lambda data, A: jnp.vdot(x, A.with_data(data) @ x))
    inside, passed = jax.jit(lambda data: gradient(data, A)).lower(A.data), jax.jit(gradient).lower(A.data, A)
    operations = lambda program: len(re.findall(r" = (?!\S*(?:constant|barrier))", program.as_text()))  # noqa: E731
    assert operations(inside) <= operations(passed)
    constants = re.findall(r"= (\w+)\[([\d,]*)\]\S* constant\(", inside.compile().as_text())
    nbytes = sum(math.prod(map(int, filter(None, size.split(",")))) * BYTES[kind] for kind, size in constants)
    assert nbytes <= A.nbytes - A.values.nbytes + 4 * A.n_stored + x.nbytes + 512


@pytest.mark.parametrize("layout", few(map(Layout, ("csr", "dia", "hll", "sell")), 1), ids=str)
@pytest.mark.parametrize(
    ("use", "lists"),
    [
        (lambda A, B: A + B, 2),
        (lambda A, B: A - 2 * A.T, 2),
        (lambda A, B: A.multiply(B), 2),
        (lambda A, B: jsf.tril(A), 1),
        (lambda A, B: A @ B, 10),  # eight products of two entries in each entry, in lists of two numbers
    ],
    ids=["sum", "difference", "product of entries", "triangle", "product"],
)
def test_an_operation_inside_jit_computes_nothing_of_patterns_and_holds_their_numbers_once(layout, use, lists):
    """Those of the result, of each operand's entries, and the places that an entry of the result adds up."""
    A, B = layout.of(S), layout.of(T)
    found, nbytes = program(lambda a, b: use(A.with_data(a), B.with_data(b)).data, A.data, B.data)
    index = 8 * (A.n_stored + B.n_stored + A.nnz + B.nnz)
    assert not found and nbytes <= 2 * index + lists * 8 * B.nnz


def test_a_plan_that_is_an_argument_leaves_no_numbers_in_the_program():
    A, B = (jsf.from_scipy(M, "csr") for M in (S, T))
    for plan in (jsf.plan.add(A, B), jsf.plan.matmul(A, B)):
        assert program(lambda plan, A, B: plan(A, B).data, plan, A, B) == (set(), 0)
