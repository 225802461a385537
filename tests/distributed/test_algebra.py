"""Sums, scalings and shifts of sharded matrices against SciPy, and what their programs send."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.distributed.problems import MESH, irregular
from tests.distributed.programs import facts
from tests.oracle import assert_refused

S = sp.csr_array(irregular() + sp.eye_array(90))
A = jsf.shard(S, MESH, format="csr", reorder="rcm")
B = A.with_data(np.random.default_rng(3).normal(size=A.nnz))
d = np.random.default_rng(4).normal(size=90)

CASES = {
    "sum": (lambda M, N: M + N, lambda M, N: M + N),
    "difference": (lambda M, N: M - N, lambda M, N: M - N),
    "product entry by entry": (lambda M, N: M.multiply(N), lambda M, N: M.multiply(N)),
    "scaling": (lambda M, N: 2.5 * M, lambda M, N: 2.5 * M),
    "rows": (lambda M, N: M.scale_rows(d), lambda M, N: sp.diags_array(d) @ M),
    "columns": (lambda M, N: M.scale_cols(d), lambda M, N: M @ sp.diags_array(d)),
    "shift": (lambda M, N: M.shift(3.0), lambda M, N: M + 3 * sp.eye_array(90)),
    "shift by a diagonal": (lambda M, N: M.shift(d), lambda M, N: M + sp.diags_array(d)),
}


@pytest.mark.parametrize("mode", ["overlap", "vector"])
@pytest.mark.parametrize("case", CASES)
def test_every_operation_gives_what_scipys_gives(case, mode):
    ours, scipys = CASES[case]
    M = jsf.shard(S, MESH, format="csr", mode=mode)
    N = M.with_data(np.asarray(B.data))
    got = ours(M, N)
    assert isinstance(got, jsf.ShardedMatrix)
    np.testing.assert_allclose(got.to_scipy().toarray(), scipys(S, N.to_scipy()).toarray(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_no_collective_has_the_size_of_the_matrix(case):
    """Entries stay where they are; one number for each row or column may travel."""

    def run(*values):
        left = map(iter, values)
        M, N = (A._each(lambda _, rest=rest: next(rest)) for rest in left)
        return [block.values for block in CASES[case][0](M, N).shards.blocks]

    values = ([block.values for block in M.shards.blocks] for M in (A, B))
    assert facts(jax.jit(run).lower(*values).compile().as_text())["moved"] <= 4 * 90 < A.nnz


def test_operations_differentiate_inside_jit():
    x = np.random.default_rng(5).normal(size=90)

    def ours(data, s, d, A=A):
        return jnp.sum((A.with_data(data).shift(s).scale_rows(d).scale_cols(d) @ x) ** 2)

    rows, cols = S.tocoo().coords

    def dense(data, s, d):
        D = jnp.zeros((90, 90)).at[rows, cols].set(data) + s * jnp.eye(90)
        return jnp.sum((d[:, None] * D * d @ x) ** 2)

    gradient, wanted = jax.jit(jax.grad(ours, (0, 1, 2))), jax.jit(jax.grad(dense, (0, 1, 2)))(S.data, 0.5, d)
    for got in (gradient(S.data, 0.5, d), gradient(S.data, 0.5, d, A)):  # A closed over, and as an argument
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_refusals_name_the_cure():
    moves = r"moves no entries, so it takes two of the same pattern.*shard\(S \+ S\.T"
    turned, gone = (jsf.shard(sp.csr_array(M), MESH, format="csr") for M in (S[::-1], sp.triu(S, 1)))
    for call, error, words in (
        *((lambda: A + A.T, TypeError, moves), (lambda: A + jsf.from_scipy(S, "csr"), TypeError, moves)),
        (lambda: A.T - A, TypeError, "moves no entries"),
        *((call, TypeError, "move entries .*before `shard`") for call in (lambda: A @ B, lambda: A.T @ A)),
        (lambda: A + turned, ValueError, "make one from the other by with_data"),
        (lambda: gone.shift(1.0), ValueError, r"all 90 entries of the diagonal.*A\.shift\(0\)"),
        (lambda: A.scale_rows(np.ones(3)), ValueError, r"shape \(90,\), got \(3,\)"),
        (lambda: jax.jit(lambda A, B: A + B)(A, B), ValueError, r"take A.with_data\(A.data \+ B.data\)"),
    ):
        assert_refused(call, error, words)


def test_sums_and_gradients_outside_jit_compile_once(compiled):
    """Shards of dia store a diagonal and its mirror image once; shard_map by itself would compile each operation."""
    M = jsf.shard(jsf.gallery.poisson(6), MESH, format="dia")
    assert any(block._shares_places for block in M.shards.blocks)
    results = lambda: [(M + M).data, M.data_of(M)]  # noqa: E731
    np.testing.assert_allclose(results()[0], 2 * np.asarray(M.data))
    before = compiled()
    results()
    assert compiled() == before


def test_known_unknowns_of_a_sharded_matrix_are_eliminated_as_of_any_other():
    fixed, b = np.array([3, 50, 89]), np.linspace(-1, 1, 90)
    data = np.where(S.tocoo().row == 50, np.inf, S.data)  # which the system loses
    matrices = A, jsf.from_scipy(S, "csr")
    ours, want = (jsf.constrain(M.with_data(data), b, fixed, [1.0, 2.0, -1.0]) for M in matrices)
    np.testing.assert_allclose(ours[0].to_scipy().toarray(), want[0].to_scipy().toarray(), rtol=1e-12)
    np.testing.assert_allclose(ours[1], want[1], rtol=1e-12, atol=1e-12)
