"""Reductions as SciPy's, on matrices with full rows, empty ones, ties with zeros between the entries, and NaNs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_derivatives_agree
from tests.zoo import FIRST_LAYOUTS, Layout

# Rows: negative and full, empty, a stored zero before and after a hole, ties, positive after a hole, all below a hole.
DENSE = np.array(
    [[-3, -1, -1, -2], [0, 0, 0, 0], [-1, 0, 0, -2], [2, 5, 5, 0], [0, 0, 7, 7], [-2, 0, -2, -1], [0, -0.5, 3, 0]],
    float,
)
STORED = DENSE != 0
STORED[2, 2] = STORED[6, 3] = True  # explicit zeros


def scipys(values):
    row, col = np.nonzero(STORED)
    return sp.csr_array((values[STORED], (row, col)), shape=values.shape)


S = scipys(DENSE)
AXES = [None, 0, 1, -1, -2]
NAMES = ["max", "min", "argmax", "argmin", "mean", "sum", "count_nonzero"]
NONE = np.zeros(0, int)
sides = pytest.mark.parametrize("side", ["A", "A.T"])


def of_scipy(S, name, axis):
    got = getattr(S, name)(axis=axis)
    return got.toarray() if sp.issparse(got) else got


@sides
@pytest.mark.parametrize("layout", few([Layout("csr"), *FIRST_LAYOUTS], 2), ids=str)
def test_is_every_reduction_that_of_scipy(layout, side):
    A, T = (layout.of(S), S) if side == "A" else (layout.of(S).T, sp.csr_array(S.T))
    for name in NAMES:
        for axis in AXES:
            got, want = getattr(A, name)(axis), of_scipy(T, name, axis)
            np.testing.assert_allclose(got, want, rtol=1e-15, err_msg=f"{name} {axis}")
            assert got.shape == np.shape(want) and got.dtype.kind == np.asarray(want).dtype.kind
    for k in (-8, -1, 0, 2):
        np.testing.assert_array_equal(A.diagonal(k), T.diagonal(k))
        np.testing.assert_allclose(A.trace(k), T.trace(k))
    np.testing.assert_array_equal(A.nonzero(), T.nonzero())
    np.testing.assert_array_equal(A.power(3).todense(), T.power(3).toarray())
    np.testing.assert_array_equal(A.sum(axis=(0, 1)), A.sum())


def test_do_the_places_of_random_matrices_agree_with_dense_ones():
    """Small integers, so that most rows have ties; negative ones alone make zeros between the entries the greatest."""
    rng = np.random.default_rng(0)
    reduced = jax.jit(lambda data, A: [getattr(A.with_data(data), n)(axis) for n in NAMES[:4] for axis in (None, 0, 1)])
    pattern = rng.random((9, 6)) < 0.6
    A = jsf.from_scipy(sp.csr_array(pattern), "csr", float)
    for _ in range(50):
        D = np.where(pattern, rng.integers(-2, rng.integers(-1, 3), (9, 6)), 0.0)
        want = [getattr(np, n)(D, axis=axis) for n in NAMES[:4] for axis in (None, 0, 1)]
        for a, b in zip(reduced(D[pattern], A), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_is_a_nan_the_greatest_and_the_least():
    D = DENSE.copy()
    D[3, 2] = np.nan
    A = jsf.from_scipy(scipys(D), "csr")
    for name in NAMES[:4]:
        for axis in (None, 0, 1):
            np.testing.assert_array_equal(getattr(A, name)(axis), getattr(np, name)(D, axis=axis))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_are_derivatives_those_of_dense_reductions_with_ties_too(axis):
    A = jsf.from_scipy(S, "csr")
    place = np.nonzero(STORED)

    def ours(data):
        B = A.with_data(data)
        return jnp.concatenate([jnp.ravel(f(axis)) for f in (B.max, B.min, B.mean, B.power(2).sum)])

    def dense(data):
        D = jnp.zeros(A.shape).at[place].set(data)
        return jnp.concatenate([jnp.ravel(f(axis=axis)) for f in (D.max, D.min, D.mean, (D**2).sum)])

    gradients = quick_jit(lambda d: [jax.jacobian(f)(d) for f in (ours, dense)])(A.data)
    np.testing.assert_allclose(*gradients, atol=1e-12)
    assert_derivatives_agree(ours, dense, np.random.default_rng(1).permutation(A.nnz) - 6.5)
    batch = np.stack([A.data, -A.data])
    np.testing.assert_allclose(quick_jit(jax.vmap(ours))(batch)[1], dense(batch[1]), atol=1e-12)


@sides
def test_is_a_diagonal_set_as_by_scipy(side):
    A, T = jsf.from_scipy(S, "csr"), S.copy()
    A, T = (A, T) if side == "A" else (A.T, sp.csr_array(T.T))
    for values, k in ((5.0, 0), ([1.0, 2.0], -1), (np.arange(9.0), 1), (np.array([3.0]), 2)):
        want = T.tolil()
        want.setdiag(values, k)
        np.testing.assert_array_equal(A.setdiag(values, k).todense(), want.toarray(), err_msg=f"{values} {k}")
    slopes = jax.grad(lambda d, v: jnp.sum(A.with_data(d).setdiag(v, 1).data ** 2), (0, 1))(A.data, np.arange(3.0))
    assert slopes[0].shape == (A.nnz,)
    np.testing.assert_array_equal(slopes[1], 2 * np.arange(3.0))
    is_kept = ~((A.col_ids - A.row_ids == 1) & (A.row_ids < 3))
    np.testing.assert_array_equal(slopes[0], 2 * A.data * is_kept)


@sides
def test_do_two_arrays_pick_single_entries(side):
    A, T = jsf.from_scipy(S, "csr"), S
    A, T = (A, T) if side == "A" else (A.T, sp.csr_array(T.T))
    mask = np.arange(T.shape[0]) < 3
    for index in (([0, 2, -1, 0], [1, 1, 0, 1]), ([1, 2, 3], [0]), ([2], [3, 0]), (mask, [0, 1, 2]), (NONE, NONE)):
        np.testing.assert_array_equal(A[index], T.toarray()[index], err_msg=str(index))
    np.testing.assert_array_equal(A[np.ix_([0, 2], [1, 3])].todense(), T.toarray()[np.ix_([0, 2], [1, 3])])
    slope = jax.jit(jax.grad(lambda d: A.with_data(d)[[0, 0, 2], [1, 1, 1]].sum()))(A.data)
    np.testing.assert_array_equal(
        slope, 2.0 * ((A.row_ids == 0) & (A.col_ids == 1)) + ((A.row_ids == 2) & (A.col_ids == 1))
    )
    with pytest.raises(IndexError, match=r"have 2 and 3 numbers.*A\[rows\]\[:, columns\]"):
        A[[0, 1], [0, 1, 2]]


@sides
def test_does_a_sparse_number_row_or_column_broadcast(side):
    A, T = jsf.from_scipy(S, "csr"), S
    A, T = (A, T) if side == "A" else (A.T, sp.csr_array(T.T))
    one, row = sp.csr_array([[3.0]]), sp.csr_array(T.toarray()[[3]])
    for factor in (one, row, sp.csr_array(T.toarray()[:, [0]])):
        np.testing.assert_array_equal(A.multiply(jsf.from_scipy(factor, "csr")).todense(), T.multiply(factor).toarray())
    np.testing.assert_array_equal(jsf.from_scipy(one, "csr").multiply(A).todense(), 3 * T.toarray())


A_ = jsf.from_scipy(S, "csr")
REFUSED = {
    "axis": (lambda: A_.max(2), ValueError, r"axis must be None, 0, 1 or \(0, 1\), got 2"),
    "complex": (lambda: A_.astype(complex).argmax(), TypeError, "argmax orders numbers.*abs"),
    "nothing": (lambda: jsf.from_scipy(sp.csr_array((3, 0)), "csr").max(1), ValueError, "nothing to choose from"),
    "power": (lambda: A_.power(0), ValueError, "n above 0.*got 0"),
    "traced": (lambda: jax.jit(lambda d: A_.with_data(d).nonzero())(A_.data), ValueError, "traced.*row_ids"),
    "part of a diagonal": (lambda: A_.T.diagonal(1.5), TypeError, "whole number; got 1.5"),
    "diagonal": (lambda: A_.setdiag(1.0, 7), ValueError, "k=7"),
    "imaginary": (lambda: A_.setdiag(1j), TypeError, "imaginary"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_what_has_no_answer_refused_in_words(name):
    use, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        use()


def test_are_numbers_of_places_exact_that_32_bits_do_not_hold():
    n = 10**5
    values = np.float32([-1, 2, -3])
    with jax.enable_x64(False):
        A = jsf.from_scipy(sp.csr_array((values, (np.arange(3), np.arange(3))), shape=(n, n)), "csr")
        np.testing.assert_allclose(A.mean(), values.sum() / n**2, rtol=1e-6)
        np.testing.assert_array_equal(jax.grad(lambda d: A.with_data(-abs(d)).max())(A.data), np.zeros(3))
        half = jsf.from_scipy(sp.eye_array(300), "csr", dtype=np.float16)
        np.testing.assert_allclose(half.mean(), 1 / 300, rtol=1e-3)


@pytest.mark.parametrize("axis", [np.int64(1), np.array(1), jnp.array(1)], ids=["integer", "array", "JAX's"])
def test_may_an_axis_be_a_number_of_numpy(axis):
    for name in NAMES:
        np.testing.assert_array_equal(getattr(A_, name)(axis), getattr(A_, name)(1), err_msg=name)


def test_do_reductions_need_no_promotion_that_the_user_forbids():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for A in (A_, A_.astype(jnp.bfloat16)):
            for name in NAMES:
                for axis in (None, 0, 1):
                    assert getattr(A, name)(axis).shape == {None: (), 0: (4,), 1: (7,)}[axis], name


def test_is_a_mean_finite_whose_sum_16_bits_do_not_hold():
    A = jsf.from_dense(np.full((2, 3), 60000, np.float16), "csr")
    for axis in (None, 0, 1):
        assert np.all(A.mean(axis) == 60000)


def test_is_a_least_number_of_zero_positive():
    for axis in (None, 0, 1):
        assert not np.signbit(abs(A_).min(axis)).any()


def test_does_a_power_keep_the_dtype_for_a_scalar_of_numpy():
    A = jsf.from_scipy(S.astype(np.float32), "csr", dtype=np.float32)
    assert A.power(np.float64(2.0)).dtype == A.power(2.0).dtype == np.float32
