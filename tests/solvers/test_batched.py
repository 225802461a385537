"""Many systems with one known pattern, by `direct` under vmap: against dense algebra, and against each alone."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import jaxsparse_fmt as jsf
from solvers import Status, batched, direct, factorized, host_calls, patterns, solve
from tests.lowering import quick_jit
from tests.marks import deep, few

N, BATCH = 40, 11


def some_matrix(dtype=np.float64, hole=False):
    S = scipy.sparse.random_array((N, N), density=0.08, rng=np.random.default_rng(3))
    S = scipy.sparse.csr_array(S + 5 * scipy.sparse.eye_array(N))
    if hole:  # no entry at [7, 7], but a matrix with full rank
        S = scipy.sparse.lil_array(S)
        S[7, 7], S[7, 8], S[8, 7] = 0, 3, 2
        S = scipy.sparse.csr_array(S)
    return S.astype(dtype)


S = some_matrix()
ROW, COL = S.tocoo().coords
FACTORS = np.linspace(1.0, 2.0, BATCH)[:, None]


def systems(rng):
    data = S.data * rng.uniform(0.9, 1.1, (BATCH, S.nnz))
    return data, rng.standard_normal((BATCH, N))


def dense_of(data):
    dense = np.zeros((len(data), N, N), data.dtype)
    dense[:, ROW, COL] = data
    return dense


def of_batch(A):
    return lambda data, b: jax.vmap(lambda d, b: direct(A.with_data(d), b))(data, b)


@functools.cache
def compiled():
    return quick_jit(of_batch(jsf.from_scipy(S, "csr")))


@pytest.mark.parametrize("fmt", few(["csr", "dia", "coo", "csc", "sell", "pjds", "hll"], 2))
def test_every_system_is_solved_as_a_dense_one(fmt, rng):
    data, b = systems(rng)
    sol = quick_jit(of_batch(jsf.from_scipy(S, fmt)))(data, b)
    assert np.all(sol.success) and np.all(sol.iterations <= 2)
    np.testing.assert_allclose(sol.x, np.linalg.solve(dense_of(data), b[..., None])[..., 0], rtol=1e-10, atol=1e-12)


def test_a_member_that_fails_leaves_the_others_as_they_are(rng):
    data, b = systems(rng)
    good = compiled()(data, b)
    bad = data.copy()
    bad[1] = np.where(ROW == 5, 0, data[1])  # singular
    bad[2, 3] = np.nan
    bad[3] *= 1e150
    bad[4] *= 1e-150
    bad[6] = np.where(ROW == COL, 0, data[6])  # whose pivots are off the diagonal
    b[5] = 0
    sol = compiled()(bad, b)
    A = jsf.from_scipy(S, "csr")
    for k in range(BATCH):
        alone = direct(A.with_data(bad[k]), b[k])
        assert Status(int(sol.code[k])) == alone.status
        if alone.success:
            np.testing.assert_allclose(sol.x[k], alone.x, rtol=1e-9, atol=1e-12 * np.abs(alone.x).max())
    assert [Status(int(c)) for c in sol.code[1:3]] == [Status.SINGULAR, Status.NON_FINITE]
    untouched = [0, *range(7, BATCH)]
    np.testing.assert_array_equal(np.asarray(sol.x)[untouched], np.asarray(good.x)[untouched])
    assert not np.any(sol.x[5])


@pytest.mark.parametrize("hole", [False, True])
def test_a_matrix_that_needs_pivots_is_solved(hole, rng):
    A = jsf.from_scipy(some_matrix(hole=hole), "csr")
    data = rng.standard_normal((BATCH, A.nnz))  # without a strong diagonal
    b = rng.standard_normal((BATCH, N))
    sol = quick_jit(of_batch(A))(data, b)
    assert np.all(sol.success)
    dense = np.stack([A.with_data(d).to_scipy().toarray() for d in data])
    np.testing.assert_allclose(np.einsum("bij,bj->bi", dense, sol.x), b, rtol=0, atol=1e-7)


def test_a_larger_matrix_that_needs_pivots_is_solved_by_the_host(rng):
    n = 2 * (batched.DENSE // 2 + 1)
    A = jsf.from_scipy(scipy.sparse.diags_array([1.0, 1e-30, 1.0], offsets=[-1, 0, 1], shape=(n, n)), "csr")
    data = A.data * np.linspace(1, 2, 3)[:, None]
    b = rng.standard_normal((3, n))
    sol = quick_jit(of_batch(A))(data, b)
    assert np.all(sol.success)
    for x, d, rhs in zip(sol.x, data, b, strict=True):
        np.testing.assert_allclose(A.with_data(d) @ x, rhs, rtol=0, atol=1e-8)


def test_derivatives_are_those_of_dense_solves_to_second_order(rng):
    data, b = systems(rng)
    data, b = data[:2], b[:2]
    A = jsf.from_scipy(S, "csr")

    def ours(data, b):
        return jnp.sum(jnp.sin(of_batch(A)(data, b).x))

    def dense(data, b):
        D = jnp.zeros((2, N, N)).at[:, ROW, COL].set(data)
        return jnp.sum(jnp.sin(jnp.linalg.solve(D, b[..., None])))

    def both_orders(f):
        direction = (jnp.cos(jnp.arange(data.size)).reshape(data.shape), jnp.ones_like(b))
        gradient = jax.grad(f, argnums=(0, 1))
        return quick_jit(lambda *p: (gradient(*p), jax.jvp(gradient, p, direction)[1]))(data, b)

    for got, wanted in zip(jax.tree.leaves(both_orders(ours)), jax.tree.leaves(both_orders(dense)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-10)


def test_derivatives_of_a_failed_member_are_nan_and_no_others(rng):
    data, b = systems(rng)
    data[1] = np.where(ROW == 5, 0, data[1])
    solve = of_batch(jsf.from_scipy(S, "csr"))
    by_data = quick_jit(jax.grad(lambda data: jnp.sum(jnp.sin(solve(data, b).x) * (1 + jnp.arange(N)))))(data)
    failed = np.any(np.isnan(by_data), axis=1)
    assert failed[1] and not failed[0] and not np.any(failed[2:])


def test_no_program_calls_the_host_and_an_exported_one_solves(rng):
    data, b = systems(rng)
    A = jsf.from_scipy(S, "csr")
    with jsf.use_backend("xla"):
        exported = jax.export.export(jax.jit(lambda data, b: of_batch(A)(data, b).x))(data, b)
    assert "callback" not in exported.mlir_module()
    x = jax.export.deserialize(exported.serialize()).call(data, b)
    np.testing.assert_allclose(x, np.linalg.solve(dense_of(data), b[..., None])[..., 0], rtol=1e-10, atol=1e-12)


def test_batches_inside_batches_scans_and_a_jitted_solve(rng):
    data, b = systems(rng)
    A = jsf.from_scipy(S, "csr")
    wanted = np.linalg.solve(dense_of(data), b[..., None])[..., 0]

    def newton(d, b):  # vmapped from outside, so that `direct` does not see the batch
        step = lambda x, _: (x + direct(A.with_data(d), b - A.with_data(d) @ x).x, None)  # noqa: E731
        return jax.lax.scan(step, jnp.zeros_like(b), None, 2)[0]

    np.testing.assert_allclose(quick_jit(jax.vmap(newton))(data, b), wanted, rtol=1e-10, atol=1e-12)
    twice = quick_jit(jax.vmap(jax.vmap(newton), (0, None)))(np.stack([data, 2 * data]), b)
    np.testing.assert_allclose(twice, [wanted, wanted / 2], rtol=1e-10, atol=1e-12)
    none = jax.eval_shape(jax.vmap(jax.vmap(newton, (0, None)), (None, 0)), data[:0], b[:2])
    assert none.shape == (2, 0, N)


def test_asks_a_batch_of_batches_the_host_for_those_that_need_it_alone(monkeypatch):
    """Of 2 × 3 systems, of which one meets a pivot of 0."""
    n, asked = 2 * (batched.DENSE // 2 + 1), []
    by_host = host_calls.refined
    monkeypatch.setattr(host_calls, "refined", lambda *given: asked.append(1) or by_host(*given))
    A = jsf.from_scipy(scipy.sparse.diags_array([1.0, 4.0, 2.0], offsets=[-1, 0, 1], shape=(n, n)), "csr")
    data = np.asarray(A.data) * np.linspace(1, 2, 3)[:, None]
    scales = np.array([1.0, 2.0])
    weak = np.where(np.asarray(A.row_ids) == np.asarray(A.col_ids), 0, data[1])
    data[1] = weak
    one = lambda scale, d: direct(A.with_data(scale * d), jnp.ones(n))  # noqa: E731
    sol = quick_jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(scales, data)
    assert sol.x.shape == (2, 3, n) and len(asked) == 2
    np.testing.assert_array_equal(sol.success, [[True, False, True]] * 2)
    good = A.with_data(2 * data[2])
    np.testing.assert_allclose(good @ sol.x[1, 2], np.ones(n), rtol=0, atol=1e-10)


@pytest.mark.parametrize("by", [deep("solve"), "factorized", deep("columns")])
def test_other_doors_lead_there_too(by, rng):
    data, b = systems(rng)
    A = jsf.from_scipy(S, "csr")
    if by == "columns":
        b = np.stack([b, -b], axis=-1)
    one = {
        "solve": lambda A, b: solve(A, b).x,
        "factorized": lambda A, b: factorized(A).solve(b).x,
        "columns": lambda A, b: direct(A, b).x,
    }[by]
    program = jax.jit(jax.vmap(lambda d, b: one(A.with_data(d), b)))
    assert "callback" not in program.lower(data, b).as_text()
    x = program(data, b)
    np.testing.assert_allclose(np.einsum("bij,bj...->bi...", dense_of(data), x), b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("explicit", [False, deep(True)])
def test_every_device_solves_its_own_systems(explicit, rng):
    data, b = systems(rng)
    data, b = data[:8], b[:8]
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(kind,))
    spec = jax.P("batch")
    A = jsf.from_scipy(S, "csr")
    f = lambda data, b: of_batch(A)(data, b).x  # noqa: E731
    given = jax.device_put((data, b), jax.NamedSharding(mesh, spec))
    program = quick_jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))
    assert "all-gather" not in (program.lower(*given).compile().as_text() or "")
    np.testing.assert_allclose(program(*given), np.linalg.solve(dense_of(data), b[..., None])[..., 0], rtol=1e-10)


def test_a_pattern_with_too_many_updates_is_left_to_the_host(monkeypatch):
    monkeypatch.setattr(patterns, "UPDATES", 10)
    monkeypatch.setattr(batched, "DENSE", 10)
    pattern = patterns.Pattern(N, ROW.astype(np.int32), COL.astype(np.int32))
    assert pattern.plan is None and not batched.serves(pattern)
    assert patterns.known(jsf.from_scipy(S, "csr")) == pattern


def test_what_does_not_fit_into_the_memory_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(batched.memory, "free", lambda *_: 10**9)
    A = jsf.from_scipy(scipy.sparse.diags_array([1.0, 4.0, 1.0], offsets=[-1, 0, 1], shape=(1000, 1000)))
    shapes = [jax.ShapeDtypeStruct((10**6, k), np.float64) for k in (A.nnz, 1000)]
    with pytest.raises(ValueError, match=r"the factors of 1000000 systems take .*; solve fewer at a time"):
        jax.eval_shape(of_batch(A), *shapes)


def test_tridiagonal_and_dense_ways_of_accelerators_solve_too(rng, monkeypatch):
    """On which `device_of` says that it is no CPU; here XLA runs them."""
    data, b = systems(rng)
    T = scipy.sparse.diags_array([1.0, 4.0, 2.0], offsets=[-1, 0, 1], shape=(N, N))
    A = jsf.from_scipy(T)
    solve = of_batch(jsf.from_scipy(S, "csr"))
    monkeypatch.setattr(batched, "device_of", lambda *_: type("Device", (), {"platform": "gpu"}))
    x = quick_jit(solve)(data, b).x
    np.testing.assert_allclose(x, np.linalg.solve(dense_of(data), b[..., None])[..., 0], rtol=1e-10, atol=1e-12)
    values = A.data * FACTORS
    f = lambda v, b: direct(A.with_data(v), b).x  # noqa: E731
    x, back = jax.vjp(jax.vmap(f), values, b)
    dense = FACTORS[..., None] * T.toarray()
    np.testing.assert_allclose(x, np.linalg.solve(dense, b[..., None])[..., 0], rtol=1e-10, atol=1e-12)
    by_b = np.linalg.solve(dense.swapaxes(1, 2), np.ones_like(b)[..., None])[..., 0]
    np.testing.assert_allclose(back(jnp.ones_like(x))[1], by_b, rtol=1e-10, atol=1e-12)


def test_only_systems_that_a_quick_elimination_does_not_serve_get_one_with_interchanges(rng, monkeypatch):
    b = systems(rng)[1][:-1]  # of this size no program is kept
    A = jsf.from_scipy(scipy.sparse.diags_array([1.0, 4.0, 2.0], offsets=[-1, 0, 1], shape=(N, N)))
    factors, made = np.ones((len(b), 1, 1)), batched._tridiagonal
    factors[1], factors[2] = 1.001, np.nan

    def rough(*args):
        quick, careful = made(*args)
        return lambda r: factors[: len(r)] * quick(r), careful

    monkeypatch.setattr(batched, "device_of", lambda *_: type("Device", (), {"platform": "gpu"}))
    monkeypatch.setattr(batched, "_tridiagonal", rough)
    values = jnp.broadcast_to(A.data, (len(b), A.nnz))
    sol = quick_jit(jax.vmap(lambda v, b: direct(A.with_data(v), b)))(values, b)
    assert np.all(sol.status == 0)
    assert list(sol.iterations[:3]) == [1, 4, 2]  # the second gains a factor of 1,000 at each step
    np.testing.assert_allclose(sol.x, np.linalg.solve(A.todense(), np.asarray(b).T).T, rtol=1e-10, atol=1e-12)
