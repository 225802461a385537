"""Programs of JAX in kernels of native code."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.cpu.abi import FUSED
from jaxsparse_fmt.kernels.cpu.fusion import fused
from solvers import bicgstab, cg, minres

rng = np.random.default_rng
MANY = 3 * LAUNCH.piece_entries + 13  # places of several pieces


def run(f, *operands):
    program = jax.make_jaxpr(f)(*operands)
    return fused(program)(*operands)


def numbers_and_sums(x, y, k):
    """Operations of every kind that solvers use; two stages of sums."""
    size = jnp.sqrt(jnp.vdot(x, x)) + jnp.max(jnp.abs(y)) + lax.rsqrt(jnp.vdot(y, y))
    z = jnp.where((x > 0) & ~(y <= x), x / size, y * 2 - x)
    bits = lax.bitcast_convert_type(size, jnp.int64 if x.dtype == jnp.float64 else jnp.int32)
    least = jnp.min(jnp.minimum(z, y)) + jnp.sum(jnp.maximum(z, 0.5))
    places = lax.iota(jnp.int32, x.shape[0])
    hashed = (places.astype(jnp.uint32) * jnp.uint32(2654435761)) >> 7
    return z, least, (bits >> 5) + (k << 2), jnp.all(jnp.isfinite(z)), jnp.any(z != z), hashed ^ 3, -jnp.square(z)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 7, 8, 1035, MANY])
def test_programs_compute_what_jax_computes(n, dtype):
    x, y = (rng(seed).standard_normal(n).astype(dtype) for seed in (0, 1))
    found, expected = run(numbers_and_sums, x, y, jnp.int64(3)), numbers_and_sums(x, y, jnp.int64(3))
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jnp.floating):
            eps = np.finfo(dtype).eps
            np.testing.assert_allclose(a, b, rtol=20 * eps * max(1, np.sqrt(n) / 8), atol=min(1e-6, eps * n))
        elif a.shape or a.dtype == bool:
            np.testing.assert_array_equal(a, b)


def test_integers_and_signs_of_zero_are_those_of_xla():
    def f(k, x):
        ends = jnp.max(k), jnp.min(k), jnp.sum(k), jnp.max(k.astype(jnp.uint32))
        bits = lax.bitcast_convert_type(x, jnp.int32), (k >> 3) + (k << 2), ~k ^ 5, -k, jnp.abs(k)
        masks = lax.reduce_and(k, (0,)), lax.reduce_or(k, (0,)), jnp.all(k > 5), jnp.any(k == 3)
        zeros = jnp.stack([1 / jnp.maximum(0.0, 0 * x[:1]), 1 / jnp.minimum(0 * x[:1], 0.0), 1 / jnp.max(0 * x)[None]])
        others = k.astype(jnp.float32), (k > 4).astype(jnp.int32), jnp.abs(k.astype(jnp.uint32))
        return *ends, *bits, *masks, *others, zeros, 1 / jnp.sum(0 * x)

    k, x = np.array([7, 3, 15, -9, 2**31 - 1, -(2**31)], np.int32), -np.ones(6, np.float32)
    for a, b in zip(run(f, k, x), f(jnp.asarray(k), jnp.asarray(x)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


def test_what_has_no_code_goes_to_xla():
    def f(x):
        noise = jax.random.uniform(jax.random.key(0), x.shape, x.dtype)
        halved = jax.vmap(lambda v: lax.while_loop(lambda v: v > 1.0, lambda v: v / 2, v))(jnp.abs(x) * 8)
        mixed = lax.dot_general(x, x.astype(jnp.float32), (((0,), (0,)), ((), ())), preferred_element_type=x.dtype)
        return x + noise, halved, mixed, jnp.sum(x[:0]), lax.fori_loop(0, 0, lambda _, v: 2 * v, x)

    x = rng(6).standard_normal(9)
    for a, b in zip(run(f, x), f(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("n", [9, MANY])
def test_nan_and_infinity_pass_through_extremes_and_comparisons(n):
    x = np.ones(n)
    x[n - 1], x[2] = np.nan, np.inf

    def f(x, xp=jnp):
        return xp.max(x), xp.min(x), xp.sum(x), x == x, x != x, xp.isfinite(x), xp.maximum(x, 2.0), xp.abs(-x)

    for a, b in zip(run(f, x), f(x, np), strict=True):
        np.testing.assert_array_equal(a, b)


def fibonacci(n, dtype):
    """A loop whose vectors change places, so that none may take the memory of another too early."""

    def trip(carry):
        k, x, y, total = carry
        return k + 1, y, x + y / jnp.sqrt(jnp.vdot(y, y)), total + jnp.sum(x)

    def f(x, y):
        return lax.while_loop(lambda c: (c[0] < 11) & (c[3] < 1e30), trip, (0, x, y, jnp.zeros((), dtype)))

    return f


@pytest.mark.parametrize("n", [3, 100, MANY])
def test_loops_keep_what_they_still_read(n):
    x, y = rng(2).standard_normal(n), rng(3).standard_normal(n)
    found, expected = run(fibonacci(n, float), x, y), fibonacci(n, float)(x, y)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_branches_counted_loops_and_other_operations():
    def f(k, x):
        x = lax.switch(k, [lambda x: x + 1, lambda x: jnp.cumsum(x) * 2, lambda x: x[::-1]], x)
        x = lax.fori_loop(0, 4, lambda i, x: x * 2 + i, x)
        return jnp.sort(x) / jnp.linalg.norm(x), x @ jnp.outer(x, x)

    x = rng(4).standard_normal(20)
    for k in range(3):
        for a, b in zip(run(f, k, x), f(k, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("solver", [cg, bicgstab, minres])
def test_a_solve_leaves_no_kernel_to_xla(solver):
    A = jsf.from_scipy(jsf.gallery.poisson(6, dim=2), "csr")
    text = jax.jit(lambda A, b: solver(A, b).x).lower(A, jnp.ones(A.shape[0])).compile().as_text()
    assert text is not None
    assert FUSED in text
    assert not re.findall(r" (?:fusion|reduce|dot)\(", text)


def test_two_solves_have_the_same_bits():
    A = jsf.from_scipy(jsf.gallery.poisson(400, dim=2), "csr")  # several pieces, on any thread
    b = jnp.asarray(rng(5).standard_normal(A.shape[0]))
    first, second = (cg(A, b, maxiter=20).x for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("backend", ["xla", "interpret"])
def test_other_backends_call_no_native_code(backend):
    A = jsf.from_scipy(jsf.gallery.poisson(4, dim=2), "csr")
    with jsf.use_backend(backend):
        assert FUSED not in jax.jit(lambda A, b: cg(A, b).x).lower(A, jnp.ones(A.shape[0])).as_text()


def test_an_exported_solve_calls_no_native_code():
    A = jsf.from_scipy(jsf.gallery.poisson(4, dim=2), "csr")
    exported = jax.export.export(jax.jit(lambda b: cg(A, b).x), platforms=["cpu"])(jnp.ones(A.shape[0]))
    assert FUSED not in exported.mlir_module()
