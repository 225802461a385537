"""Values and second derivatives of every operation, by all that it holds, against dense matrices; chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.algebra import patterns, plans
from solvers import cg
from tests.lowering import quick_jit
from tests.marks import few

rng = np.random.default_rng(5)
S = rng.normal(size=(4, 4)) * np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
R = rng.normal(size=(4, 4)) * np.array([[0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
A, B = (jsf.from_scipy(sp.csr_array(M.astype(np.float32)), "csr") for M in (S, R))
I4 = np.eye(4)
MASK = np.array([True, False, True, True])
ROW, COL = np.array([0, 2, 2, 2]), np.array([1, 0, 0, 3])  # one place comes twice
SPLIT = A.nnz + B.nnz


def scattered(v):
    return jnp.zeros((3, 4)).at[ROW, COL].add(v)


def filled(M, v):
    return jnp.zeros(M.shape).at[M.row_ids, M.col_ids].set(v)


# Of A, B, and a vector d [4]: the operation, and the same of dense matrices.
OPERATIONS = {
    "A + B": (lambda A, B, d: A + B, lambda a, b, d: a + b),
    "A - B": (lambda A, B, d: A - B, lambda a, b, d: a - b),
    "A @ B": (lambda A, B, d: A @ B, lambda a, b, d: a @ b),
    "A.T @ B": (lambda A, B, d: A.T @ B, lambda a, b, d: a.T @ b),
    "A.T @ A": (lambda A, B, d: A.T @ A, lambda a, b, d: a.T @ a),
    "triple": (lambda A, B, d: jsf.plan.triple(B, A)(B, A), lambda a, b, d: b.T @ a @ b),
    "A.multiply(B)": (lambda A, B, d: A.multiply(B), lambda a, b, d: a * b),
    "A * s": (lambda A, B, d: A * d[0], lambda a, b, d: a * d[0]),
    "scale_rows": (lambda A, B, d: A.scale_rows(d), lambda a, b, d: d[:, None] * a),
    "scale_cols": (lambda A, B, d: A.scale_cols(d), lambda a, b, d: a * d),
    "shift": (lambda A, B, d: A.shift(d[0]), lambda a, b, d: a + d[0] * I4),
    "shift by a diagonal": (lambda A, B, d: A.shift(d), lambda a, b, d: a + jnp.diag(d)),
    "block": (
        lambda A, B, d: jsf.block([[A, B], [None, A.T]]),
        lambda a, b, d: jnp.block([[a, b], [jnp.zeros((4, 4)), a.T]]),
    ),
    "block_diag": (
        lambda A, B, d: jsf.block_diag([A, B[:, 1:], A]),
        lambda a, b, d: jax.scipy.linalg.block_diag(a, b[:, 1:], a),
    ),
    "kronsum": (lambda A, B, d: jsf.kronsum(A, B), lambda a, b, d: jnp.kron(I4, a) + jnp.kron(b, I4)),
    "hstack": (lambda A, B, d: jsf.hstack([A, B]), lambda a, b, d: jnp.hstack([a, b])),
    "vstack": (lambda A, B, d: jsf.vstack([A, B]), lambda a, b, d: jnp.vstack([a, b])),
    "kron": (lambda A, B, d: jsf.kron(A, B), lambda a, b, d: jnp.kron(a, b)),
    "diags": (lambda A, B, d: jsf.diags([d, d[:3]], [0, 1]), lambda a, b, d: jnp.diag(d) + jnp.diag(d[:3], 1)),
    "assembly": (lambda A, B, d: jsf.assembly(ROW, COL, (3, 4), "hll")(d**2), lambda a, b, d: scattered(d**2)),
    "assembly of elements": (
        lambda A, B, d: jsf.assembly(ROW.reshape(2, 1, 2), COL.reshape(2, 1, 2), (3, 4))(d.reshape(2, 1, 2)),
        lambda a, b, d: scattered(d),
    ),
    "eye": (lambda A, B, d: d[0] * jsf.eye(3, 5), lambda a, b, d: d[0] * jnp.eye(3, 5)),
    "diags of a number": (
        lambda A, B, d: jsf.diags([d[:3], 2.0], [-1, 0], shape=(4, 4)),
        lambda a, b, d: jnp.diag(d[:3], -1) + 2 * I4,
    ),
    "from_coo": (lambda A, B, d: jsf.from_coo(ROW, COL, d**2, (3, 4), format="csr"), lambda a, b, d: scattered(d**2)),
    "rows": (lambda A, B, d: A[[2, 0, 0]], lambda a, b, d: a[np.array([2, 0, 0])]),
    "columns": (lambda A, B, d: A[:, 1:], lambda a, b, d: a[:, 1:]),
    "mask": (lambda A, B, d: A[MASK], lambda a, b, d: a[MASK]),
    "both axes": (lambda A, B, d: A[[1, 3], ::2], lambda a, b, d: a[[1, 3], ::2]),
    "ix_": (lambda A, B, d: A[np.ix_([3, 1, 1], [0, 2])], lambda a, b, d: a[np.ix_([3, 1, 1], [0, 2])]),
    "a column of rows": (lambda A, B, d: A[COL[:, None], ROW], lambda a, b, d: a[COL[:, None], ROW]),
    "one row": (lambda A, B, d: A[(-3,)], lambda a, b, d: a[np.array([-3])]),
    "all rows": (lambda A, B, d: A[..., [3]], lambda a, b, d: a[:, [3]]),
    "an entry": (lambda A, B, d: A[3, -1], lambda a, b, d: a[3, -1]),
    "tril": (lambda A, B, d: jsf.tril(A), lambda a, b, d: jnp.tril(a)),
    "triu": (lambda A, B, d: jsf.triu(A, 1), lambda a, b, d: jnp.triu(a, 1)),
    "sum of three": (lambda A, B, d: sum([A, B, A.T]), lambda a, b, d: a + b + a.T),
    "by a dense array": (lambda A, B, d: A.multiply(d[:, None]), lambda a, b, d: a * d[:, None]),
    "abs": (lambda A, B, d: abs(A), lambda a, b, d: jnp.abs(a)),
    "sum": (lambda A, B, d: A.sum(), lambda a, b, d: a.sum()),
    "sum of columns": (lambda A, B, d: A.sum(axis=0), lambda a, b, d: a.sum(axis=0)),
    "sum of rows": (lambda A, B, d: A.sum(axis=1), lambda a, b, d: a.sum(axis=1)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_outside_jit_is_that_of_dense_matrices(name, where):
    sparse, dense = OPERATIONS[name]
    d = rng.normal(size=4).astype(np.float32)
    for M, N in ((A, B), (A.asformat("hll"), B.T.asformat("csr").T)):
        got = sparse(M, N, d)
        got = got.todense() if hasattr(got, "todense") else got
        np.testing.assert_allclose(got, dense(S, R, d), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", few(OPERATIONS, 10))
def test_a_hessian_by_all_values_is_that_of_dense_matrices(name):
    sparse, dense = OPERATIONS[name]

    def ours(v):
        a, b, d = jnp.split(v, [A.nnz, SPLIT])
        out = sparse(A.with_data(a), B.with_data(b), d)
        return jnp.sum(jnp.sin(getattr(out, "data", out)))  # other places are 0

    def theirs(v):
        a, b, d = jnp.split(v, [A.nnz, SPLIT])
        return jnp.sum(jnp.sin(dense(filled(A, a), filled(B, b), d)))

    v = np.concatenate([A.data, B.data, rng.normal(size=4)]).astype(np.float32)
    got, expected = quick_jit(lambda v: (jax.hessian(ours)(v), jax.hessian(theirs)(v)))(v)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    assert np.any(got)


def test_patterns_are_found_while_jit_traces(where):
    names = ("triple", "A.T @ A", "shift", "block", "kron", "from_coo", "both axes", "tril", "A.multiply(B)")

    def total(form, *args):
        return sum(jnp.sum(jnp.sin(getattr(out, "data", out))) for out in (OPERATIONS[n][form](*args) for n in names))

    d = rng.normal(size=4).astype(np.float32)
    got = quick_jit(jax.grad(lambda v: total(0, A.with_data(v), B, d)))(A.data)
    expected = quick_jit(jax.grad(lambda v: total(1, filled(A, v), R, d)))(A.data)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_a_solve_with_a_chain_of_operations_differentiates_by_all_that_it_holds():
    n, rng = 30, np.random.default_rng(0)  # whatever was drawn before: the derivatives of a failed solve are NaN
    L = sp.csr_array(sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n)).astype(np.float32))
    T = sp.csr_array((rng.uniform(1, 2, n).astype(np.float32), (np.arange(n), np.arange(n) // 2)))
    K, P, b = jsf.from_scipy(L, "csr"), jsf.from_scipy(T, "csr"), rng.normal(size=n // 2).astype(np.float32)

    def ours(k, p, s):
        Pp = P.with_data(p)
        return jnp.sum(jnp.sin(cg(Pp.T @ (K.with_data(k).shift(s) @ Pp), b, rtol=1e-6).x))

    def dense(k, p, s):
        D, Pp = filled(K, k) + s * jnp.eye(n), filled(P, p)
        return jnp.sum(jnp.sin(jnp.linalg.solve(Pp.T @ D @ Pp, b)))

    slopes = (jax.jit(jax.grad(f, (0, 1, 2)))(K.data, P.data, 0.3) for f in (ours, dense))
    for got, expected in zip(*slopes, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_plans_run_in_a_scan_and_under_vmap_of_a_derivative():
    product, total = jsf.plan.matmul(A, B), jsf.plan.add(A, B)

    def power(a):  # two steps of A ← (A·B + A) on A's places
        def step(v, _):
            C = product(A.with_data(v), B)
            return v + C.todense()[A.row_ids, A.col_ids] + total(A.with_data(v), B).data.sum(), None

        return jnp.sum(jax.lax.scan(step, a, length=2)[0])

    def dense(a):
        for _ in range(2):
            D = filled(A, a)
            a = a + (D @ R)[A.row_ids, A.col_ids] + D.sum() + R.sum()
        return jnp.sum(a)

    batch = np.stack([A.data, 2 * np.asarray(A.data), -np.asarray(A.data)])
    got, expected = (jax.jit(jax.vmap(jax.grad(f)))(batch) for f in (power, dense))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", ["csr", "dia"])
def test_a_product_of_nearly_full_matrices_is_dense_and_has_its_derivatives(format, monkeypatch):
    monkeypatch.setattr(patterns, "FULL", 1)
    rng = np.random.default_rng(3)
    full, part = (rng.normal(size=(6, 5)) * (rng.random((6, 5)) < 0.8) for _ in range(2))
    F, P = (jsf.from_scipy(sp.csr_array(M.astype(np.float32)), format) for M in (full, part.T))
    plan = jsf.plan.matmul(F, P)
    assert isinstance(plan, plans.DenseProduct) and (F @ P).nnz == plan(F, P).nnz
    C, pullback = jax.vjp(jax.jit(lambda f, p: (F.with_data(f) @ P.with_data(p)).data), F.data, P.data)
    np.testing.assert_allclose(plan.result.with_data(C).todense(), full @ part.T, atol=1e-5)
    ones = (full @ part.T != 0).astype(float)
    for got, wanted, M in zip(pullback(jnp.ones_like(C)), (ones @ part, full.T @ ones), (full, part.T), strict=True):
        np.testing.assert_allclose(got, wanted[np.nonzero(M)], atol=1e-5)
