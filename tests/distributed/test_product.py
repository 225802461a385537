"""Products and stored transposes of sharded matrices against SciPy, their derivatives, and what their programs send."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.distributed.problems import MESH, irregular
from tests.distributed.test_algebra import COLLECTIVE

THREE = jax.make_mesh((3,), ("rows",), devices=jax.devices("cpu")[:3])
S, TALL = irregular(), irregular(90, 40, 1)


def pattern(M):
    """Sums that cancel stay entries, which SciPy's product of ones shows."""
    ones = [sp.csr_array((np.ones(N.nnz), N.indices, N.indptr), N.shape) for N in M]
    out = sp.csr_array(ones[0] @ ones[1])
    out.sort_indices()
    return out


@pytest.mark.some(kind=1, mesh=1)
@pytest.mark.parametrize("mesh", [MESH, THREE], ids=["8", "3"])
@pytest.mark.parametrize(
    "kind",
    [{}, {"mode": "vector"}, {"mode": "naive", "by": "rows"}, {"reorder": "rcm"}, {"exchange": "permute"}],
    ids=str,
)
def test_a_product_is_scipys_with_its_entries_in_canonical_order(kind, mesh):
    A = jsf.shard(S, mesh, format="csr", **kind)
    C = A @ A.with_data(2 * S.data)
    wanted, found = pattern((S, S)), C.to_scipy()
    np.testing.assert_array_equal(found.indptr, wanted.indptr)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_allclose(found.toarray(), 2 * (S @ S).toarray(), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(C.data, found.data)
    x = np.arange(90.0)
    np.testing.assert_allclose(C @ x, A @ (A @ (2 * x)), rtol=1e-10)
    np.testing.assert_array_equal(A.transpose(copy=True).to_scipy().toarray(), S.toarray().T)


@pytest.mark.some(mesh=1)
@pytest.mark.parametrize("mesh", [MESH, THREE], ids=["8", "3"])
def test_a_galerkin_product_is_scipys(mesh):
    A, P = jsf.shard(S, mesh, by="rows"), jsf.shard(TALL, mesh, by="rows", format="csr")
    G = P.T @ (A @ P)
    assert G.range.same(P.domain) and G.domain.same(P.domain)
    np.testing.assert_allclose(G.to_scipy().toarray(), (TALL.T @ S @ TALL).toarray(), rtol=1e-10, atol=1e-10)


@pytest.mark.some(format=1)
@pytest.mark.parametrize("format", ["dia", "ell"])
def test_the_result_has_the_format_of_both(format):
    L = jsf.gallery.poisson(6, dim=2)
    A = jsf.shard(L, MESH, format=format)
    assert {block.name for block in (A @ A).shards.blocks} == {format}
    np.testing.assert_allclose((A @ A).to_scipy().toarray(), (L @ L).toarray(), rtol=1e-12)


def test_empty_and_single_shards():
    few = sp.csr_array(np.triu(np.ones((3, 3))))
    A = jsf.shard(few, MESH, by="rows")  # five devices without rows
    np.testing.assert_array_equal((A @ A).to_scipy().toarray(), (few @ few).toarray())
    nothing = jsf.shard(sp.csr_array((3, 3)), MESH, by="rows")
    assert (nothing @ A).nnz == 0
    one = jax.make_mesh((1,), ("rows",), devices=jax.devices("cpu")[:1])
    B = jsf.shard(S, one)
    np.testing.assert_allclose((B @ B).to_scipy().toarray(), (S @ S).toarray(), rtol=1e-12, atol=1e-12)


A = jsf.shard(S, MESH, format="csr")


def squared(a, b):
    return jnp.sum((A.with_data(a) @ A.with_data(b).transpose(copy=True)).data ** 2)


@pytest.mark.some(order=1)
@pytest.mark.parametrize("order", [1, 2])
def test_both_derivatives_are_those_of_dense_matrices_inside_jit(order):
    rows, cols = S.tocoo().coords
    place = lambda v: jnp.zeros(S.shape).at[rows, cols].set(v)  # noqa: E731
    dense = lambda a, b: jnp.sum((place(a) @ place(b).T) ** 2)  # noqa: E731
    a, b = S.data, np.random.default_rng(1).normal(size=S.nnz)
    fs = (squared, dense) if order == 1 else (jax.grad(squared, 1), jax.grad(dense, 1))
    g, w = (jax.jit(jax.grad(lambda a, b, f=f: jnp.sum(f(a, b)), (0, 1)))(a, b) for f in fs)
    for got, expected in zip(g, w, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * np.max(np.abs(expected)))


def test_no_collective_of_a_product_has_the_size_of_the_matrix():
    L = sp.csr_array(jsf.gallery.poisson(24, dim=2))
    B = jsf.shard(L, MESH, format="csr")
    product = lambda b: [block.values for block in (B @ B._each(lambda v: b * v)).shards.blocks]  # noqa: E731
    text = jax.jit(product).lower(2.0).compile().as_text()
    sizes = [np.prod([int(n) for n in shape.split(",") if n]) for shape in COLLECTIVE.findall(text)]
    assert sizes and max(sizes) < L.nnz / 4


def test_refusals_name_the_cure():
    with pytest.raises(ValueError, match=r"as rows of B, got shapes \(90, 90\) and \(40, 40\)"):
        A @ jsf.shard(irregular(40, 40), MESH)
    with pytest.raises(ValueError, match=r"rows of B, cut into .* columns of A are.*by=\"rows\""):
        A @ jsf.shard(S, MESH, by="rows")
    with pytest.raises(ValueError, match="same mesh"):
        A @ jsf.shard(S, THREE)
    with pytest.raises(TypeError, match=r"takes another sharded one, got CSR.*jsf\.shard"):
        A @ jsf.from_scipy(S, "csr")
    with pytest.raises(ValueError, match="close over the matrix and take its data"):
        jax.jit(lambda A: (A @ A).data)(A)
    with pytest.raises(ValueError, match=r"in_basis.*no products in its own order"):
        A.in_basis @ A


def test_rows_and_columns_of_a_square_product_lie_alike():
    """So that its diagonal, and solvers, find an unknown's row and column on one device."""
    R, P = irregular(10, 9, 2), irregular(9, 10, 3)
    C = jsf.shard(R, THREE, format="csr") @ jsf.shard(P, THREE, by="rows", format="csr")
    assert C.range.same(C.domain)
    np.testing.assert_allclose(C.diagonal(), (R @ P).diagonal(), rtol=1e-12, atol=1e-12)
