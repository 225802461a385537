"""Explicit mesh axes, the default of `jax.make_mesh`, and matrices that lie on one device: against SciPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxsparse_fmt as jsf
from solvers import cg, gmres
from tests.marks import few

MESH = jax.make_mesh((4, 2), ("rows", "batch"), devices=jax.devices("cpu")[:8])
S = sp.csr_array(jsf.gallery.poisson(4, dim=2) + sp.diags_array([0.25], offsets=[2], shape=(16, 16)))
X = np.random.default_rng(0).standard_normal((16, 2))
KINDS = {
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "auto": (AxisType.Auto, AxisType.Auto),
    "mixed": (AxisType.Auto, AxisType.Explicit),
}
PLACES = [(None, None), ("rows", None), (None, "batch"), ("rows", "batch")]


def on(kind):
    return jax.sharding.Mesh(MESH.devices, MESH.axis_names, axis_types=KINDS[kind])


def placed(mesh, a, *axes):
    return jax.device_put(a, NamedSharding(mesh, PartitionSpec(*axes)))


def close(got, wanted, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=0, atol=tolerance * max(1, np.abs(wanted).max()))


@jax.jit
def both_ways(A, x):
    y, back = jax.vjp(lambda data, x: A.with_data(data) @ x, A.data, x)
    return y, A.T @ x, back(y)


@pytest.mark.parametrize(("axes", "kind"), few(itertools.product(PLACES, KINDS), 6), ids=str)
def test_a_product_its_transpose_and_their_derivatives_on_every_kind_of_axes(kind, axes):
    """Right, with cotangents sharded as what they belong to, and columns that stay where they lie."""
    A = jsf.from_scipy(S, "ell")
    with jax.set_mesh(on(kind)):
        x = placed(on(kind), X, *axes)
        y, transposed, (by_data, by_x) = both_ways(A, x)
        close(y, S @ X)
        close(transposed, S.T @ X)
        close(by_x, S.T @ (S @ X))
        row, col = S.tocoo().coords
        close(by_data, np.sum((S @ X)[row] * X[col], axis=1))
        assert jax.typeof(by_x).sharding == jax.typeof(x).sharding
        if axes[1] and kind != "auto":
            assert jax.typeof(y).sharding.spec[1] == axes[1]


@pytest.mark.parametrize("mapped", ["x", "data", "both"])
def test_a_batch_on_an_explicit_axis_stays_there(mapped):
    A = jsf.from_scipy(S, "csr")
    data = np.stack([S.data, 2 * S.data])
    with jax.set_mesh(MESH):
        D, Y = placed(MESH, data, "batch"), placed(MESH, X.T, "batch")
        x, d = X[:, 0], S.data
        args, dims = {"x": ((d, Y), (None, 0)), "data": ((D, x), (0, None)), "both": ((D, Y), (0, 0))}[mapped]
        f = lambda data, x: A.with_data(data) @ x  # noqa: E731
        out = jax.jit(jax.vmap(f, dims))(*args)
        assert jax.typeof(out).sharding.spec == PartitionSpec("batch", None)
        scale, columns = (1 + np.arange(2)[:, None] * (mapped != "x")), X.T if mapped != "data" else X[:, :1].T
        close(out, scale * (S @ columns.T).T)
        grad = jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum((A @ x) ** 2))))(Y)
        close(grad, (2 * S.T @ (S @ X)).T)
        assert jax.typeof(grad).sharding.spec == PartitionSpec("batch", None)


def test_without_set_mesh_a_product_works_too():
    A = jsf.from_scipy(S, "ell")
    for axes in PLACES:
        close(A @ placed(MESH, X, *axes), S @ X)


@pytest.mark.parametrize("format", ["csr", "coo", "hll"])
def test_kernels_work_on_each_devices_columns(format):
    with jax.set_mesh(MESH), jsf.use_backend("interpret"):
        out = jsf.from_scipy(S, format) @ placed(MESH, X, "rows", "batch")
    close(out, S @ X)
    assert jax.typeof(out).sharding.spec == PartitionSpec(None, "batch")


@jax.jit
def solved(A, b):
    x, back = jax.vjp(lambda b: gmres(A, b, rtol=1e-12).x, b)
    return x, back(x)[0]


@pytest.mark.deep
@pytest.mark.parametrize("axes", PLACES[1:], ids=str)
def test_a_solve_and_its_gradient_lie_as_the_right_hand_side_does(axes):
    A, inverse = jsf.from_scipy(S, "ell"), np.linalg.inv(S.toarray())
    with jax.set_mesh(MESH):
        b = placed(MESH, X, *axes)
        for got, wanted in zip(solved(A, b), (inverse @ X, inverse.T @ inverse @ X), strict=True):
            close(got, wanted, 1e-8)
            assert jax.typeof(got).sharding == jax.typeof(b).sharding


def test_functions_that_close_over_sharded_arrays_may_be_matrix_and_preconditioner():
    T = jsf.gallery.poisson(4, dim=2)
    A = jsf.from_scipy(T, "ell")
    with jax.set_mesh(MESH):
        b, d = placed(MESH, X[:, 0], "rows"), placed(MESH, T.diagonal(), "rows")
        sol = cg(lambda v: A @ v, b, M=lambda r: r / d, rtol=1e-12)
        assert sol.success
        close(sol.x, np.linalg.solve(T.toarray(), X[:, 0]), 1e-8)
