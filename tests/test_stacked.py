"""A stack of matrices, whose arrays have a leading axis: one matrix inside vmap, refused in words outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg
from tests.lowering import quick_jit
from tests.marks import few
from tests.zoo import CASES, FIRST_LAYOUTS, Layout

CASE = CASES["irregular"]
SQUARE = CASES["even_rows"]
ROWS, COLS = CASE.shape
PLACES = CASE.places()
NNZ = len(PLACES[0])


def made(layout: Layout, case=CASE, **options):
    return layout.of(case.scipy(), **options)


WAYS = [*((layout, {}) for layout in FIRST_LAYOUTS), (Layout("csr"), {"transpose": True})]
every_way = pytest.mark.parametrize(("layout", "options"), few(WAYS, 3), ids=str)


def stacked(*matrices):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *matrices)


def dense(data, case=CASE) -> np.ndarray:
    a = np.zeros((len(data), *case.shape))
    a[:, *case.places()] = data
    return a


@quick_jit
def uses(stack, X, Y, D):
    def of_one(A, x, y, data):
        product, pullback = jax.vjp(lambda data: A.with_data(data) @ x, data)
        return A @ x, A.T @ y, A.data, A.diagonal(), A.todense(), A.T.data, product, *pullback(y)

    return jax.vmap(of_one)(stack, X, Y, D)


@every_way
def test_is_a_stack_one_matrix_inside_vmap(layout, options, rng):
    D, X, Y = (rng.standard_normal((2, n)) for n in (NNZ, COLS, ROWS))
    A = made(layout, **options)
    a = dense(D)
    for stack in (jax.vmap(A.with_data)(D), stacked(A.with_data(D[0]), A.with_data(D[1]))):
        product, transposed, data, diagonal, todense, turned, refilled, for_data = uses(stack, X, Y, D[::-1])
        np.testing.assert_allclose(product, np.einsum("kij,kj->ki", a, X), atol=1e-12)
        np.testing.assert_allclose(transposed, np.einsum("kij,ki->kj", a, Y), atol=1e-12)
        np.testing.assert_array_equal(data, D)
        np.testing.assert_array_equal(diagonal, np.diagonal(a, axis1=1, axis2=2))
        np.testing.assert_array_equal(todense, a)
        by_column = np.lexsort((PLACES[0], PLACES[1]))
        np.testing.assert_array_equal(turned, D[:, by_column])
        np.testing.assert_allclose(refilled, np.einsum("kij,kj->ki", a[::-1], X), atol=1e-12)
        np.testing.assert_allclose(for_data, (Y[:, :, None] * X[:, None])[:, *PLACES], atol=1e-12)


OUTSIDE = {
    "A @ x": lambda A: A @ np.ones(COLS),
    "A @ an array": lambda A: A @ jnp.ones((2, COLS)),
    "A.T @ y": lambda A: A.T @ np.ones(ROWS),
    "A.T @ an array": lambda A: A.T @ jnp.ones((2, ROWS)),
    "y @ A": lambda A: jnp.ones(ROWS) @ A,
    "rmatvec": lambda A: A.rmatvec(jnp.ones(ROWS)),
    "data": lambda A: A.data,
    "with_data": lambda A: A.with_data(np.ones(NNZ)),
    "with_data of all": lambda A: A.with_data(np.ones((2, NNZ))),
    "A.T.data": lambda A: A.T.data,
    "diagonal": lambda A: A.diagonal(),
    "todense": lambda A: A.todense(),
    "toarray": lambda A: A.T.toarray(),
    "to_scipy": lambda A: A.to_scipy(),
    "csr_arrays": lambda A: A.csr_arrays(),
    "asformat": lambda A: A.asformat("csr"),
    "entries": lambda A: A.entries(),
    "n_stored": lambda A: A.n_stored,
    "fill": lambda A: A.fill,
    "in jit": jax.jit(lambda A: A @ jnp.ones(COLS)),
    "spmv": lambda A: jsf.spmv(A, np.ones(COLS)),
    "from_scipy": lambda A: jsf.from_scipy(A),
    "a doubled stack": lambda A: jax.vmap(lambda B: B @ jnp.ones(COLS))(stacked(A, A)),
}


@every_way
def test_is_every_use_of_a_stack_outside_vmap_refused_with_the_cure(layout, options):
    A = made(layout, **options)
    stack = jax.vmap(A.with_data)(jnp.stack([A.data, A.data]))
    for name, use in OUTSIDE.items():
        with pytest.raises(ValueError, match=r"stack of matrices .*\(2,\) in front.*jax\.vmap\(lambda A: A @ x\)"):
            pytest.fail(f"{name} gave {use(stack)}")
    text = repr(stack)
    assert "(2,)" in text and "stacked" in text and len(text) < 120


@pytest.mark.parametrize("layout", [Layout("csr"), Layout("hll", (("slice_size", 4), ("sigma", 8))), Layout("dia")])
def test_do_solvers_bases_and_scipy_refuse_a_stack(layout):
    A = made(layout, SQUARE)
    stack = stacked(A, A)
    uses = lambda: cg(stack, np.ones(12)), lambda: stack.in_basis @ jnp.ones(12), stack.to_scipy
    for use in uses:
        with pytest.raises(ValueError, match="stack of matrices"):
            use()


@pytest.mark.parametrize("layout", few(map(Layout, ("csr", "coo", "csc", "ell", "dia")), 2), ids=str)
def test_may_the_patterns_of_a_stack_differ(layout, rng):
    """As long as all arrays have the same sizes; the entries lie elsewhere in each."""
    S = SQUARE.scipy().tocsr()
    both = [S, sp.csr_array(S.T)]
    X, D = rng.standard_normal((2, 12)), rng.standard_normal((2, S.nnz))
    stack = stacked(*(layout.of(T) for T in both))
    got = quick_jit(jax.vmap(lambda A, x, d: (A @ x, x @ A, A.data, A.with_data(d).todense())))(stack, X, D)
    for k, T in enumerate(both):
        wanted = T @ X[k], T.T @ X[k], T.data, sp.csr_array((D[k], T.indices, T.indptr)).toarray()
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours[k], theirs, atol=1e-12)


@every_way
def test_may_matrix_and_stack_be_carried_by_a_loop(layout, options):
    """A matrix with new values has the structure, the shapes and the dtypes of the old one."""
    A = made(layout, **options)
    again = A.with_data(A.data)
    assert jax.tree.structure(again) == jax.tree.structure(A)
    assert [*map(jax.typeof, jax.tree.leaves(again))] == [*map(jax.typeof, jax.tree.leaves(A))]
    x = np.arange(COLS) / 8

    @quick_jit
    def run(A, stack):
        def step(carry, _):
            A, stack = carry
            ys = jax.vmap(lambda A: A @ x)(stack)
            return (A.with_data(2 * A.data), jax.vmap(lambda A: A.with_data(-A.data))(2 * stack)), (A @ x, ys)

        _, ys = jax.lax.scan(step, (A, stack), length=3)
        last = jax.lax.fori_loop(0, 2, lambda _, A: A.with_data(A.data + 1), A)
        return ys, last.data

    (single, ys), last = run(A, stacked(A, A))
    y, powers = CASE.dense() @ x, np.array([1.0, 2, 4])
    np.testing.assert_allclose(single, powers[:, None] * y, rtol=1e-13)
    np.testing.assert_allclose(ys, np.array([1, -2, 4.0])[:, None, None] * y + np.zeros((2, 1)), rtol=1e-13)
    np.testing.assert_allclose(last, CASE.dense()[PLACES] + 2)


@pytest.mark.parametrize("layout", [Layout("csr"), Layout("hll", (("slice_size", 64), ("sigma", 128))), Layout("dia")])
def test_does_cg_solve_every_system_of_a_stack(layout, rng):
    S, scales = jsf.gallery.poisson(5), np.array([1.0, 3.0])
    A, B = layout.of(S), rng.standard_normal((2, 125))
    stack = jax.vmap(lambda s: A.with_data(s * A.data))(scales)
    x = jax.jit(jax.vmap(lambda A, b: cg(A, b, rtol=1e-12).x))(stack, B)
    np.testing.assert_allclose(scales[:, None] * (x @ S.toarray()), B, atol=1e-10)
