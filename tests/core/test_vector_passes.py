"""Passes over vectors: the same answer by kernel and in plain jnp, alone, mapped over, and beside a product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core import vector_passes
from jaxsparse_fmt.core.vector_passes import DOT, Pass, sweep, total
from jaxsparse_fmt.kernels import vector_pass
from tests.lowering import SIGNATURES, lowered
from tests.marks import few
from tests.zoo import CASES, FIRST_LAYOUTS

DOTTED = [layout for layout in FIRST_LAYOUTS if layout.format in ("csr", "ell", "hll", "jds", "biell", "dia")]

SQUARES = Pass(tuple, lambda _, y, w: ((), ((y, y), (w, w))))
AXPY = Pass(lambda a: (2 * a,), lambda s, x, y: ((x + s[0] * y,), ((x, y),)))


def dot(x, y):
    return sweep(DOT, (), (x, y))[2][0]


def both(f, *args):
    with jsf.use_backend("interpret"):
        by_kernel = jax.jit(f)(*args)
    return by_kernel, jax.jit(f)(*args)


def axpy(a, x, y):
    (z,), (twice,), (s,) = sweep(AXPY, (a,), (x, y))
    return z, twice, total(s)


def test_a_sum_goes_into_the_next_pass_in_parts(rng):
    x, y = rng.standard_normal((2, 3000))
    f = lambda x, y: sweep(AXPY, (dot(x, y),), (x, y))[0][0]  # noqa: E731
    got, want = both(f, x, y)
    np.testing.assert_allclose(got, want, rtol=1e-11)


@pytest.mark.parametrize("shape", [(30,), (30, 3)])
def test_complex_numbers_and_columns_are_summed_as_inner_products(shape, rng):
    x, y = rng.standard_normal((2, *shape)) + 1j * rng.standard_normal((2, *shape))
    got, want = both(dot, jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(got, np.sum(x.conj() * y, axis=0).real, rtol=1e-12)
    np.testing.assert_array_equal(got, want)


def test_mapping_over_a_pass_is_a_pass_for_each(rng):
    a, x, y = rng.standard_normal(4), *rng.standard_normal((2, 4, 100))
    with jsf.use_backend("interpret"):
        got = jax.jit(jax.vmap(axpy))(a, x, y)
    for i in range(4):
        for g, w in zip(got, axpy(jnp.asarray(a[i]), jnp.asarray(x[i]), jnp.asarray(y[i])), strict=True):
            np.testing.assert_allclose(g[i], w, rtol=1e-12)


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 5), ids=str)
def test_a_product_gives_its_inner_product_too(layout, rng):
    case = CASES["irregular"]
    A, a = layout.of(case.scipy()), case.dense()
    x, w = jnp.asarray(rng.standard_normal(a.shape[1])), jnp.asarray(rng.standard_normal(a.shape[0]))

    def f(A, x, w):
        (y, dot), (_, others) = A.matvec_dot(x, w), A._matvec_sums(x, SQUARES, w)
        return y, jnp.stack([*map(total, (dot, *others))])

    for y, sums in both(f, A, x, w):
        np.testing.assert_allclose(y, a @ x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(sums, [np.asarray(w) @ y, y @ y, np.asarray(w) @ w], rtol=1e-11)


@pytest.mark.parametrize("layout, dtype", [("ell", "float64"), ("dia", "float32")])  # one lane a thread, and two
def test_an_inner_product_in_many_parts_is_left_in_the_few_of_a_pass_over_them(layout, dtype, rng, monkeypatch):
    from jaxsparse_fmt.kernels.backends import tuning

    monkeypatch.setattr(tuning, "LAUNCH", tuning.dataclasses.replace(tuning.LAUNCH, most_parts=3))
    S = jsf.gallery.poisson(6)  # 7 warps of rows
    A, x = jsf.from_scipy(S, layout, dtype=dtype), rng.standard_normal(216).astype(dtype)
    with jsf.use_backend("interpret"):
        _, s = jax.jit(lambda A, x: A.matvec_dot(x, x))(A, jnp.asarray(x))
    assert s.summands.shape == (vector_pass.parts(7),)
    np.testing.assert_allclose(total(s), x @ (S @ x), rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
@pytest.mark.parametrize("layout", DOTTED, ids=str)
def test_a_product_with_its_inner_product_lowers_for_cuda(layout, backend, monkeypatch):
    monkeypatch.setattr(vector_passes.jax, "default_backend", lambda: "gpu")
    A = layout.of(CASES["irregular"].scipy(), backend=backend)
    x, w = jnp.ones(A.shape[1]), jnp.ones(A.shape[0])
    with jsf.use_backend(backend):
        assert SIGNATURES[backend] in lowered(lambda A, x, w: total(A.matvec_dot(x, w)[1]), A, x, w)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_noise_fills_the_interval_and_no_frequency_stands_out(dtype):
    n = 100_000
    v = vector_passes.noise(n, dtype)
    assert v.dtype == dtype
    v = np.asarray(v, np.float64)
    np.testing.assert_allclose([v.mean(), v.std(), v.min(), v.max()], [0, 3**-0.5, -1, 1], atol=0.01)
    power = np.abs(np.fft.fft(v)) ** 2 / n  # of white noise each is exponential about the variance
    assert power.max() < 1 / 3 * np.log(1000 * n)
