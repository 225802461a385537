"""Plans and the operators over them: values against SciPy, derivatives against dense matrices, refusals."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._aligned import aligned
from jaxsparse_fmt._types import CsrArrays
from jaxsparse_fmt.algebra import by_scipy, patterns, plans
from jaxsparse_fmt.core import conversions
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.formats import building, memory
from jaxsparse_fmt.kernels.cpu import csr_operations
from tests.marks import few
from tests.oracle import assert_refused
from tests.process import printed
from tests.zoo import CASES, FIRST_LAYOUTS

rng = np.random.default_rng(7)


def random(rows: int, cols: int, density: float = 0.2) -> sp.csr_array:
    return sp.csr_array(sp.random_array((rows, cols), density=density, rng=rng))


S, Q, R = random(30, 20), random(30, 20), random(20, 25)


def same(A: jsf.SparseMatrix, expected: sp.sparray) -> None:
    expected = sp.csr_array(expected)
    np.testing.assert_allclose(A.todense(), expected.toarray(), rtol=1e-5, atol=1e-6)
    assert A.shape == expected.shape


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)
def test_every_format_adds_multiplies_and_slices(layout):
    A, B, product = layout.of(S), layout.of(Q), layout.of(S) @ layout.of(R)
    for got, want in (
        *((A + B, S + Q), (A - B, S - Q), (A.multiply(B), S.multiply(Q)), (product, S @ R), (A.T @ B, S.T @ Q)),
        *((A[3:25:2, ::-1], S[3:25:2, ::-1]), (jsf.tril(A, -2), sp.tril(S, -2))),
    ):
        same(got, want)
    assert product.name == layout.format and jsf.from_scipy(sp.eye_array(4), "dia").shift(1.0).name == "dia"
    assert A[jnp.argmax(jnp.arange(3)), np.array(7)] == S[2, 7]


DTYPES = {"float32": 1e-6, "bfloat16": 0.02, "float16": 2e-3, "complex64": 1e-6}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", few(CASES.values(), 4), ids=str)
def test_the_zoo_adds_and_multiplies_in_every_dtype(case, dtype):
    A = jsf.from_scipy(case.scipy(np.complex64 if dtype == "complex64" else np.float32), "csr").astype(dtype)
    D, P = case.dense(dtype if dtype == "complex64" else np.float32), case.pattern()
    for got, expected, places in (
        (A @ A.T.asformat("csr"), D @ D.T, P.astype(int) @ P.T.astype(int)),
        (A + A, 2 * D, P),
        (A - 2 * A, -D, P),
        (A.multiply(A), D * D, P),
    ):
        assert got.dtype == A.dtype and got.to_scipy().has_canonical_format
        assert got.nnz == np.count_nonzero(places)  # zeros and cancelled sums stay
        limit = DTYPES[dtype] * abs(D).max(initial=1)
        np.testing.assert_allclose(got.to_scipy().toarray(), expected, rtol=DTYPES[dtype], atol=limit)


@pytest.mark.parametrize("k", [-(2**31), -4, -2, -1, 0, 1, 2, 5, 2**31 - 1, 2**40])
def test_triangles_about_any_diagonal_are_numpys(k):
    D = np.array([[2, 0, 1, 0], [0, 3, 0, 6], [-5, 0, 0, 7]], np.float32)
    for ours, numpys in ((jsf.tril, np.tril), (jsf.triu, np.triu)):
        np.testing.assert_array_equal(ours(jsf.from_dense(D, "csr"), k).to_scipy().toarray(), numpys(D, k))


# -------------------------------------------------------------------------------------------------- copies of plans

SQUARE = random(30, 30)
PLANS = {  # operands, and the result by SciPy
    "add": ((S, Q), lambda a, b: a + b),
    "multiply": ((S, Q), lambda a, b: a * b),
    "matmul": ((S, R), lambda a, b: a @ b),
    "triple": ((S, SQUARE), lambda p, a: p.T @ a @ p),
}
COPIES = {
    **{"deepcopy": copy.deepcopy, "device_get": jax.device_get, "jit": jax.jit(lambda plan: plan)},
    "pickle": lambda plan: pickle.loads(pickle.dumps(plan)),
    "device_put": lambda plan: jax.device_put(plan, jax.devices()[0]),
    "tree.map": lambda plan: jax.tree.map(jnp.copy, plan),
}


def moved(M: sp.csr_array) -> sp.csr_array:
    """As many entries, in other rows."""
    return sp.csr_array(M[::-1])


def refusals(plan, operands) -> list[str]:
    """What the plan says to each operand with another pattern."""
    wrong = [[jsf.from_scipy(moved(N) if N is M else N, "csr") for N in operands] for M in operands]
    words = "operand {} of the plan"
    return [assert_refused(lambda g=g: plan(*g), ValueError, words.format(i)) for i, g in enumerate(wrong)]


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", PLANS)
def test_does_a_copy_of_a_plan_compare_patterns_as_the_plan_does(name, way):
    operands, by_scipy = PLANS[name]
    matrices = [jsf.from_scipy(M, "csr") for M in operands]
    plan = getattr(jsf.plan, name)(*matrices)
    copied = COPIES[way](plan)
    same(copied(*matrices), by_scipy(*operands))
    assert refusals(copied, operands) == refusals(plan, operands)
    assert copied.nbytes == plan.nbytes and repr(copied) == repr(plan)


def test_does_a_plan_compare_patterns_after_more_plans_than_are_kept(monkeypatch):
    for table in (a for a in vars(patterns).values() if isinstance(a, Kept)):
        monkeypatch.setattr(table, "most", 2)
    operands = [jsf.from_scipy(M, "csr") for M in (S, Q)]
    plan = jsf.plan.add(*operands)
    later = [jsf.plan.add(M, M) for M in map(jsf.eye, range(5))]
    same(plan(*operands), S + Q)
    assert len(later) == 5 and refusals(plan, (S, Q))


IN_ANOTHER_PROCESS = """
import pathlib, pickle, sys
plan, A, wrong = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
assert abs(plan(A, A).data - 2 * A.data).max() == 0
plan(A, wrong)
"""


@pytest.mark.deep
def test_does_a_plan_compare_patterns_in_another_process(tmp_path):
    A, wrong = (jsf.from_scipy(M, "hll") for M in (S, moved(S)))
    (tmp_path / "plan").write_bytes(pickle.dumps((jsf.plan.add(A, A), A, wrong)))
    call = lambda: printed("-c", IN_ANOTHER_PROCESS, tmp_path / "plan", JAX_ENABLE_X64="1")  # noqa: E731
    assert_refused(call, AssertionError, "ValueError: operand 1 of the plan")


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 3), ids=str)
def test_is_a_pattern_recognized_in_every_format_wherever_it_is_found(layout, where):
    """The plan was made of "csr" on the host."""
    del where
    same(MATMUL(layout.of(S), layout.of(sp.csr_array(R.T)).T), S @ R)
    for wrong in (layout.of(MOVED), layout.of(sp.csr_array(MOVED.T)).T):
        assert_refused(lambda A=wrong: MATMUL(A, layout.of(R)), ValueError, "operand 0 of the plan")


@pytest.mark.parametrize("name", PLANS)
def test_does_a_function_of_plans_compile_once_for_two_patterns_of_one_size(name, compiled):
    order, counts = np.random.default_rng(1).permutation(30), []
    use = jax.jit(lambda plan, A: plan(A, A).todense())
    for M in (SQUARE, sp.csr_array(SQUARE[order][:, order])):
        A = jsf.from_scipy(M, "csr")
        plan, before = getattr(jsf.plan, name)(A, A), compiled()
        result = use(plan, A)
        counts.append(compiled() - before)
        np.testing.assert_allclose(result, PLANS[name][1](M, M).toarray(), rtol=1e-5, atol=1e-6)
    assert counts[0] > 0 == counts[1]


@pytest.mark.parametrize("use", [lambda A: A[:], lambda A: A[..., :], lambda A: A + A, jsf.tril], ids="abcd")
def test_does_writing_in_numpys_arrays_of_a_matrix_change_no_result(use):
    """The copies may be written, and lie where JAX on a CPU takes them as they are."""
    A = jax.tree.map(lambda a: aligned(np.asarray(a), a.dtype), jsf.from_scipy(S, "csr"))
    result, before = use(A), use(jsf.from_scipy(S, "csr")).todense()
    for a in jax.tree.leaves(A):
        a[...] = 0
    np.testing.assert_array_equal(result.todense(), before)


@pytest.mark.parametrize("data", [[2**24, 1, 1, 1], np.array([2**24, 1, 1, 1]), np.ones(4, bool)], ids="abc")
def test_integers_of_equal_coordinates_are_summed_as_integers(data, where):
    with jax.enable_x64(False):
        A = jsf.from_coo(jnp.zeros(4, jnp.int32), jnp.full(4, 2), data, (2, 3), "csr")
        assert (A.dtype, A.nnz, A.data[0]) == (np.float32, 1, np.float32(np.sum(data)))


# ------------------------------------------------------------------------------------------------------------ refusals

MOVED = moved(S)

A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")
MATMUL = jsf.plan.matmul(A, B)
WIDE, FEW = jsf.from_dense(np.ones((1, 2**16)), "csr"), jsf.from_coo([0], [0], [1.0], (2**17, 1), "coo")
REFUSED = {
    "shapes of a sum": (lambda: A + B, ValueError, "one shape"),
    "shapes of a product": (lambda: B @ A, ValueError, "as many columns"),
    "a traced pattern": (lambda: jax.jit(lambda A, B: A + B)(A, A), ValueError, "traced"),
    "another pattern": (lambda: plans.add(A, A)(B, B), ValueError, "the plan is for"),
    "a pattern of the same size inside jit": (
        *(lambda: jax.jit(lambda v: MATMUL(jsf.from_scipy(MOVED, "csr").with_data(v), B).data)(A.data), ValueError),
        "operand 0 of the plan",
    ),
    "diagonals that do not fit": (lambda: jsf.diags([np.ones(12)], [1], shape=(12, 12)), ValueError, "has 11 numbers"),
    "a shape of one number": (lambda: jsf.diags(np.ones(3), shape=3), ValueError, "two numbers from 0 up.*got 3"),
    "an identity of whole numbers": (lambda: jsf.eye(2, dtype="int32"), TypeError, "int32 cannot hold matrix values"),
    "a shift by nothing": (lambda: jsf.eye(3).shift(None), TypeError, "s must be an array of numbers; got NoneType"),
    "a tolerance of two numbers": (lambda: jsf.prune(A, [1, 2]), TypeError, "tol must be one real number"),
    "a row out of range": (lambda: jsf.assembly([4], [0], (4, 4)), ValueError, "row index 4"),
    "a column beyond 32 bits": (lambda: jsf.assembly([0, 1], [0, 2**40], (2, 3)), ValueError, f"col index {2**40}"),
    "a fractional index": (lambda: jsf.assembly([0.5], [0], (4, 4)), TypeError, "integers"),
    "traced coordinates": (lambda: jax.jit(lambda i: jsf.assembly(i, i, (4, 4)))(np.arange(4)), ValueError, "traced"),
    "too few values": (lambda: jsf.assembly([0, 1], [0, 1], (4, 4))(np.ones(3)), ValueError, "2 numbers"),
    "rows of one and two blocks": (lambda: jsf.block([[A], [A, A]]), ValueError, r"number of blocks; got \[1, 2\]"),
    "a slice out of range": (lambda: A[40], IndexError, "out of range"),
    "repeated rows beyond 32 bits": (lambda: WIDE[[0] * 2**16], ValueError, "4294967296 entries exceed"),
    "repeated columns": (lambda: WIDE.T[:, np.zeros(2**16, int)], ValueError, "4294967296 entries exceed"),
    "Kronecker products of few entries": (lambda: jsf.kron(FEW, FEW), ValueError, f"{2**34} rows exceed"),
    "many matrices": (lambda: jsf.vstack([WIDE] * 2**15), ValueError, "2147483648 entries exceed"),
    "many rows": (lambda: jsf.vstack([FEW] * 2**14), ValueError, "2147483648 rows exceed"),
    "a truth value as an index": (lambda: A[True, 0], IndexError, "an index is an integer"),
    "three indices": (lambda: A[0, 1, 2], IndexError, "one index or two"),
    "a traced prune": (lambda: jax.jit(lambda v: jsf.prune(A.with_data(v)))(A.data), ValueError, "outside jit"),
    "a traced index": (lambda: jax.jit(lambda i: A[i, 2])(3), TypeError, "must not be traced"),
    "a dense array of another shape": (lambda: A.multiply(np.ones((2, 20))), ValueError, "broadcasts"),
    "a matrix that is not square": (lambda: A.shift(1.0), ValueError, "square"),
    "a scale of another length": (lambda: A.scale_rows(np.ones(3)), ValueError, r"shape \(30,\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_cure(case):
    assert_refused(*REFUSED[case])


def test_is_a_shift_by_a_list_that_by_its_array():
    L = jsf.eye(3, dtype="float32")
    np.testing.assert_array_equal(L.shift([1, 2, 3]).todense(), np.diag([2, 3, 4]))
    assert [L.shift(s).dtype.name for s in (2.5, 2, [1, 2, 3], 1j)] == [*["float32"] * 3, "complex64"]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_eager_sums_and_products_under_strict_promotion_and_with_infinities(where, dtype):
    del where
    S, T = sp.csr_array(np.array([[1.0, 0], [0, 2]], dtype)), sp.csr_array(np.array([[0, np.inf], [0, 1]], dtype))
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(T, "csr")
    with jax.numpy_dtype_promotion("strict"):
        total, difference, product = A + B, A - B, A @ A
        assert jsf.plan.add(A, B).result.nnz == 3 and jsf.plan.multiply(A, B).result.nnz == 1
    np.testing.assert_array_equal(product.data, [1, 4])
    for C, wanted in ((total, [1, np.inf, 3]), (difference, [1, -np.inf, 1])):
        np.testing.assert_array_equal(C.data.real, wanted)
        assert not np.any(np.isnan(np.asarray(C.data)))


def test_a_list_that_memory_cannot_hold_is_refused_before_it_is_made(where, monkeypatch):
    column = jsf.from_dense(np.ones((2000, 1)), "csr")
    two, more = (jsf.from_dense(np.ones(shape), "csr") for shape in ((2000, 2), (2100, 1)))
    tall, at = jsf.from_dense(np.ones((1_300_000, 1)), "csr"), jnp.zeros(2_600_000, int)
    less = jsf.from_dense(np.arange(1_300_000.0)[:, None], "csr")
    monkeypatch.setattr(memory, "free", lambda: 10**8)
    refused = [
        (lambda: jsf.plan.matmul(column, column.T), "the list of the 4000000 products of two entries"),
        (lambda: jsf.kron(column, column.T), "a result of 4000000 entries"),
        (lambda: jsf.vstack([tall, tall]), "a result of 2600000 entries"),
        (lambda: jsf.eye(10**7), "a result of 10000000 entries"),
        (lambda: jsf.diags(1.0, shape=(10**7, 10**7)), "a result of 10000000 entries"),
    ]
    if where == "device":
        refused += [
            (lambda: tall + less, "the list of the 2599999 entries of both"),
            (lambda: jsf.assembly(at, at, (9, 9)), "the list of the 2600000 coordinates"),
        ]
    else:
        refused += [
            (lambda: more @ more.T, "a product of at least 4410000 entries"),
            (lambda: more[:, np.zeros(3200, int)], "a result of 6720000 entries"),
        ]
        assert (two @ two.T).nnz == 4_000_000  # whose 8,000,000 products would not fit
    for call, what in refused:
        assert_refused(call, ValueError, rf"{what} would take \d+ MB, where 100 MB .* at a time")


def test_patterns_of_many_entries_are_found_on_the_device_whatever_the_size_of_the_index_arrays(where, monkeypatch):
    A = jsf.from_scipy(jsf.gallery.poisson(6), "dia")
    monkeypatch.setattr(building, "FEW", 1000)
    assert isinstance(patterns.patterns_of(A)[0], CsrArrays) == (where == "device")


@pytest.mark.parametrize("format", ["csr", "coo", "csc", "ell", "hll", "pjds", "bijad", "hyb"])
def test_slices_sums_and_products_of_new_sizes_compile_nothing_on_a_cpu(format, compiled):
    """Nothing else in this process has arrays of these sizes."""
    n = 1409 + 2 * len(format) + ord(format[0])
    M = random(n, n, 5 / n)
    A = jsf.from_scipy(M, format)
    before = compiled()
    for got, expected in [
        *((A[5::3][:, [4, 2, 7]], M[5::3][:, [4, 2, 7]]), (A + A.T, M + M.T), (A @ A, M @ M)),
        *((jsf.tril(A), sp.tril(M)), (jsf.kron(A, jsf.eye(2)), sp.kron(M, sp.eye_array(2)))),
    ]:
        assert abs(got.to_scipy() - expected).max() < 1e-5
    assert compiled() == before


@pytest.mark.parametrize("kind", ["real", "stored zeros", "complex"])
@pytest.mark.parametrize("few", [0, 2**60], ids=["kernels", "SciPy"])
def test_are_sums_and_products_whole_with_entries_that_cancel(few, kind, monkeypatch):
    monkeypatch.setattr(csr_operations, "FEW", few)
    S, R = (sp.csr_array(np.sign(M.toarray() - 0.5 * (M.toarray() > 0))) for M in (random(40, 40) for _ in range(2)))
    if kind == "complex":
        S = S * 1j
    A, B = (jsf.from_scipy(M, "csr") for M in (S, R))
    ones = abs(S), abs(R)
    if kind == "stored zeros":
        R.data[::3] = 0
        B = B.with_data(R.data)
    for got, wanted, pattern in [
        (A @ B, S @ R, ones[0] @ ones[1]),
        (A - A, S - S, ones[0]),
        (A + B, S + R, ones[0] + ones[1]),
        (A.multiply(B), S * R, ones[0] * ones[1]),
    ]:
        assert got.nnz == pattern.nnz
        np.testing.assert_array_equal(got.todense(), wanted.toarray())
        np.testing.assert_array_equal(got.col_ids, by_scipy.sorted_rows(pattern).indices)
    assert np.count_nonzero((A @ B).data) < (A @ B).nnz


@pytest.mark.parametrize("few", [0, 2**60], ids=["kernels", "SciPy"])
def test_is_every_part_that_of_scipy(few, monkeypatch):
    monkeypatch.setattr(csr_operations, "FEW", few)
    for i in (
        np.s_[::-1],
        np.s_[1::3],
        np.s_[::-2, 3:9],
        np.s_[4:2],
        [5, -1, 5],
        np.arange(30)[::-4],
        S.toarray()[:, 0] > 0,
    ):
        for A, T in ((jsf.from_scipy(S, "csr"), S), (jsf.from_scipy(sp.csr_array(S.T), "coo").T, S)):
            same(A[i], T[i])


def test_does_a_plan_with_a_new_function_of_the_same_operations_compile_nothing(compiled):
    A, B = (jsf.from_scipy(random(31, 31, 0.1), "csr") for _ in range(2))
    plan = jsf.plan.add(A, B)
    first, before = plan(A, B, lambda a, b: a * a - 2 * b).data, compiled()
    np.testing.assert_array_equal(plan(A, B, lambda a, b: a * a - 2 * b).data, first)
    assert compiled() == before


@pytest.mark.parametrize("where", ["device"], indirect=True)
@pytest.mark.parametrize("format", ["csr", "dia", "sell"])
def test_slices_and_the_first_sum_of_a_size_on_a_device_compile_nothing(format, where, compiled, monkeypatch):
    del where
    monkeypatch.setattr(patterns, "times_asked", conversions.times_asked)
    S = jsf.gallery.poisson((7, 11, 13 + len(format)))
    A, B = (jsf.from_scipy(S, format) for S in (S, S + sp.eye_array(S.shape[0], k=3)))
    before = compiled()
    assert (abs(A[5:411][:, 2:].to_scipy() - S[5:411][:, 2:])).max() == 0
    first = A + B
    assert compiled() == before
    second = A + B
    assert compiled() > before and jax.tree.structure(first) == jax.tree.structure(second)
    assert (abs(first.to_scipy() - second.to_scipy())).max() == 0
