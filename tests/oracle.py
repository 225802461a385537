"""What a right answer is: dense arithmetic in 64 bits, and how far rounding may lead from it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering import quick_jit


def draw(rng: np.random.Generator, dtype: Any, *shape: int) -> jax.Array:
    """Normal numbers of a real or complex dtype."""
    real, imaginary = rng.standard_normal((2, *shape))
    numbers = real + 1j * imaginary if jnp.issubdtype(dtype, jnp.complexfloating) else real
    return jax.device_put(numbers.astype(jnp.dtype(dtype)))  # jnp.asarray would compile a program for each new shape


@quick_jit
def faces(A, X, Y):
    """The three faces of the form: A·X, Aᵀ·Y, and Σ_p Y[row, p]·X[col, p] at the entries."""
    product, pullback = jax.vjp(lambda data: A.with_data(data) @ X, A.data)
    return product, A.T @ Y, pullback(Y)[0]


def wide(v: Any) -> np.ndarray:
    """In float64 or complex128."""
    v = np.asarray(v)
    return v.astype(np.complex128 if v.dtype.kind == "c" else np.float64)


def assert_product(got: Any, dense: np.ndarray, x: Any, dtype: Any = None) -> None:
    """`got` is dense @ x within the bound of Kokkos Kernels' SpMV tests.

    |y − ŷ| ≤ 10·eps·(α·max_nnz_row·max|a|·max|x|), eps of the result's dtype.
    """
    x = wide(x)
    assert_close(got, dense @ x, magnitude(dense, x), dtype)


def magnitude(dense: np.ndarray, x: np.ndarray) -> float:
    """max_nnz_row·max|a|·max|x|."""
    longest = np.count_nonzero(dense, axis=1).max(initial=0)
    return float(longest * np.abs(dense).max(initial=0) * np.abs(x).max(initial=0))


def assert_close(got: Any, want: np.ndarray, size: float, dtype: Any = None) -> None:
    """|got − want| ≤ 10·eps·size, and of `dtype` where one is given."""
    got = np.asarray(got)
    assert got.shape == want.shape
    if dtype is not None:
        assert got.dtype == dtype
    error = np.abs(wide(got) - want).max(initial=0)
    limit = 10 * float(jnp.finfo(got.dtype).eps) * size
    assert error <= limit, f"off by {error:.3g}, allowed {limit:.3g}"


def assert_same_storage(got: Any, want: Any) -> None:
    """In class, layout, and every array with its dtype."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def assert_refused(call: Any, error: type[Exception], words: str) -> str:
    """call() raises `error`, and its text, which is returned, has the regular expression `words`."""
    with pytest.raises(error, match=words) as refusal:
        call()
    return str(refusal.value)


def assert_derivatives_agree(
    ours: Any, dense: Any, *point: Any, rtol: float = 1e-7, jit: Any = quick_jit, every_way: bool = False
) -> None:
    """Of Σ w·|f|² at this point: the gradients of both functions, and forward over reverse along random vectors.

    Args:
      every_way: the three other ways to second derivatives too.
    """
    rng = np.random.default_rng(6)
    point = tuple(map(jnp.asarray, point))
    along = tuple(jnp.asarray(rng.standard_normal(p.shape), p.dtype) for p in point)

    def derivatives(f: Any) -> Any:
        def loss(*point: Any) -> jax.Array:
            x = f(*point).ravel()
            return jnp.sum(jnp.cos(jnp.arange(x.size)) * jnp.abs(x) ** 2)

        by_all = tuple(range(len(point)))
        gradient = jax.grad(loss, by_all)
        forward = lambda *point: jax.jvp(loss, point, along)[1]  # noqa: E731
        slope = lambda *point: sum(jnp.vdot(a, g).real for a, g in zip(along, gradient(*point), strict=True))  # noqa: E731
        others = (jax.grad(slope, by_all), jax.grad(forward, by_all), lambda *point: jax.jvp(forward, point, along))
        ways = (lambda *point: jax.jvp(gradient, point, along), *(others if every_way else ()))
        return jit(lambda *point: [way(*point) for way in ways])(*point)

    for got, want in zip(*(jax.tree.leaves(derivatives(f)) for f in (ours, dense)), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=rtol * np.max(np.abs(want)))
