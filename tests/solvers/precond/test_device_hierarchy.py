"""Multigrid's set-up on an accelerator, whose programs run on any device: its levels serve as well as the host's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxsparse_fmt as jsf
from solvers.precond import _checks as checks
from solvers.precond import _cycles, _device_hierarchy, _device_programs, _device_shards, _hierarchy, _sharded
from solvers.precond.multigrid import multigrid
from tests.marks import few
from tests.solvers.precond.operators import random_vector, scipy_iterations, trilinear


@pytest.fixture
def there(monkeypatch):
    """Whatever is not tiny is set up by the programs for an accelerator; none is compiled ahead."""
    monkeypatch.setattr(_device_hierarchy, "MANY", 100)
    monkeypatch.setattr(_device_hierarchy, "FEW", 1000)
    monkeypatch.setattr(_device_hierarchy, "on_accelerator", lambda a: True)
    monkeypatch.setattr(_device_hierarchy, "_compiled", lambda *_: [])
    monkeypatch.setattr(_sharded, "on_cpu", lambda A: False)
    monkeypatch.setattr(_device_shards.Setup, "ahead", lambda _: [])


def one_by_one(strong: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The aggregates of a graph [n, n] by their definition."""
    n = len(strong)
    order = np.argsort(~np.asarray(_device_programs._priorities(jnp.arange(n, dtype=jnp.uint32))))
    agg, taken = np.full(n, -1), np.zeros(n, int)
    for now, least in ((1, 1), (2, _device_programs.SECOND)):
        for i in order:
            free = np.flatnonzero(strong[i] & (taken == 0))
            if taken[i] == 0 and free.size >= least and not np.any(taken[strong[i]] == now):
                at = [i, *free]
                agg[at], taken[at] = i, now
    agg = np.where(taken > 0, np.searchsorted(np.unique(agg[taken > 0]), agg), -1)
    for i in np.flatnonzero((taken == 0) & np.any(strong & (taken > 0), axis=1)):
        agg[i] = agg[np.argmax(np.where(strong[i] & (taken > 0), size[i], -1))]
    return agg


@pytest.mark.parametrize("name", ["grid", "one-sided"])
def test_the_aggregates_are_those_that_a_pass_by_priority_finds(name):
    sided = sp.random_array((400, 400), density=0.004, rng=2) + sp.eye_array(400)
    S = sp.csr_array(sided if name == "one-sided" else jsf.gallery.poisson(20, dim=2))
    S.sort_indices()
    row, n = np.repeat(np.arange(400, dtype=np.int32), np.diff(S.indptr)), 400
    others, size = row != S.indices, np.abs(S.data)
    found, count = jax.jit(_device_programs.aggregates, static_argnums=4)(row, S.indices, others, size, n)
    dense = np.abs(S.toarray())
    expected = one_by_one((dense > 0) & ~np.eye(n, dtype=bool), dense)
    np.testing.assert_array_equal(found, expected)
    assert count == expected.max() + 1 and np.all(expected[row[others]] >= 0)


def jumps() -> sp.csr_array:
    """Diffusion with coefficients from 1 to 100, and rows of their own: weak couplings, and points in no aggregate."""
    d = sp.diags_array(np.where(np.random.default_rng(0).random(30**2) < 0.3, 10.0, 1.0))
    W = d @ (jsf.gallery.poisson(30, dim=2) - 4 * sp.eye_array(30**2)) @ d
    S = W + sp.diags_array(1.0 - W @ np.ones(30**2))
    return sp.csr_array(sp.block_diag([S, sp.diags_array(np.arange(1.0, 50))]))


@pytest.mark.parametrize("name", ["poisson", "elements", "jumps", "near-null", "rooms of its own", "smaller rooms"])
def test_levels_serve_as_well_as_the_hosts(name, request, monkeypatch):
    if name == "rooms of its own":
        monkeypatch.setattr(_device_hierarchy, "SHARED", 2**14)
    if name == "smaller rooms":
        for size, value in (("LARGE", 2**14), ("LEAST", 5)):
            monkeypatch.setattr(_device_hierarchy, size, value)
    S = {"jumps": jumps, "elements": lambda: trilinear(12)}.get(name, lambda: jsf.gallery.poisson(12))()
    near = 1 + np.random.default_rng(0).random(S.shape[0]) if name == "near-null" else None
    A, b = jsf.from_scipy(S, "csr"), random_vector(S.shape[0])
    host = multigrid(A, near, max_coarse=30)
    request.getfixturevalue("there")
    if name == "smaller rooms":
        monkeypatch.setattr(_device_hierarchy, "FEW", 100)
    M, again = (multigrid(A, near, max_coarse=30) for _ in range(2))
    assert M.levels[0].A is A and len(M.levels) >= 2
    R, A1, P = (np.asarray(m.todense()) for m in (M.levels[0].R, M.levels[1].A, M.levels[0].P))
    np.testing.assert_allclose(A1, P.T @ (S @ P), atol=1e-12 * abs(A1).max())
    np.testing.assert_array_equal(R, P.T)
    assert abs(scipy_iterations(S, b, M, 1e-8) - scipy_iterations(S, b, host, 1e-8)) <= 1
    jax.tree.map(np.testing.assert_array_equal, M, again)


def scaled(S: sp.csr_array) -> sp.csr_array:
    """Other values, as symmetric and definite as those of S."""
    d = sp.diags_array(1 + 0.5 * np.random.default_rng(1).random(S.shape[0]))
    return sp.csr_array(d @ S @ d)


OTHERS = {
    "poisson": (lambda: jsf.gallery.poisson(12), {}),
    "jumps": (jumps, {}),
    "elasticity": (lambda: jsf.gallery.elasticity(6), {"format": "bsr", "block_shape": (3, 3)}),
    "float32": (lambda: jsf.gallery.poisson(12), {"format": "ell", "dtype": "float32"}),
    "smaller rooms": (lambda: jsf.gallery.poisson(12), {}),
}


@pytest.mark.parametrize("name", few(OTHERS, 2))
def test_other_values_on_the_same_levels_are_those_of_the_host(name, request, monkeypatch):
    """Three times, one after the other; the last matrix has twice as long rows, of which no level has room."""
    if name == "smaller rooms":
        for size, value in (("LARGE", 2**14), ("LEAST", 5)):
            monkeypatch.setattr(_device_hierarchy, size, value)
    make, kind = OTHERS[name]
    S = sp.csr_array(make())
    matrices = [jsf.from_scipy(T, **{"format": "csr"} | kind) for T in (S, scaled(S), sp.csr_array(S @ S))]
    M = multigrid(matrices[0], max_coarse=30)
    wanted = [M.refreshed(A) for A in matrices]
    request.getfixturevalue("there")
    monkeypatch.setattr(_device_hierarchy, "FEW", 300)
    monkeypatch.setattr(checks, "host", None)  # the host has no finest level
    for A, want in zip(matrices, wanted, strict=True):
        M = M.refreshed(A)
        assert M.levels[0].A is A and M.symmetric and len(M.levels) == len(want.levels) >= 2
        for level, other in zip(M.levels, want.levels, strict=True):
            assert level.R is other.R and level.P is other.P
            for a, b in ((level.A.todense(), other.A.todense()), (level.inverse_diagonal, other.inverse_diagonal)):
                np.testing.assert_allclose(a, b, rtol=0, atol=8 * jnp.finfo(A.dtype).eps * np.abs(b).max())
            np.testing.assert_allclose(level.recurrence, other.recurrence, rtol=0.1)  # other noise starts Lanczos
        inverse = np.asarray(want.coarse_inverse)
        np.testing.assert_allclose(M.coarse_inverse, inverse, rtol=0, atol=1e-6 * np.abs(inverse).max())


def test_the_same_values_give_the_same_levels_by_the_programs_of_the_set_up(there, compiled):
    """And one for each level, which pads P."""
    A = jsf.from_scipy(jsf.gallery.poisson(12), "csr")
    B, M = A.with_data(2 * A.data), multigrid(A, max_coarse=30)
    before = compiled()
    refreshed = M.refreshed(A)
    assert compiled() - before == len(M.levels) == 2
    jax.tree.map(np.testing.assert_array_equal, refreshed, M)
    before = compiled()
    refreshed.refreshed(B)
    assert compiled() == before
    b = random_vector(12**3)
    here, far = (jax.device_put(A, device) for device in jax.devices("cpu")[:2])
    for applied in (jax.jit(lambda b: M.refreshed(A) @ b), multigrid(here, max_coarse=30).refreshed(far).__matmul__):
        np.testing.assert_allclose(applied(b), M @ b, rtol=1e-12, atol=1e-12)
    both = jax.device_put(A, NamedSharding(jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2]), P()))
    np.testing.assert_allclose(jax.device_put(M, here.values.device).refreshed(both) @ b, M @ b, rtol=1e-12, atol=1e-12)


def test_what_a_function_closes_over_is_set_up_inside_jit(there):
    A, b = jsf.from_scipy(jsf.gallery.poisson(12), "csr"), jnp.asarray(random_vector(12**3))
    made = jax.jit(lambda b: multigrid(A, max_coarse=30) @ b)(b)
    np.testing.assert_allclose(made, multigrid(A, max_coarse=30) @ b, rtol=1e-12, atol=1e-12)


def test_programs_serve_similar_matrices(there, compiled):
    """All but the first, which reads A in its own format and sizes, and those that cut off padding."""
    made = []
    for n in (38, 39):
        before = compiled()
        multigrid(jsf.from_scipy(jsf.gallery.poisson(n, dim=2), "csr"), max_coarse=50)
        made.append(compiled() - before)
    assert made[1] <= made[0] // 2


def test_programs_are_those_that_were_compiled_ahead(monkeypatch, compiled, request):
    ahead = _device_hierarchy._compiled
    ahead.cache_clear()
    request.getfixturevalue("there")
    A = jsf.from_scipy(jsf.gallery.poisson(13), "csr")
    multigrid(A, max_coarse=50)
    monkeypatch.setattr(_device_hierarchy, "_compiled", ahead)
    before = compiled()
    multigrid(A, max_coarse=50)
    assert compiled() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda v: v.at[100].set(np.nan), "NaN or an infinity"), (lambda v: v.at[0].set(0), "diagonal, first in row 0")],
)
def test_the_host_refuses_what_the_accelerator_found(change, message, there):
    A = jsf.from_scipy(jsf.gallery.poisson(8), "csr")
    with pytest.raises(ValueError, match=message):
        multigrid(A.with_data(change(A.data)), max_coarse=50)
    with pytest.raises(ValueError, match=message):
        multigrid(A, max_coarse=50).refreshed(A.with_data(change(A.data)))


@pytest.mark.parametrize("name", ["flow", "blocks"])
def test_the_host_makes_what_the_accelerator_cannot(name, there):
    S = (
        jsf.gallery.convection_diffusion(6, diffusion=0.1)
        if name == "flow"
        else sp.csr_array(sp.kron(jsf.gallery.poisson(6), np.array([[2.0, 1], [1, 2]])))
    )
    M = multigrid(jsf.from_scipy(S), max_coarse=50)
    assert M.symmetric == (name == "blocks") and (name == "flow" or M.sizes[1][0] % 2 == 0)


@pytest.mark.parametrize("name", few(["7 points", "jumps", "near-null", "empty shard"], 2))
@pytest.mark.parametrize("parts", few([8, 2], 1))
def test_levels_of_shards_serve_as_well_as_the_hosts(name, parts, request, monkeypatch):
    """All devices at once: R = Pᵀ, the next matrix is R·A·P, and T of P = (I − ω/λ·D⁻¹·A)·T is block diagonal."""
    request.getfixturevalue("there")
    monkeypatch.setattr(_sharded, "WHOLE", 100)
    S = jumps() if name == "jumps" else sp.csr_array(jsf.gallery.poisson(12))
    n, mesh = S.shape[0], jax.make_mesh((parts,), ("rows",), devices=jax.devices("cpu")[:parts])
    near = 1 + np.random.default_rng(0).random(n) if name == "near-null" else None
    starts = np.arange(parts + 1) * n // parts
    starts[1] = 0 if name == "empty shard" else starts[1]
    A = jsf.shard_from_rows(lambda start, stop: S[start:stop], n, mesh, format="csr", starts=starts)
    M, b = multigrid(A, near, max_coarse=30), random_vector(n)
    level, below = M.levels[:2]
    assert isinstance(level.P, _sharded.Crossing) and isinstance(below.A, _sharded.Crossing) and len(M.levels) >= 2
    R, P, C = (np.asarray(m @ jnp.eye(m.shape[1])) for m in (level.R, level.P, below.A))
    fine, coarse = (np.asarray(of.over.emptied(jnp.ones(of.over.places))) > 0 for of in (level.R, below.A))
    R, P, C = R[coarse][:, fine], P[fine][:, coarse], C[coarse][:, coarse]
    np.testing.assert_array_equal(R, P.T)
    np.testing.assert_allclose(C, P.T @ (S @ P), atol=1e-12 * abs(C).max())
    if near is None and name != "jumps":
        upper = 1 / (np.asarray(level.recurrence)[0, 1] * (1 + _cycles.FRACTION) / 2)
        T = np.linalg.solve(np.eye(n) - _hierarchy.DAMPING / upper * (S / 6).toarray(), P)
        owner, mine = (np.repeat(np.arange(parts), of.over.counts) for of in (level.R, below.A))
        assert np.abs(T[owner[:, None] != mine]).max(initial=0) <= 1e-10
        np.testing.assert_allclose(T.T @ T, np.eye(len(mine)), atol=1e-10)
    of_hosts = M.refreshed(A) @ b  # whose noise gives other bounds of the spectrum
    np.testing.assert_allclose(of_hosts, M @ b, rtol=0, atol=0.01 * np.abs(M @ b).max())
    steps = scipy_iterations(S, b, multigrid(jsf.from_scipy(S, "csr"), near, max_coarse=30), 1e-8)
    assert scipy_iterations(S, b, M, 1e-8) <= 1.3 * steps + 2
