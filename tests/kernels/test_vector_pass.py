"""The kernel of a pass over vectors: interpreted against plain NumPy, and lowered for CUDA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsparse_fmt.kernels.backends import tuning
from jaxsparse_fmt.kernels.vector_pass import PARTS, Pass, parts, sweep
from tests.lowering import SIGNATURES, lowered


def _prepare(a, b, moves):
    return a / b, moves, a > b


def _each(scalars, x, y):
    alpha, moves, _ = scalars
    new = jnp.where(moves, x + alpha * y, x)
    return (new, y * y), ((new, y), (x, x))


PASS = Pass(_prepare, _each)
# One number; a part of a block; blocks that are full and one that is not; more rounds than one for each block.
SIZES = (1, 1000, 3 * 1024 + 5)


@functools.partial(jax.jit, static_argnames="backend")
def run(numbers, vectors, backend="interpret"):
    return sweep(numbers, vectors, PASS, backend)


def vectors(n, dtype, rng):
    return tuple(jnp.asarray(rng.standard_normal(n), dtype) for _ in range(2))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_new_vectors_scalars_and_sums_are_those_of_numpy(n, dtype, rng):
    x, y = vectors(n, dtype, rng)
    partial = jnp.asarray(rng.standard_normal(37), dtype)
    for moves in (True, False):
        (new, squares), (alpha, moved, larger), sums = run((jnp.asarray(3, dtype), partial, jnp.asarray(moves)), (x, y))
        want = 3 / np.sum(np.asarray(partial, np.float64))
        tolerance = {"rtol": 1e-12 if dtype == "float64" else 2e-5, "atol": 1e-6 if dtype == "float32" else 1e-14}
        np.testing.assert_allclose(alpha, want, **tolerance)
        assert moved.dtype == bool and bool(moved) == moves and bool(larger) == (np.sum(np.asarray(partial)) < 3)
        exact = np.asarray(x) + moves * want * np.asarray(y)
        np.testing.assert_allclose(new, exact, **tolerance)
        np.testing.assert_array_equal(squares, y * y)
        assert sums[0].shape == (parts(n),)
        np.testing.assert_allclose(np.sum(sums[0]), exact @ np.asarray(y), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(np.sum(sums[1]), np.asarray(x) @ np.asarray(x), rtol=1e-5)


def test_many_numbers_go_in_rounds(monkeypatch, rng):
    monkeypatch.setattr(tuning, "LAUNCH", tuning.dataclasses.replace(tuning.LAUNCH, sweep_blocks=2))
    n = 7 * 1024 + 3
    x, y = vectors(n, "float64", rng)
    one = jnp.float64(1)
    (new, _), _, sums = jax.jit(lambda *v: sweep((one, one, one > 0), v, PASS, "interpret"))(x, y)
    np.testing.assert_array_equal(new, x + y)
    assert sums[0].shape == (2 * PARTS,)
    np.testing.assert_allclose(np.sum(sums[1]), np.asarray(x) @ np.asarray(x))


def test_lanes_past_the_end_reach_no_sum():
    """An `each` that makes something of nothing."""
    what = Pass(lambda: (), lambda _, x: ((), ((x + 1, x + 1),)))
    _, _, (ones,) = jax.jit(lambda x: sweep((), (x,), what, "interpret"))(jnp.zeros(5))
    assert float(jnp.sum(ones)) == 5


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pass_lowers_for_cuda(backend, dtype, rng):
    numbers = jnp.asarray(2, dtype), jnp.ones(100, dtype), jnp.asarray(True)
    text = lowered(functools.partial(run, backend=backend), numbers, vectors(5000, dtype, rng))
    assert SIGNATURES[backend] in text
