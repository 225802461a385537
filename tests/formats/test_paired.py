"""A matrix that carries its transpose: both products are products, of one set of values; dense arithmetic answers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats import paired as paired_format
from tests.lowering import SIGNATURES, calls, equations, lowered, quick_jit
from tests.marks import few
from tests.oracle import assert_product, draw
from tests.zoo import CASES, FIRST_LAYOUTS, SORTED, Layout

# The others' transposed products are kernels anyway.
PAIRED = [layout for layout in FIRST_LAYOUTS if not jsf.FORMATS[layout.format]._transposes]
every_format = pytest.mark.parametrize("layout", few(PAIRED, 2), ids=str)

IRREGULAR = CASES["irregular"]


def paired(layout, S, **options) -> jsf.Paired:
    A = layout.of(S, transpose=True, **options)
    assert isinstance(A, jsf.Paired)
    return A


def storage_of_transpose(layout, S, **options) -> jsf.SparseMatrix:
    """What the second storage is made like: the blocks of "bsr" are turned."""
    given = {k: v[::-1] if k == "block_shape" else v for k, v in layout.options}
    return jsf.from_scipy(sp.coo_array(S).T, layout.format, **given, **options)


@quick_jit
def both_products(A, X, Y):
    return A @ X, A.T @ Y


# ---------------------------------------------------------------------------------------------------------- storage


STORED = [(IRREGULAR, layout) for layout in PAIRED] + [(CASES["unsorted"], Layout("csr"))]


@pytest.mark.parametrize("case, layout", few(STORED, 2), ids=str)
def test_every_place_of_the_second_storage_finds_its_number(case, layout):
    S = case.scipy()
    A, plain, other = paired(layout, S), layout.of(S), storage_of_transpose(layout, S)
    np.testing.assert_array_equal(A.values, plain.values)
    np.testing.assert_array_equal(np.append(A.values, 0)[A.source], other.values)
    padding = np.asarray(quick_jit(lambda B: B.entries()[2])(other)) == A.nnz
    assert A.source.dtype == np.int32 and np.all(A.source[padding] == A.n_stored)
    for ours, its in zip(jax.tree.leaves(A.storage_T), jax.tree.leaves(other)[1:], strict=True):
        np.testing.assert_array_equal(ours, its)
    assert A.nbytes == plain.nbytes + other.nbytes - other.values.nbytes + 4 * other.n_stored


@pytest.mark.parametrize("layout", few(PAIRED[::2], 2), ids=str)
def test_degenerate_matrices_multiply_both_ways_in_two_formats(layout, rng):
    """One storage pads where the other does not; the formats that are not the first of two are the second."""
    other = FIRST_LAYOUTS[(FIRST_LAYOUTS.index(layout) + 7) % len(FIRST_LAYOUTS)]
    names = ("no_rows", "no_columns") if layout.format in ("csr5", "hll") else ()
    for case in (CASES[name] for name in ("no_entries", "explicit_zero", *names)):
        S = sp.csr_array(case.scipy())
        A = jsf.Paired.from_csr(S, A=layout.of(S), store=other.of)
        x, y = rng.standard_normal(case.shape[1]), rng.standard_normal(case.shape[0])
        product, transposed = both_products(A, x, y)
        assert_product(product, case.dense(), x)
        assert_product(transposed, case.dense().T, y)


def test_it_is_a_matrix_like_any_other(rng):
    S, dense, (row, col) = IRREGULAR.scipy(np.complex128), IRREGULAR.dense(np.complex128), IRREGULAR.places()
    A, y = paired(SORTED, S), draw(rng, np.complex128, 17)
    np.testing.assert_array_equal(A.data, dense[row, col])
    np.testing.assert_array_equal(A.todense(), dense)
    np.testing.assert_array_equal(A.T.todense(), dense.T)
    np.testing.assert_array_equal(A.diagonal(), np.diagonal(dense))
    np.testing.assert_array_equal(A.to_scipy().toarray(), dense)
    assert_product(A.H @ y, dense.conj().T, y)
    assert_product(A.rmatvec(y), dense.conj().T, y)
    assert_product(y @ A, dense.T, y)
    assert A.T.T is A and A.basis.is_identity and A.in_basis is A and A.layout == SORTED.of(S).layout
    for B, b in ((A * 2.0, 2 * dense), (-A, -dense), (A.astype(np.complex64), dense), (A.with_data(A.data), dense)):
        assert isinstance(B, jsf.Paired)
        assert_product(B.T @ y, b.T, y)


# --------------------------------------------------------------------------------------------------------- products


def test_derivatives_of_the_transposed_product_are_those_of_the_plain_matrix(rng):
    """The rules of derivatives know no formats; the two faces that they call beside this one are A's own storage's."""

    def questions(A, data, Y):
        def with_data(data):
            return A.with_data(data)

        def loss(data, Y):
            return jnp.sum(jnp.sin(with_data(data).T @ Y / 8))

        gradient = jax.grad(loss, (0, 1))
        second = jax.jvp(gradient, (data, Y), (2 - data, Y[::-1]))[1]
        through_product = jax.grad(lambda X: jnp.sum((with_data(data) @ X) ** 2))(Y[:13])
        mapped = jax.vmap(lambda data, y: with_data(data).T @ y)(jnp.stack([data, data**2]), Y.T)
        return gradient(data, Y), second, through_product, mapped, jax.vmap(lambda y: A.T @ y, 1)(Y)

    S, Y, questions = IRREGULAR.scipy(), jnp.asarray(rng.standard_normal((17, 2))), quick_jit(questions)
    got, want = (questions(A, A.data, Y) for A in (paired(SORTED, S), SORTED.of(S)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), got, want)


def atomic_adds(f, *args) -> int:
    """Scatter-adds in f, in loops and branches too, in which two may meet; not those inside kernels."""
    found = (eqn for eqn, within in equations(jax.make_jaxpr(f)(*args).jaxpr) if not within)
    return sum(eqn.primitive.name == "scatter-add" and not eqn.params["unique_indices"] for eqn in found)


@every_format
def test_the_transposed_product_has_no_atomics(layout):
    S, y = IRREGULAR.scipy(), jnp.ones((1, 17, 1))

    def transposed(A, y):
        return A._without_values._transposed_face(A.values[None], y, "interpret")

    assert atomic_adds(transposed, paired(layout, S), y) == 0
    assert atomic_adds(transposed, layout.of(S), y) > 0


SQUARE = sp.csr_array(IRREGULAR.scipy())[:13, :13]


def power(A, v):
    return jax.lax.fori_loop(0, 3, lambda _, v: A.T @ v, v)


def steps(A, v):
    return jnp.sum(jax.lax.fori_loop(0, 3, lambda _, v: A @ v, v) ** 2)


@pytest.mark.parametrize(
    "f",
    [
        power,
        lambda A, v: power(A.T.T, v),
        lambda A, v: jax.vmap(lambda v: power(A, v))(jnp.stack([v, v])),
        jax.grad(steps, 1),
        lambda A, v: jax.grad(lambda data: steps(A.T.A.with_data(data), v))(A.data),
        jax.grad(lambda A, v: jnp.sum(solvers.bicgstab(A, v).x), 1),
        lambda A, v: jax.grad(lambda data: jnp.sum(solvers.gmres(A.with_data(data), v).x))(A.data),
        lambda A, v: solvers.bicgstab(A.T, v).x,
        lambda A, v: solvers.lsmr(A, v).x,
        lambda A, v: solvers.svds(A, 2).s,
    ],
    ids=range(10),
)
def test_no_loop_gathers_traced_values_of_the_transpose(f):
    before, inside = calls(lowered(f, paired(Layout("ell"), SQUARE, backend="triton"), jnp.ones(13)), "_gathered")
    assert before > 0 and inside == 0


def test_a_program_gathers_them_once_if_it_multiplies_by_the_transpose_and_else_not_at_all(monkeypatch):
    A, v = paired(Layout("csr"), SQUARE, backend="xla"), jnp.ones(13)
    gathers = lambda f: quick_jit(f).lower(A, v).compile().as_text().count("gather(%")  # noqa: E731
    plain = Layout("csr").of(SQUARE, backend="xla")
    product = lambda A, v: A @ v  # noqa: E731
    assert gathers(steps) == quick_jit(steps).lower(plain, v).compile().as_text().count("gather(%")
    assert gathers(lambda A, v: product(A, v) + (A.T @ v) * (A.T @ v)) == gathers(lambda A, v: product(A, v) + A.T @ v)
    A = paired(Layout("ell"), SQUARE, backend="triton")
    monkeypatch.setattr(paired_format, "is_on_cpu", lambda _: False)
    assert calls(lowered(lambda v: A.T @ v, v), "_gathered") == (0, 0)
    assert A._with_gathered.gathered is A._with_gathered.gathered and A._with_values(A.values).gathered is None


def test_a_loop_may_change_the_values_of_a_matrix_that_it_carries():
    A, v, dense = paired(Layout("csr"), SQUARE, backend="xla"), jnp.arange(13.0), SQUARE.toarray()

    @quick_jit
    def doubled(A, v):
        def step(state, _):
            A, v = state
            return (A.with_data(2 * A.data), A.T @ v / 8), None

        return jax.lax.scan(step, (A, v), None, 3)[0][1]

    np.testing.assert_allclose(doubled(A, v), 8 * np.linalg.matrix_power(dense.T / 8, 3) @ v, rtol=1e-12)


@pytest.mark.parametrize("backend", ["xla", "auto"])
def test_products_are_transposed_as_functions_of_the_values(backend):
    """Values that are still unknown there, and those of the transpose that are made of them."""
    A, x = paired(Layout("csr"), SQUARE, backend=backend), jnp.arange(13.0)
    row, col = np.asarray(A.row_ids), np.asarray(A.col_ids)

    def looped(d):
        return jax.lax.scan(lambda v, _: (v + A.with_data(d).T @ x, None), x * 0, None, 2)[0]

    for f, y in ((lambda d: A.with_data(d) @ x, x[row] * x[col]), (looped, 2 * x[col] * x[row])):
        np.testing.assert_allclose(quick_jit(lambda d, f=f: jax.linear_transpose(f, d)(x)[0])(A.data), y)


@pytest.mark.parametrize("dialect", SIGNATURES)
def test_a_gpu_gets_a_kernel_for_the_transposed_product(dialect):
    A, y = (paired(Layout("ell"), IRREGULAR.scipy(np.float32), backend=b) for b in (dialect, "xla")), jnp.ones(17)
    assert [SIGNATURES[dialect] in lowered(lambda A, y: A.T @ y, B, y.astype(B.dtype)) for B in A] == [True, False]


# ----------------------------------------------------------------------------------------------------------- making


def with_a_full_column(n: int) -> sp.csr_array:
    """Rows of two or three entries, and a column of n: its transpose has one long row."""
    first = sp.csr_array((np.ones(n), (np.arange(n), np.zeros(n, int))), (n, n))
    return sp.csr_array(sp.diags_array([np.arange(1.0, n + 1), np.ones(n - 1)], offsets=[0, 1]) + first)


def test_auto_chooses_for_each_of_the_two():
    S = with_a_full_column(2000)
    A = jsf.from_scipy(S, transpose=True, backend="xla")
    assert isinstance(A, jsf.Paired)
    chosen = [jsf.choose.rank(matrix, backend="xla")[0].format for matrix in (S, S.T)]
    assert [A.storage.name, A.storage_T.name] == chosen and chosen[0] != chosen[1]
    y = np.arange(2000) / 8
    np.testing.assert_allclose(A.T @ y, S.T @ y)


def test_a_transpose_that_is_too_large_is_told_from_the_matrix():
    S = with_a_full_column(3000)
    limit = 8 * S.nnz * 8
    assert jsf.from_scipy(S, "ell", max_bytes=limit).nbytes <= limit
    with pytest.raises(building.TooLarge, match=r"for the transpose, which transpose=True stores too: .*'ell'"):
        jsf.from_scipy(S, "ell", max_bytes=limit, transpose=True)
