"""Banded and block tridiagonal systems: SciPy's solutions, residuals in long double, and dense derivatives."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxsparse_fmt as jsf
from solvers import solve_banded, solve_block_tridiagonal
from solvers.banded import product, transposed_bands
from tests.lowering import lowered, quick_jit
from tests.marks import deep, few
from tests.oracle import assert_derivatives_agree, draw

both_paths = pytest.mark.parametrize("backend", ["auto", "xla"], ids=["native", "panels"])
KINDS = [(1, 1, 20), (2, 2, 21), (0, 3, 9), (4, 0, 9), (5, 9, 3), (0, 0, 4)]  # lower, upper, n


def dense_of_bands(ab, lower, upper):
    """[..., n, n], of NumPy for arrays that are not traced."""
    n, xp = ab.shape[-1], jnp if isinstance(ab, jax.core.Tracer) else np
    i, j = np.indices((n, n))
    d = upper + i - j
    return xp.where((d >= 0) & (d <= lower + upper), xp.asarray(ab)[..., np.clip(d, 0, lower + upper), j], 0)


def dense_of_blocks(lower, diagonal, upper):
    *leading, n, m, _ = diagonal.shape
    a = jnp.zeros((*leading, n, m, n, m), diagonal.dtype)
    for i in range(n):
        for j, block in ((i - 1, lower), (i, diagonal), (i + 1, upper)):
            a = a.at[..., i, :, j, :].set(block[..., i, :, :]) if 0 <= j < n else a
    return a.reshape(*leading, n * m, n * m)


def blocks_of(a, n, m):
    """lower, diagonal and upper of dense matrices [s, n·m, n·m], with NaN in the blocks that are not read."""
    a = a.reshape(-1, n, m, n, m)
    i = np.arange(n)
    low, d, up = (np.moveaxis(a[:, i, :, np.clip(i + k, 0, n - 1)], 0, 1).copy() for k in (-1, 0, 1))
    low[:, 0] = up[:, -1] = np.nan
    return low, d, up


def bands_of(a, lower, upper):
    """ab of dense matrices [s, n, n], with NaN in the places that are not read."""
    n = a.shape[-1]
    ab = np.full((len(a), lower + upper + 1, n), np.nan, a.dtype)
    for d in range(lower + upper + 1):
        j = np.arange(n)
        i = j + d - upper
        inside = (i >= 0) & (i < n)
        ab[:, d, j[inside]] = a[:, i[inside], j[inside]]
    return ab


def residual(a, x, b):
    """max |b − A·x| / max (|A|·|x| + |b|) of each system, in long double."""
    a, x, b = (v.astype(np.longdouble) for v in (a, np.asarray(x), b))
    r = np.abs(b - np.einsum("sij,sj->si", a, x)).max(1)
    return (r / (np.einsum("sij,sj->si", np.abs(a), np.abs(x)) + np.abs(b)).max(1)).astype(float)


# ----------------------------------------------------------------------------------------------------- right answers


@both_paths
@pytest.mark.parametrize(
    ("lower", "upper", "n", "dtype"),
    few([(*kind, dtype) for dtype in ("float64", "complex64", "float32", "complex128") for kind in KINDS], 6),
)
def test_the_solution_is_scipys(lower, upper, n, dtype, backend, rng):
    ab, b = draw(rng, dtype, lower + upper + 1, n), draw(rng, dtype, n, 3)
    want = scipy.linalg.solve_banded((lower, upper), np.asarray(ab, complex), b)
    with jsf.use_backend(backend):
        got = solve_banded((lower, upper), ab, b)
    condition = np.linalg.cond(dense_of_bands(ab, lower, upper))
    limit = 20 * condition * np.finfo(dtype).eps * np.abs(want).max()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=0, atol=limit)


def many(rng, kind, count=500):
    """Random systems in bands or blocks: of all scales, some graded, some singular, some with NaN."""
    n = kind[2] * kind[1] if kind[0] == "blocks" else kind[2]
    i, j = np.indices((n, n))
    if kind[0] == "blocks":
        inside = np.abs(i // kind[1] - j // kind[1]) <= 1
    else:
        inside = (i - j <= kind[0]) & (j - i <= kind[1])
    a, b = rng.standard_normal((count, n, n)) * inside, rng.standard_normal((count, n))
    graded = rng.random((count, 2, n)) < 0.3
    rows, columns = np.where(graded, 10 ** rng.uniform(-6, 6, (count, 2, n)), 1).swapaxes(0, 1)
    a *= rows[:, :, None] * columns[:, None, :]
    what = rng.permutation(np.arange(count) % 20)  # 0 and 1 are singular, 2 is not a number, 3 has zeros as pivots
    place = rng.integers(n, size=count)
    each = np.arange(count)
    a[each[what == 0], place[what == 0]] = 0
    a[each[what == 1], :, place[what == 1]] = 0
    a[each[what == 2], place[what == 2], place[what == 2]] = np.nan
    a[each[what == 3][:, None], np.arange(n), np.arange(n)] = 0
    scale = 10.0 ** rng.choice([-150, 0, 150], count)
    return a * scale[:, None, None], b * scale[:, None] * 10.0 ** rng.uniform(-9, 9, (count, 1)), what


@both_paths
@pytest.mark.parametrize("kind", [(1, 1, 30), (3, 2, 20), deep((0, 1, 30)), ("blocks", 3, 6)], ids=str)
def test_every_system_of_a_batch_is_judged_alone_at_any_scale(kind, backend, rng):
    a, b, what = many(rng, kind)

    @quick_jit
    def solve(a, b):
        if kind[0] == "blocks":
            return solve_block_tridiagonal(*a, b.reshape(len(b), kind[2], kind[1])).reshape(b.shape)
        return solve_banded(kind[:2], a, b)

    def stored(a):
        return blocks_of(a, kind[2], kind[1]) if kind[0] == "blocks" else bands_of(a, *kind[:2])

    with jsf.use_backend(backend):
        x = np.asarray(solve(stored(a), b))
        bad = what < 3
        without = np.asarray(solve(stored(np.where(bad[:, None, None], np.eye(a.shape[1]), a)), b))
    assert np.all(np.isnan(x[bad]))
    regular = ~bad & ((what != 3) | (np.linalg.matrix_rank(np.nan_to_num(a)) == a.shape[1]))
    assert regular.sum() > 0.75 * len(a) and np.all(np.isfinite(x[regular]))
    np.testing.assert_array_equal(x[~bad], without[~bad])
    assert residual(a[regular], x[regular], b[regular]).max() <= 8 * np.finfo(float).eps


def test_a_tridiagonal_solve_without_interchanges_is_noticed_for_each_system(monkeypatch, rng):
    right = jax.lax.linalg.tridiagonal_solve

    def of_a_gpu(low, d, up, b):  # wrong where b begins with 2
        return right(low, d, up, b) * jnp.where(b[:, :1] == 2, 1 + 1e-9, 1)

    a, b = rng.standard_normal((3, 7, 7)) * (np.abs(np.subtract.outer(range(7), range(7))) <= 1), np.ones((3, 7))
    b[1, 0] = 2
    want = solve_banded((1, 1), bands_of(a, 1, 1), b)
    monkeypatch.setattr(jax.lax.linalg, "tridiagonal_solve", of_a_gpu)
    with jsf.use_backend("xla"):
        x = solve_banded((1, 1), bands_of(a, 1, 1), b)
    np.testing.assert_array_equal(x[::2], want[::2])
    assert np.any(x[1] != want[1]) and residual(a, x, b).max() <= 1e-15


@pytest.mark.parametrize("values", ["int", "list", "bfloat16", "mixed"])
def test_other_dtypes_are_promoted_as_by_jax(values):
    ab, b = np.array([[0, 1, 1], [4, 4, 4], [1, 1, 0]]), np.array([6, 12, 14])
    want, dtype = [1, 2, 3], {"bfloat16": "bfloat16", "mixed": "complex128"}.get(values, "float64")
    if values == "list":
        ab, b = ab.tolist(), b.tolist()
    elif values != "int":
        ab, b = jnp.asarray(ab, "bfloat16" if values == "bfloat16" else "float32"), jnp.asarray(b, dtype)
    x = solve_banded([1, np.int64(1)], ab, b)
    assert x.dtype == dtype
    np.testing.assert_allclose(x.astype(complex), want, rtol=1e-2 if values == "bfloat16" else 1e-12)


# ------------------------------------------------------------------------------------------------- batches and shapes


def test_leading_axes_are_broadcast_and_vmapped_alike(rng):
    ab, b = draw(rng, "float64", 3, 1, 4, 8), draw(rng, "float64", 1, 2, 8, 2)
    dense = dense_of_bands(ab, 1, 2)
    want = np.linalg.solve(dense, b)
    solve = functools.partial(solve_banded, (1, 2))
    np.testing.assert_allclose(solve(ab, b), want, rtol=1e-9)
    np.testing.assert_allclose(solve(ab[:, 0], b[0, :1, :, 0]), want[:, 0, :, 0], rtol=1e-9)
    np.testing.assert_allclose(solve(ab[0, 0], b), want[0][None], rtol=1e-9)
    over_a, over_b = jax.vmap(solve, (0, None)), jax.vmap(solve, (None, 1), 1)
    np.testing.assert_allclose(over_a(ab[:, 0], b[0, 0]), want[:, 0], rtol=1e-9)
    np.testing.assert_allclose(over_b(ab[0, 0], b[0, 0]), want[0, 0], rtol=1e-9)
    np.testing.assert_allclose(jax.vmap(over_b)(ab[:2, 0], b[0]), want[[0, 1], [0, 1]], rtol=1e-9)


def test_one_matrix_is_eliminated_once_for_all_right_hand_sides():
    jaxpr = str(jax.make_jaxpr(functools.partial(solve_banded, (2, 2)))(jnp.ones((5, 9)), jnp.ones((6, 9, 4))))
    assert "f64[1,9,24] = banded_solve" in jaxpr


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 4), (0, 4, 2)])
def test_an_empty_system_has_an_empty_solution(shape):
    n = 0 if shape == (0,) else 4
    leading = (0,) if shape[0] == 0 and n else ()
    assert solve_banded((1, 1), np.ones((*leading, 3, n)), np.ones(shape)).shape == shape


@pytest.mark.parametrize(("lower", "upper", "n"), KINDS)
def test_products_and_transposes_of_bands_are_dense_ones(lower, upper, n, rng):
    m = 2
    bands = draw(rng, "float64", lower + upper + 1, n, m, m)
    i, j = np.indices((n, n))
    d = upper + i - j
    inside = ((d >= 0) & (d <= lower + upper))[..., None, None]
    dense = np.where(inside, bands[np.clip(d, 0, lower + upper), j], 0).swapaxes(1, 2).reshape(n * m, n * m)
    x = draw(rng, "float64", n, m, 3)
    np.testing.assert_allclose(product(bands, upper, x).reshape(n * m, 3), dense @ x.reshape(n * m, 3), atol=1e-13)
    turned = product(transposed_bands(bands, upper), lower, x)
    np.testing.assert_allclose(turned.reshape(n * m, 3), dense.T @ x.reshape(n * m, 3), atol=1e-13)


# ------------------------------------------------------------------------------------------------- derivatives and JAX


@both_paths
def test_derivatives_of_bands_are_dense_ones(backend, rng):
    for (lower, upper), dtype in (((1, 1), "float64"), ((2, 1), "complex128")):
        ab, b = draw(rng, dtype, 2, lower + upper + 1, 5), draw(rng, dtype, 5, 2)

        def dense(ab, b, lower=lower, upper=upper):
            return jnp.linalg.solve(dense_of_bands(ab, lower, upper), b[None])

        def ours(ab, b, lower=lower, upper=upper):
            return solve_banded((lower, upper), ab, b[None])

        with jsf.use_backend(backend):
            assert_derivatives_agree(ours, dense, ab, b, rtol=1e-8, every_way=lower == 2)


@both_paths
def test_derivatives_of_blocks_are_dense_ones(backend, rng):
    n, m = 4, 2
    low, d, up = draw(rng, "float64", 3, 2, n, m, m)

    def dense(low, d, up, b):
        return jnp.linalg.solve(dense_of_blocks(low, d, up), jnp.broadcast_to(b.ravel(), (2, n * m))[..., None])

    def ours(low, d, up, b):
        return solve_block_tridiagonal(low, d, up, jnp.stack([b, b]))

    with jsf.use_backend(backend):
        assert_derivatives_agree(ours, dense, low, d, up, draw(rng, "float64", n, m), rtol=1e-8)


def test_the_derivatives_of_a_singular_system_are_nan_and_those_of_the_others_right(rng):
    ab, b = np.array(draw(rng, "float64", 2, 5, 6)), np.ones((2, 6))
    ab[0, :, 3] = 0
    by_ab, by_b = quick_jit(jax.grad(lambda ab, b: jnp.nansum(solve_banded((2, 2), ab, b)), (0, 1)))(ab, b)
    y = np.linalg.solve(dense_of_bands(ab[1], 2, 2).T, np.ones(6))
    assert np.all(np.isnan(by_b[0])) and np.all(np.isfinite(by_ab[1]))
    np.testing.assert_allclose(by_b[1], y, rtol=1e-9)


@pytest.mark.parametrize("explicit", [False, True], ids=["shard_map", "explicit axes"])
def test_a_batch_over_eight_devices_is_solved_by_each_for_itself(explicit, rng):
    kind = AxisType.Explicit if explicit else AxisType.Auto
    mesh = jax.make_mesh((8,), ("device",), axis_types=(kind,), devices=jax.devices("cpu")[:8])
    own, spec = NamedSharding(mesh, PartitionSpec("device")), PartitionSpec("device")
    ab, b = draw(rng, "float64", 16, 5, 7), draw(rng, "float64", 16, 7)

    def loss_and_x(ab, b):
        f = functools.partial(solve_banded, (2, 2))
        x, back = jax.vjp(f if explicit else jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec), ab, b)
        return x, back(2 * x)

    program = jax.jit(loss_and_x).lower(*(jax.device_put(v, own) for v in (ab, b))).compile()
    assert "all-gather" not in program.as_text()
    x, (_, by_b) = program(*(jax.device_put(v, own) for v in (ab, b)))
    dense = np.asarray(dense_of_bands(ab, 2, 2))
    want = np.linalg.solve(dense, b[..., None])
    assert x.sharding.is_equivalent_to(own, 2)
    np.testing.assert_allclose(x, want[..., 0], rtol=1e-9)
    np.testing.assert_allclose(by_b, np.linalg.solve(dense.swapaxes(1, 2), 2 * want)[..., 0], rtol=1e-9)


@pytest.mark.deep
def test_derivatives_need_no_promotion_of_the_users(rng):
    ab, b = draw(rng, "float64", 5, 9), draw(rng, "float32", 9)
    gradient = jax.grad(lambda ab, b: solve_banded((2, 2), ab, b)[0], (0, 1))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        by_ab, by_b = gradient(ab, b)
    assert by_ab.dtype == "float64" and by_b.dtype == "float32"
    np.testing.assert_allclose(by_b, np.linalg.inv(dense_of_bands(ab, 2, 2))[0], rtol=1e-5)


def test_a_scan_of_new_values_solves_each(rng):
    ab = draw(rng, "float64", 4, 5, 9)
    last, _ = quick_jit(lambda ab, b: jax.lax.scan(lambda b, ab: (solve_banded((2, 2), ab, b), None), b, ab))(
        ab, ab[0, 0]
    )
    want = functools.reduce(lambda b, a: np.linalg.solve(a, b), np.asarray(dense_of_bands(ab, 2, 2)), ab[0, 0])
    np.testing.assert_allclose(last, want, rtol=1e-8)


def test_an_exported_program_has_no_call_of_the_host_and_solves(rng):
    blocks, b = draw(rng, "float64", 3, 2, 9, 2, 2), draw(rng, "float64", 2, 9, 2)

    def both(blocks, b):
        x = solve_block_tridiagonal(*blocks, b)
        return x, solve_banded((1, 1), blocks[:, :, :, 0, 0].swapaxes(0, 1), b[..., 0])

    exported = jax.export.export(jax.jit(both))(blocks, b)
    text = exported.mlir_module()
    assert "callback" not in text and "jaxsparse_native" not in text
    again = jax.export.deserialize(exported.serialize()).call(blocks, b)
    for got, want in zip(again, both(blocks, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
    assert "callback" not in lowered(both, blocks, b)
    assert lowered(both, blocks, b, platforms=("cpu",)).count("jaxsparse_native") >= 1


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((((1, 1)), np.ones((4, 5)), np.ones(5)), r"ab must be of shape \(\.\.\., 3, n\) .*; got \(4, 5\)"),
        (((1, 1), np.ones(3), np.ones(3)), r"got \(3,\)"),
        (((1, 1), np.ones((3, 5)), np.ones(4)), r"b must be of shape \(\.\.\., 5\) or .*; got \(4,\), read as vectors"),
        (((1, 1), np.ones((3, 5)), np.ones((2, 5))), r"got \(2, 5\), read as columns; pass many"),
        (((1, 1), np.ones((2, 3, 5)), np.ones((5, 2))), r"read as vectors.* b\[None\]"),
        (((1, 1), np.ones((2, 3, 5)), np.ones((3, 5))), r"leading axes of A and b .* \(2,\), \(3,\)"),
        (((1, -1), np.ones((1, 5)), np.ones(5)), "upper must be at least 0; got -1"),
        (((0, 0), np.ones((1, 5)), np.float64(1)), r"got \(\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_a_cure(arguments, message):
    with pytest.raises(ValueError, match=message):
        solve_banded(*arguments)


def test_blocks_that_do_not_fit_are_refused_with_their_shapes():
    I = np.ones((4, 2, 2))  # noqa: E741
    with pytest.raises(ValueError, match=r"of shape \(\.\.\., n, m, m\); got \(4, 2, 2\), \(3, 2, 2\), \(4, 2, 2\)"):
        solve_block_tridiagonal(I, I[:3], I, np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"b must be of shape \(\.\.\., 4, 2\) or \(\.\.\., 4, 2, k\); got \(8,\)"):
        solve_block_tridiagonal(I, I, I, np.ones(8))
    for pair in ((1, 1, 1), "1"):
        with pytest.raises(TypeError, match=r"pair of numbers of diagonals, \(lower, upper\); got"):
            solve_banded(pair, np.ones((3, 4)), np.ones(4))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"ab has dtype .*, which is not numeric"):
        solve_banded((0, 0), np.array([["1"]]), np.ones(1))
