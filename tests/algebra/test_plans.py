"""Plans and the operators over them: values against SciPy, derivatives against dense matrices, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.algebra import gustavson, patterns, plans
from jaxsparse_fmt.formats.building import TooLarge
from jaxsparse_fmt.kernels.cpu import spgemm
from tests.zoo import ALL, CASES, FIRST_LAYOUTS

rng = np.random.default_rng(7)


def random(rows: int, cols: int, density: float = 0.2) -> sp.csr_array:
    return sp.csr_array(sp.random_array((rows, cols), density=density, rng=rng))


S, Q, R = random(30, 20), random(30, 20), random(20, 25)
W = random(25, 25)


def same(A: jsf.SparseMatrix, expected: sp.sparray, rtol: float = 1e-5) -> None:
    expected = sp.csr_array(expected)
    np.testing.assert_allclose(A.todense(), expected.toarray(), rtol=rtol, atol=1e-6)
    assert A.shape == expected.shape


@pytest.mark.some(layout=4)  # formats only give and take entries, for which `tests/test_every_format.py` asks
@pytest.mark.parametrize("layout", FIRST_LAYOUTS, ids=str)
def test_every_format_adds_multiplies_and_slices(layout):
    A, B, C = layout.of(S), layout.of(Q), layout.of(R)
    same(A + B, S + Q)
    same(A - B, S - Q)
    same(A.multiply(B), S.multiply(Q))
    product = A @ C
    same(product, S @ R)
    assert product.name == layout.format
    same(A.T @ B, S.T @ Q)
    same(A[3:25:2, ::-1], S[3:25:2, ::-1])
    assert A[jnp.argmax(jnp.arange(3)), np.array(7)] == S[2, 7]
    same(A.tril(-2), sp.tril(S, -2))


@pytest.mark.parametrize("case", [ALL, *map(CASES.get, ("no_rows", "no_columns", "no_entries", "one_by_one"))], ids=str)
def test_peculiar_matrices_multiply_and_add(case):
    D = case.dense(np.float32)
    A = jsf.from_scipy(case.scipy(np.float32), "csr")
    np.testing.assert_allclose((A @ A.T).todense(), D @ D.T, atol=1e-5)
    np.testing.assert_allclose((A + A).todense(), 2 * D)
    assert (A + A).nnz == A.nnz


def test_entries_that_cancel_stay():
    A = jsf.from_scipy(sp.csr_array(np.array([[1.0, 1.0], [0, 2]])), "csr")
    B = jsf.from_scipy(sp.csr_array(np.array([[1.0, 0], [-1, 3]])), "csr")
    assert (A @ B).nnz == 4
    assert float((A @ B).data[0]) == 0
    assert (A - A).nnz == A.nnz


def test_the_symbolic_product_lists_each_pair_once():
    A, B = random(200, 150, 0.05), random(150, 90, 0.05)
    p = spgemm.product(A, B, lambda entries, pairs: None)
    first, left, right = spgemm.pairs(A, B, p)
    row_of = np.repeat(np.arange(200), np.diff(A.indptr))
    inner = np.repeat(np.arange(150), np.diff(B.indptr))
    assert np.array_equal(A.indices[left], inner[right])
    entry = np.repeat(np.arange(p.indices.size), np.diff(first))
    rows = np.repeat(np.arange(200), np.diff(p.indptr))
    assert np.array_equal(rows[entry], row_of[left])
    assert np.array_equal(p.indices[entry], B.indices[right])
    counts = (A != 0).astype(np.int64) @ (B != 0).astype(np.int64)
    assert left.size == counts.sum() == p.before[-1]
    assert np.unique(np.stack([left, right]), axis=1).shape[1] == left.size
    assert all(np.all(np.diff(p.indices[a:b]) > 0) for a, b in zip(p.indptr, p.indptr[1:], strict=False))


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_other_dtypes_multiply(dtype):
    A, B = (jsf.from_scipy(M, "csr").astype(dtype) for M in (S, R))
    expected = np.asarray(A.todense(), np.complex64) @ np.asarray(B.todense(), np.complex64)
    assert (A @ B).dtype == A.dtype
    np.testing.assert_allclose(np.asarray((A @ B).todense(), np.complex64), expected, rtol=0.05, atol=0.02)


def test_a_product_differentiates_twice_in_both_operands():
    A, B = jsf.from_scipy(S[:6, :7], "csr"), jsf.from_scipy(R[:7, :5], "ell")
    plan = plans.matmul(A, B)
    place_a, place_b = (np.nonzero(np.asarray(M.todense())) for M in (A, B))

    def ours(a, b):
        return jnp.sum(jnp.sin(plan(A.with_data(a), B.with_data(b)).data))

    def dense(a, b):
        C = jnp.zeros(A.shape).at[place_a].set(a) @ jnp.zeros(B.shape).at[place_b].set(b)
        return jnp.sum(jnp.sin(C))

    hessians = [jax.jit(jax.hessian(f, (0, 1)))(A.data, B.data) for f in (ours, dense)]
    for a, b in zip(*map(jax.tree.leaves, hessians), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_chain_of_operations_differentiates_by_all_that_it_holds():
    A, P = jsf.from_scipy(W, "csr"), jsf.from_scipy(random(25, 6), "csr")
    place_a, place_p = (np.nonzero(np.asarray(M.todense())) for M in (A, P))

    def ours(a, p, s):
        Pd = P.with_data(p)
        return jnp.sum((Pd.T @ (A.with_data(a).shift(s) @ Pd)).data ** 2)

    def dense(a, p, s):
        D = jnp.zeros(A.shape).at[place_a].set(a) + s * jnp.eye(25)
        Pd = jnp.zeros(P.shape).at[place_p].set(p)
        return jnp.sum((Pd.T @ D @ Pd) ** 2)

    for a, b in zip(*(jax.jit(jax.grad(f, (0, 1, 2)))(A.data, P.data, 0.5) for f in (ours, dense)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_plan_runs_under_vmap_and_as_an_argument_of_jit():
    A, B = jsf.from_scipy(S, "hll"), jsf.from_scipy(R, "csr")
    plan = jsf.plan.matmul(A, B)
    data = np.stack([np.asarray(A.data), 2 * np.asarray(A.data)])
    both = jax.jit(lambda plan, d: jax.vmap(lambda v: plan(A.with_data(v), B).data)(d))(plan, data)
    np.testing.assert_allclose(both[1], 2 * both[0], rtol=1e-5)
    np.testing.assert_allclose(both[0], plan(A, B).data, rtol=1e-5)


def test_the_triple_product_is_the_galerkin_product():
    A, P = jsf.from_scipy(W, "csr"), jsf.from_scipy(random(25, 6), "csr")
    expected = P.to_scipy().T @ W @ P.to_scipy()
    same(jsf.plan.triple(P, A)(P, A), expected, rtol=1e-4)


def test_eager_operations_keep_their_plan_and_drop_it_with_the_pattern(monkeypatch):
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")
    first = A @ B
    monkeypatch.setattr(spgemm, "product", None)  # a second symbolic part would fail
    again = A.with_data(2 * A.data) @ B
    np.testing.assert_allclose(again.data, 2 * first.data, rtol=1e-5)
    kept = len(patterns._kept)
    del A, first, again
    assert len(patterns._kept) < kept


def test_repeated_sums_have_the_same_bits():
    A = jsf.from_scipy(random(300, 300, 0.1), "csr")
    assert np.array_equal((A @ A).data, (A @ A).data)


# ------------------------------------------------------------------------------------------------------------ assembly

ROW, COL = rng.integers(0, 40, 500), rng.integers(0, 33, 500)


@pytest.mark.parametrize("layout", FIRST_LAYOUTS[::4], ids=str)
def test_assembly_sums_duplicates_inside_jit(layout):
    pattern = jsf.assembly(ROW, COL, (40, 33), layout.format)
    values = rng.normal(size=500).astype(np.float32)
    expected = np.zeros((40, 33))
    np.add.at(expected, (ROW, COL), values)
    np.testing.assert_allclose(jax.jit(lambda v: pattern(v).todense())(values), expected, atol=1e-5)
    weight = np.random.default_rng(0).normal(size=(40, 33)).astype(np.float32)
    slope = jax.jit(jax.grad(lambda v: jnp.sum(pattern(v).todense() * weight)))(values)
    np.testing.assert_allclose(slope, weight[ROW, COL], rtol=1e-5)


def test_assembly_takes_element_matrices_as_they_are():
    nodes = np.array([[0, 1, 2], [1, 2, 3]])
    rows, cols = np.broadcast_to(nodes[:, :, None], (2, 3, 3)), np.broadcast_to(nodes[:, None, :], (2, 3, 3))
    K = rng.normal(size=(2, 3, 3)).astype(np.float32)
    expected = np.zeros((4, 4))
    for e in range(2):
        expected[np.ix_(nodes[e], nodes[e])] += K[e]
    np.testing.assert_allclose(jsf.assembly(rows, cols, (4, 4))(K).todense(), expected, rtol=1e-5)


@pytest.mark.parametrize("k", [0, 1])
def test_assembly_of_few_coordinates(k):
    A = jsf.assembly(np.zeros(k, int), np.full(k, 2), (3, 4), "csr")(np.ones(k, np.float32))
    assert A.nnz == k
    assert float(A.sum()) == k


@pytest.mark.parametrize("cols", [1, 7])
def test_assembly_of_one_row_finds_every_coordinate(cols):
    col, values = np.arange(30) % cols, np.arange(1.0, 31)
    A = jsf.assembly(np.zeros(30, int), col, (1, cols), "csr")(values)
    np.testing.assert_array_equal(A.to_scipy().toarray(), [np.bincount(col, values, cols)])


def test_coordinates_with_traced_values_make_a_matrix():
    def total(v):
        return (jsf.from_coo(ROW, COL, v, (40, 33), format="csr") @ jnp.ones(33)).sum()

    values = rng.normal(size=500).astype(np.float32)
    np.testing.assert_allclose(jax.jit(total)(values), values.sum(), rtol=1e-4)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(values), np.ones(500), rtol=1e-6)


def test_a_capacity_gives_patterns_of_different_sizes_one_program():
    traces = []

    @jax.jit
    def total(pattern, values, x):
        traces.append(1)
        return pattern(values) @ x

    x = np.arange(33, dtype=np.float32)
    for row in (ROW, ROW // 2, np.zeros_like(ROW)):
        pattern = jsf.assembly(row, COL, (40, 33), "csr", nnz_max=1000)
        values = rng.normal(size=500).astype(np.float32)
        expected = np.zeros((40, 33))
        np.add.at(expected, (row, COL), values)
        np.testing.assert_allclose(total(pattern, values, x), expected @ x, rtol=1e-3, atol=1e-3)
        A = pattern(values)
        assert A.nnz == 1000 and A.to_scipy().has_canonical_format
        np.testing.assert_allclose(A.todense(), expected, atol=1e-5)
    assert len(traces) == 1
    assert jsf.from_coo([1], [2], np.ones(1), (3, 3), "csr", nnz_max=4).nnz == 4


on_a_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="compiled code walks the patterns on a CPU")


@pytest.mark.parametrize("way", [pytest.param("walked", marks=on_a_cpu), "listed", "blocks"])
def test_every_way_of_the_numeric_product_agrees(way, monkeypatch):
    """Compiled code, a list of the products, and blocks of products without one: values and both derivatives."""
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")
    monkeypatch.setattr(gustavson, "BLOCK", 100)
    place_a, place_b = (np.nonzero(M.toarray()) for M in (S, R))
    weight = np.random.default_rng(1).normal(size=(30, 25)).astype(np.float32)
    with jsf.use_backend("auto" if way == "walked" else "xla"):
        plan = jsf.plan.matmul(A, B, max_bytes=9000 if way == "blocks" else None)
        assert (plan.terms.right is not None) == (way == "listed")
        rows, cols = plan.result.row_ids, plan.result.col_ids

        def ours(a, b):
            return jnp.sum(plan(A.with_data(a), B.with_data(b)).data * weight[rows, cols])

        got = jax.jit(jax.grad(ours, (0, 1)))(A.data, B.data)
        same(plan(A, B), S @ R)

    np.testing.assert_allclose(got[0], (weight @ R.toarray().T)[place_a], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], (S.toarray().T @ weight)[place_b], rtol=1e-4, atol=1e-5)


@on_a_cpu
@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_a_product_of_blocks_is_that_of_their_numbers(backend):
    (m, q, w), draw = (2, 3, 3), np.random.default_rng(2)
    A, B = (sp.csr_array(sp.random_array(shape, density=0.4, rng=draw)) for shape in ((7, 5), (5, 6)))
    a, b = (sp.csr_array(sp.kron(M, np.ones(block))) for M, block in ((A, (m, q)), (B, (q, w))))
    a.data, b.data = draw.normal(size=a.nnz), draw.normal(size=b.nnz)
    weight, place_a, place_b = draw.normal(size=(7 * m, 6 * w)), np.nonzero(a.toarray()), np.nonzero(b.toarray())
    assert w in plans.block_widths()
    terms, C = plans.terms(A, B, (m, q, w))
    with jax.enable_x64(True), jsf.use_backend(backend):
        C = sp.csr_array(sp.kron(sp.csr_array((np.ones(C.nnz), C.indices, C.indptr), shape=C.shape), np.ones((m, w))))
        at = np.nonzero(C.toarray())
        np.testing.assert_allclose(terms(jnp.asarray(a.data), jnp.asarray(b.data)), (a @ b).toarray()[at], rtol=1e-12)
        got = jax.jit(jax.grad(lambda a, b: terms(a, b) @ weight[at], (0, 1)))(a.data, b.data)
        np.testing.assert_allclose(got[0], (weight @ b.toarray().T)[place_a], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(got[1], (a.toarray().T @ weight)[place_b], rtol=1e-12, atol=1e-12)


@on_a_cpu
def test_a_plan_says_what_it_holds_and_lists_no_products():
    n = 300
    M = sp.csr_array(sp.random_array((n, n), density=0.3, rng=rng))
    A = jsf.from_scipy(M, "csr")
    plan = jsf.plan.matmul(A, A)
    products = int(np.diff(M.indptr) @ np.bincount(M.indices, minlength=n))
    assert plan.nbytes == 4 * (A.nnz + n + 1 + plan.result.nnz + n + 1 + gustavson.PIECES + 1)
    assert plan.nbytes < products


def test_data_may_come_from_a_matrix_of_the_same_pattern_in_any_format():
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(2 * S, "hll")
    same(A.with_data(B), 2 * S)
    with pytest.raises(ValueError, match="same pattern"):
        A.with_data(jsf.from_scipy(MOVED, "csr"))


# ------------------------------------------------------------------------------------------------------------ refusals

MOVED = sp.csr_array(S[::-1])  # as many entries, in other rows

A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")
MATMUL = jsf.plan.matmul(A, B)
REFUSED = {
    "shapes of a sum": (lambda: A + B, ValueError, "one shape"),
    "shapes of a product": (lambda: B @ A, ValueError, "as many columns"),
    "a SciPy matrix": (lambda: A @ R, TypeError, "from_scipy"),
    "a dense sum": (lambda: A + np.ones(A.shape), TypeError, "todense"),
    "a number": (lambda: A + 1, TypeError, "shift"),
    "a traced pattern": (lambda: jax.jit(lambda A: A + A)(A), ValueError, "traced"),
    "another pattern": (lambda: plans.add(A, A)(B, B), ValueError, "the plan is for"),
    "a pattern of the same size": (
        lambda: jsf.plan.add(A, A)(A, jsf.from_scipy(MOVED, "csr")),
        ValueError,
        "operand 1 of the plan",
    ),
    "the same inside jit": (
        lambda: jax.jit(lambda v: MATMUL(jsf.from_scipy(MOVED, "csr").with_data(v), B).data)(A.data),
        ValueError,
        "operand 0 of the plan",
    ),
    "too small a capacity": (
        lambda: jsf.assembly([0, 1], [0, 1], (4, 4), nnz_max=1),
        ValueError,
        "nnz_max=1 must be at least the 2 different places",
    ),
    "too large a plan": (
        lambda: plans.matmul(jsf.from_scipy(W, "csr"), jsf.from_scipy(W, "csr"), max_bytes=10),
        TooLarge,
        "max_bytes=10",
    ),
    "a row out of range": (lambda: jsf.assembly([4], [0], (4, 4)), ValueError, "row index 4"),
    "a fractional index": (lambda: jsf.assembly([0.5], [0], (4, 4)), TypeError, "integers"),
    "traced coordinates": (lambda: jax.jit(lambda i: jsf.assembly(i, i, (4, 4)))(np.arange(4)), ValueError, "traced"),
    "too few values": (lambda: jsf.assembly([0, 1], [0, 1], (4, 4))(np.ones(3)), ValueError, "2 numbers"),
    "a slice out of range": (lambda: A[40], IndexError, "out of range"),
    "a truth value as an index": (lambda: A[True, 0], IndexError, "an index is an integer"),
    "three indices": (lambda: A[0, 1, 2], IndexError, "one index or two"),
    "a traced prune": (lambda: jax.jit(lambda v: A.with_data(v).prune())(A.data), ValueError, "outside jit"),
    "a matrix that is not square": (lambda: A.shift(1.0), ValueError, "square"),
    "a scale of another length": (lambda: A.scale_rows(np.ones(3)), ValueError, "shape (30,)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_cure(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_eager_sums_and_products_under_strict_promotion_and_with_infinities(dtype):
    S, T = sp.csr_array(np.array([[1.0, 0], [0, 2]], dtype)), sp.csr_array(np.array([[0, np.inf], [0, 1]], dtype))
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(T, "csr")
    with jax.numpy_dtype_promotion("strict"):
        total, difference, product = A + B, A - B, A @ A
    np.testing.assert_array_equal(product.data, [1, 4])
    for C, wanted in ((total, [1, np.inf, 3]), (difference, [1, -np.inf, 1])):
        np.testing.assert_array_equal(C.data.real, wanted)
        assert not np.any(np.isnan(np.asarray(C.data)))
