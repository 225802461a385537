"""The trilinear form: its three primitives close under every transformation of JAX."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core import form
from tests.lowering import SIGNATURES, gpus, lowered, operations
from tests.marks import few
from tests.oracle import assert_product, draw, wide
from tests.zoo import CASES, SORTED, Layout

CASE = CASES["full_row"]
N_ROWS, N_COLS = CASE.shape


def count(f, *args) -> dict[str, int]:
    """How often each face is computed in f, inside jitted functions too."""
    return collections.Counter(n.removeprefix("sparse_") for n in operations(f, *args) if n.startswith("sparse_"))


@pytest.fixture
def A():
    return SORTED.of(CASE.scipy())


def bind(A, face, a, b):
    leaves, tree = jax.tree.flatten(A._without_values)
    return form.bind(face, a, b, leaves, tree=tree, backend=A.backend)


@pytest.fixture
def vectors(A, rng):
    """v, x and y of the form, with batch 1 and 2 columns."""
    return {
        "v": jnp.asarray(rng.standard_normal((1, A.n_stored))),
        "x": jnp.asarray(rng.standard_normal((1, N_COLS, 2))),
        "y": jnp.asarray(rng.standard_normal((1, N_ROWS, 2))),
    }


# -------------------------------------------------------------------------------------------------------- closedness


@pytest.mark.parametrize(
    "face, operand, transpose",
    [
        ("product", 0, "outer"),
        ("product", 1, "transposed"),
        ("transposed", 0, "outer"),
        ("transposed", 1, "product"),
        ("outer", 0, "product"),
        ("outer", 1, "transposed"),
    ],
)
def test_the_transpose_of_each_face_is_another(A, vectors, face, operand, transpose):
    names = form.OPERANDS[face]
    a, b = vectors[names[0]], vectors[names[1]]

    def linear(u):
        return bind(A, face, *((u, b) if operand == 0 else (a, u)))

    u, w = (a, b)[operand], vectors[names[2]]
    adjoint = jax.linear_transpose(linear, u)
    assert count(adjoint, w) == {transpose: 1}
    np.testing.assert_allclose(jnp.vdot(w, linear(u)), jnp.vdot(adjoint(w)[0], u), rtol=1e-12)


def test_nothing_is_computed_for_an_operand_that_does_not_vary(A):
    x = jnp.ones(N_COLS)

    def loss(values, x):
        return jnp.sum((A._with_values(values) @ x) ** 2)

    assert count(jax.grad(loss, 1), A.values, x) == {"product": 1, "transposed": 1}
    assert count(jax.grad(loss, 0), A.values, x) == {"product": 1, "outer": 1}
    assert count(lambda t: jax.jvp(lambda x: A @ x, (x,), (t,)), x) == {"product": 2}
    assert count(lambda v, t: jax.jvp(loss, (A.values, x), (v, t)), A.values, x) == {"product": 3}


# ------------------------------------------------------------------------------------------------------ mixed dtypes


@pytest.mark.parametrize(
    "stored, vector",
    few(
        [
            (jnp.float32, jnp.float64),
            (jnp.float64, jnp.float32),
            (jnp.bfloat16, jnp.float32),
            (jnp.float64, jnp.complex128),
            (jnp.complex64, jnp.float64),
        ],
        1,
    ),
    ids=lambda d: d.__name__,
)
def test_cotangents_have_the_dtype_of_their_operand(stored, vector, rng):
    kind = np.complex64 if stored is jnp.complex64 else np.float32
    A = Layout("ell").of(CASE.scipy(kind), dtype=stored)
    x = draw(rng, vector, N_COLS)
    result = jnp.promote_types(stored, vector)
    g = draw(rng, result, N_ROWS)

    @jax.jit
    def cotangents(A, x, g):
        y, pullback = jax.vjp(lambda data, x: A.with_data(data) @ x, A.data, x)
        return y, *pullback(g)

    y, for_data, for_x = cotangents(A, x, g)
    assert y.dtype == result
    assert (for_data.dtype, for_x.dtype) == (stored, vector)
    # As JAX has it for dense products: what a real operand cannot take is dropped.
    a = jnp.asarray(CASE.dense(stored), stored)
    _, dense_pullback = jax.vjp(lambda a, x: jnp.matmul(a, x, precision="highest"), a, x)
    dense_for_a, dense_for_x = dense_pullback(g)
    rtol = 20 * float(max(jnp.finfo(stored).eps, jnp.finfo(vector).eps))
    np.testing.assert_allclose(wide(for_data), wide(dense_for_a)[CASE.places()], rtol)
    np.testing.assert_allclose(wide(for_x), wide(dense_for_x), rtol, 20 * rtol)


# -------------------------------------------------------------------------------------------------------------- vmap


@pytest.mark.parametrize("face", form.OPERANDS)
def test_every_batching_of_every_face_equals_a_loop(A, rng, face):
    sizes = {"v": (1, A.n_stored), "x": (1, N_COLS, 2), "y": (1, N_ROWS, 2)}
    first, second, _ = form.OPERANDS[face]

    def f(a, b):
        return bind(A, face, a, b)

    for axes in ((0, None), (None, 0), (0, 0), (1, 2 if second == "x" else 1)):
        pair = zip((first, second), axes, strict=True)
        shapes = (sizes[name] if axis is None else np.insert(sizes[name], axis, 3) for name, axis in pair)
        a, b = (jnp.asarray(rng.standard_normal(shape)) for shape in shapes)
        got = jax.vmap(f, axes)(a, b)
        for i in range(3):
            one = (v if axis is None else jnp.take(v, i, axis) for v, axis in zip((a, b), axes, strict=True))
            np.testing.assert_allclose(got[i], f(*one), rtol=1e-12, atol=1e-12)


# --------------------------------------------------------------------------------------------------------- shard_map


MESH = Mesh(np.array(jax.devices("cpu")[:8]), ("i",))


def spread_over_columns(mesh, check_vma: bool):
    """A @ X with the columns of X on different devices."""
    spec = P(None, *mesh.axis_names)
    return jax.jit(
        jax.shard_map(lambda A, X: A @ X, mesh=mesh, in_specs=(P(), spec), out_specs=spec, check_vma=check_vma)
    )


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("backend", ["xla", "interpret"])
def test_shard_map_spreads_the_columns_of_x(rng, backend, check_vma):
    A, X = SORTED.of(CASE.scipy(), backend=backend), rng.standard_normal((N_COLS, 16))
    assert_product(spread_over_columns(MESH, check_vma)(A, X), CASE.dense(), X)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("backend", ["triton", "mosaic"])
def test_kernels_lower_inside_shard_map_whatever_its_axes_are_called(backend, check_vma):
    A = SORTED.of(CASE.scipy(), backend=backend)
    for name in ("i", "rows", "batch", "columns"):
        gpu = gpus(**{name: 8})
        text = lowered(spread_over_columns(gpu, check_vma), A, np.ones((N_COLS, 16)), mesh=gpu)
        assert SIGNATURES[backend] in text


@pytest.mark.parametrize("check_vma", few([True, False], 1))
def test_gradients_sum_over_the_devices_that_share_the_values(A, rng, check_vma):
    X = jnp.asarray(rng.standard_normal((N_COLS, 16)))

    def loss(values, X):
        def local(A, X):
            return jax.lax.psum(jnp.sum(jnp.sin(A @ X)), "i")

        total = jax.shard_map(local, mesh=MESH, in_specs=(P(), P(None, "i")), out_specs=P(), check_vma=check_vma)
        return total(A._with_values(values), X)

    for_values, for_x = jax.jit(jax.grad(loss, (0, 1)))(A.values, X)
    a = CASE.dense()
    G = np.cos(a @ X)
    np.testing.assert_allclose(A._with_values(for_values).data, (G @ X.T)[CASE.places()], rtol=1e-10)
    np.testing.assert_allclose(for_x, a.T @ G, rtol=1e-10, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------- backends


def test_use_backend_retraces_a_jitted_product(A, rng):
    x, seen = rng.standard_normal(N_COLS), []

    @jax.jit
    def f(A, x):
        seen.append(1)
        return A @ x

    def text():
        return f.lower(A, x).as_text()

    plain = f(A, x)
    with jsf.use_backend("interpret"):
        interpreted = f(A, x)
        inside = text()
    f(A, x)
    assert len(seen) == 2
    assert inside != text()
    np.testing.assert_allclose(plain, interpreted, rtol=1e-12)


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
def test_a_gpu_dialect_off_the_gpu_says_what_to_use(A, backend):
    B = SORTED.of(CASE.scipy(), backend=backend)
    with pytest.raises(ValueError, match=f"backend '{backend}' needs an NVIDIA GPU; use backend='auto'"):
        lowered(lambda A, x: A @ x, B, np.ones(N_COLS), platforms=("cpu",))


def test_one_program_lowers_for_cpu_and_gpu_at_once(A):
    text = lowered(lambda A, x: A @ x, A, np.ones(N_COLS), platforms=("cpu", "cuda"))
    assert any(name in text for name in SIGNATURES.values())


def test_is_a_kernel_lowered_once_for_all_products_of_a_program_with_one_matrix():
    S = jsf.gallery.poisson(20)
    A, x, y = jsf.from_scipy(S, "dia"), jnp.ones(S.shape[0]), jnp.arange(S.shape[0]) / 8

    def both(A, x, y):
        return A @ x, A @ y

    assert lowered(both, A, x, y).count(f"@__gpu${SIGNATURES['triton']}") == 1
    for got, v in zip(jax.jit(both)(A, x, y), (x, y), strict=True):
        np.testing.assert_allclose(got, S @ np.asarray(v), atol=1e-9)
