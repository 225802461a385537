"""What users of SciPy reach for: the same names, for a matrix and for its transpose."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.zoo import CASES, FIRST_LAYOUTS, Layout

REAL = CASES["irregular"].scipy().tocsr()
COMPLEX = CASES["irregular"].scipy(np.complex128).tocsr()
both_kinds = pytest.mark.parametrize("S", [REAL, COMPLEX], ids=["real", "complex"])
LAYOUTS = [Layout("csr"), Layout("hll"), Layout("dia")]
some = pytest.mark.parametrize("layout", few(LAYOUTS, 1), ids=str)
sides = pytest.mark.parametrize("side", ["A", "A.T"])


def pair(S, layout, side, **options):
    """A matrix of ours, or its view, and SciPy's."""
    A = layout.of(S, **options)
    return (A, S) if side == "A" else (A.T, sp.csr_array(S.T))


HABITS = {
    "transpose": lambda A: A.transpose(),
    "transpose twice": lambda A: A.transpose((1, 0)).transpose(),
    "conj": lambda A: A.conj(),
    "real": lambda A: A.real,
    "imag": lambda A: A.imag,
    "abs": abs,
    "negative": operator.neg,
    "twice": lambda A: 2 * A,
    "one": lambda A: 1 * A,
    "by a number of NumPy": lambda A: np.float64(3) * A,
    "divided": lambda A: A / 4,
    "divided by more than 64 bits": lambda A: A / 2**70,
    "times more than 64 bits": lambda A: A * -(2**70),
    "dot a number": lambda A: A.dot(2.0),
    "copy": lambda A: A.copy(),
    "tocsr": lambda A: A.tocsr(),
    "tocoo": lambda A: A.tocoo(),
    "tocsc": lambda A: A.tocsc(),
    "astype": lambda A: A.astype(np.complex64),
}


@sides
@some
@both_kinds
def test_does_every_habit_give_the_matrix_that_scipy_gives(S, layout, side):
    A, T = pair(S, layout, side)
    for name, habit in HABITS.items():
        got, wanted = habit(A), habit(T)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
        same = np.testing.assert_allclose if name == "abs" else np.testing.assert_array_equal
        same(got.toarray(), wanted.toarray(), err_msg=name)  # XLA's |z| may differ from NumPy's by a last digit
    assert (A.nnz, A.ndim, A.shape) == (T.nnz, T.ndim, T.shape)
    for name in ("csr", "coo", "csc"):
        assert getattr(A, f"to{name}")().name == name


REFUSED = {
    "length": (len, TypeError, r"length of a matrix is ambiguous; use A\.shape\[0\]"),
    "truth": (bool, ValueError, "truth value of a matrix is ambiguous"),
    "times itself": (lambda A: A * A, TypeError, r"scales by one number.* A @ x.*A\.multiply\(B\)"),
    "times SciPy's": (lambda A: A * REAL, TypeError, "scales by one number"),
    "vector times": (lambda A: np.ones(13) * A, TypeError, "scales by one number"),
    "times a list": (lambda A: A * [1, 2], TypeError, "scales by one number"),
    "times nothing": (lambda A: A * None, TypeError, "scales by one number"),
    "divided by a word": (lambda A: A / "2", TypeError, "divides by one number"),
    "other axes": (lambda A: A.transpose((0, 1)), ValueError, r"axes=\(1, 0\); got axes=\(0, 1\)"),
    "to a power": (lambda A: A**2, TypeError, r"A\.data \*\* b.* A @ A"),
    "divided by a vector": (lambda A: A / np.ones(17), TypeError, r"scale_rows\(1 / d\)"),
    "plus": (lambda A: A + 1, TypeError, r"A\.shift\(s\)"),
    "rows": (list, TypeError, "is not iterable"),
    "as an array": (np.asarray, TypeError, "is no array"),
    "assignment": (lambda A: operator.setitem(A, (0, 0), 1), TypeError, r"cannot change.*\[\(0, 0\)\] = 1 .*with_data"),
}


@sides
@pytest.mark.parametrize("name", REFUSED)
def test_is_what_means_something_else_refused_in_words(name, side):
    A, _ = pair(REAL, Layout("csr"), side)
    use, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        use(A)


@sides
@some
def test_does_scipy_take_it_as_a_linear_operator(layout, side, rng):
    A, T = pair(COMPLEX, layout, side)
    operator_ = spla.aslinearoperator(A)
    assert (operator_.shape, operator_.dtype) == (T.shape, T.dtype)
    x, X, y = (rng.standard_normal(shape) for shape in (T.shape[1], (T.shape[1], 2), T.shape[0]))
    for got, wanted in (
        (operator_.matvec(x), T @ x),
        (np.array(A.dot(X)), T.dot(X)),
        (operator_ @ X, T @ X),
        (operator_.rmatvec(y), T.conj().T @ y),
        (operator_.H @ y, T.conj().T @ y),
        (operator_.T @ y, T.T @ y),
    ):
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, wanted, atol=1e-12)
        got += 1  # as SciPy's gmres does


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)
def test_does_a_transpose_have_the_entries_and_sizes_of_one(layout, rng):
    A, T = layout.of(REAL), sp.csr_array(REAL.T)
    T.sort_indices()
    np.testing.assert_array_equal(A.T.data, T.data)
    np.testing.assert_array_equal(jax.jit(lambda A: A.T.data)(A), T.data)
    data = rng.standard_normal(T.nnz)
    wanted = sp.csr_array((data, T.indices, T.indptr), T.shape).toarray()
    np.testing.assert_array_equal(A.T.with_data(data).todense(), wanted)
    assert jax.tree.structure(A.T.with_data(data)) == jax.tree.structure(A.T)
    by_data = jax.jit(jax.grad(lambda d: jnp.vdot(np.ones(13), A.T.with_data(d) @ np.arange(17.0))))(A.T.data)
    np.testing.assert_allclose(by_data, T.indices)
    assert (A.T.nbytes, A.T.n_stored, A.T.fill) == (A.nbytes, A.n_stored, A.fill)
    with pytest.raises(ValueError, match=r"data must have shape \(61,\).* got \(60,\)"):
        A.T.with_data(np.ones(60))


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)
def test_does_padding_stay_out_of_products_after_a_scaling_by_infinity(layout):
    """All formats but the compressed ones pad this matrix; the quick tests ask "dia" and "bsr" in any case."""
    S = sp.csr_array(np.array([[1.0, 2, 0], [3, 4, 0], [0, 0, 5]]))
    for kind in {layout, Layout("dia"), Layout("bsr", (("block_shape", (2, 2)),))}:
        A = kind.of(S)
        scaled = [A * np.inf, A * 10**400, A / 0, A * jnp.asarray(np.inf), jax.jit(lambda A, s: A * s)(A, np.inf)]
        for B in scaled:
            np.testing.assert_array_equal(B @ np.ones(3), np.full(3, np.inf))
            np.testing.assert_array_equal(B.T @ np.ones(3), np.full(3, np.inf))
            np.testing.assert_array_equal(B.data, np.full(5, np.inf))


@sides
def test_does_an_array_multiply_the_entries_alone(side):
    """A full array of this matrix would take 80 GB."""
    n = 100_000
    rows, columns = np.random.default_rng(0).standard_normal((2, n))
    A, T = pair(sp.diags_array([rows, columns[1:]], offsets=[0, 1], shape=(n, n), format="csr"), Layout("csr"), side)
    for factor in (columns, columns[None], columns.tolist(), rows[:, None], np.full((1, 1), 3.0)):
        np.testing.assert_array_equal(A.multiply(factor).data, T.multiply(np.asarray(factor)).tocsr().data)


@sides
@some
def test_does_a_copy_survive_the_donation_of_the_matrix(layout, side):
    A, T = pair(REAL, layout, side)
    B = A.copy()
    jax.jit(lambda A: A * 2.0, donate_argnums=0)(A)
    np.testing.assert_array_equal(B.todense(), T.toarray())


def test_are_habits_traced_and_differentiated():
    A, x = jsf.from_scipy(REAL, "csr"), np.arange(13.0)
    f = lambda data: jnp.sum(abs(-A.with_data(data)).conj().real @ x)  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.grad(f))(A.data), np.sign(REAL.data) * x[REAL.indices])


@pytest.mark.parametrize("kind", ["int64", "int8", "bool", "float32", "float64"])
def test_products_from_both_sides_have_one_dtype(kind):
    A, x = jsf.from_scipy(REAL, "csr", "float32"), np.ones(REAL.shape[1], kind)
    y = np.ones(REAL.shape[0], kind)
    wanted = np.float64 if kind == "float64" else np.float32
    for product in (A @ x, A.T @ y, y @ A, x @ A.T, A.matvec(x), A.rmatvec(y), jsf.spmv(A, x)):
        assert product.dtype == wanted


def test_do_functions_of_a_matrix_take_all_arguments_by_name_and_name_themselves_in_errors():
    A, b = jsf.from_scipy(REAL, "csr"), np.ones(REAL.shape[1])
    assert np.array_equal(jsf.spmv(x=b, A=A), A @ b)
    square = jsf.eye(3)
    assert np.array_equal(jsf.constrain(A=square, b=np.ones(3), fixed=[0])[1], [0, 1, 1])
    with pytest.raises(TypeError, match=r"astype\(\) got multiple values for argument 'dtype'"):
        A.astype("float32", dtype="float32")
