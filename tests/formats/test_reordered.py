"""A matrix stored in another order of its unknowns: its user sees only the time. Dense arithmetic answers."""

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.choose import ranking, tune
from jaxsparse_fmt.formats.reordered import Reordered, cuthill_mckee, order_of, permuted
from solvers import cg, precond
from tests.lowering import SIGNATURES, lowered, quick_jit
from tests.oracle import assert_gradient_through_a_solve, assert_product, draw, wide
from tests.solvers.test_basis_in_cg import moves, plainly
from tests.zoo import CASES, FIRST_LAYOUTS, SORTED, Case, Layout

pytestmark = pytest.mark.some(layout=2)
every_format = pytest.mark.parametrize("layout", FIRST_LAYOUTS, ids=str)


def two_parts() -> Case:
    """Two graphs and two unknowns that are alone, one without an entry; rows of 0 to 9, the pattern not symmetric."""
    rng = np.random.default_rng(5)
    name = rng.permutation(22)
    lengths = [3, 0, 7, 1, 1, 9, 2, 5, 4, 2, 2]
    row = np.repeat(np.arange(11), lengths)
    col = np.concatenate([rng.choice(11, k, replace=False) for k in lengths])
    row, col = np.r_[row, 11 + row // 2, 20], np.r_[col, 11 + col % 9, 20]
    _, first = np.unique(row * 22 + col, return_index=True)
    row, col = name[row[first]], name[col[first]]
    return Case("two_parts", (22, 22), row, col, rng.integers(1, 33, row.size) * np.where(row > col, -1, 1) / 8)


GRAPH = two_parts()
FEW = [layout for layout in FIRST_LAYOUTS if layout.format in ("sdia", "pjds")]
PERM = np.random.default_rng(6).permutation(22)


def reordered(layout: Layout, S: Any, reorder: Any = "rcm", **options: Any) -> Reordered:
    A = layout.of(S, reorder=reorder, **options)
    assert isinstance(A, Reordered)
    return A


def shuffled(S, seed=0) -> tuple[sp.csr_array, np.ndarray]:
    perm = np.random.default_rng(seed).permutation(S.shape[0])
    return permuted(sp.csr_array(S), perm)[0], perm


def bandwidth(S) -> int:
    row, col = S.tocoo().coords
    return int(np.abs(row - col).max(initial=0))


# ---------------------------------------------------------------------------------------------- the user's own order


@quick_jit
def views(A, X, data):
    row, col, entry = A.unshared.coordinates()
    placed = A.unshared.values, row, col, entry
    return A @ X, A.T @ X, A.data, A.diagonal(), A.with_data(data).todense(), placed


def assert_views(A, case, rng) -> None:
    dense, (row, col), X = case.dense(), case.places(), rng.standard_normal((case.shape[0], 3))
    data = rng.standard_normal(A.nnz)
    product, transposed, own, diagonal, again, (values, *places) = views(A, X, data)
    assert_product(product, dense, X, np.float64)
    assert_product(transposed, dense.T, X, np.float64)
    np.testing.assert_array_equal(own, dense[row, col])
    np.testing.assert_array_equal(diagonal, np.diagonal(dense))
    np.testing.assert_array_equal(np.asarray(again)[row, col], data)
    at_row, at_col, entry = (np.asarray(a) for a in places)
    live = entry < A.nnz
    assert np.all(entry[~live] == A.nnz) and np.all(at_col[~live] == A.shape[1])
    np.testing.assert_array_equal(np.sort(entry[live]), np.arange(A.nnz))
    np.testing.assert_array_equal((at_row[live], at_col[live]), (row[entry[live]], col[entry[live]]))
    np.testing.assert_array_equal(np.asarray(values)[live], dense[at_row[live], at_col[live]])


@every_format
def test_everything_is_in_the_users_order(layout, rng):
    A = reordered(layout, GRAPH.scipy())
    assert_views(A, GRAPH, rng)
    np.testing.assert_array_equal(A.to_scipy().toarray(), GRAPH.dense())


@pytest.mark.parametrize("layout", FEW, ids=str)
def test_an_order_of_the_users_changes_as_little(layout, rng):
    A, S, X = reordered(layout, GRAPH.scipy(), PERM), sp.csr_array(GRAPH.scipy()), rng.standard_normal((22, 2))
    assert_views(A, GRAPH, rng)
    assert_product(A.basis.leave(A.in_basis @ A.basis.enter(X)), GRAPH.dense(), X)
    np.testing.assert_array_equal(A.todense(), GRAPH.dense())
    B, data = A.to_scipy(), rng.standard_normal(A.nnz)
    for ours, its in zip(
        (*A.csr_arrays(), B.data, B.indices, B.indptr), 2 * (S.data, S.indices, S.indptr), strict=True
    ):
        np.testing.assert_array_equal(ours, its)
    again = A.with_data(data)
    assert isinstance(again, Reordered) and jax.tree.structure(again) == jax.tree.structure(A)
    np.testing.assert_array_equal(again.data, data)


def test_it_is_a_matrix_like_any_other(rng):
    S, dense, y = GRAPH.scipy(np.complex128), GRAPH.dense(np.complex128), draw(rng, np.complex128, 22)
    A = reordered(SORTED, S)
    assert_product(A.H @ y, dense.conj().T, y)
    assert_product(A.rmatvec(y), dense.conj().T, y)
    assert_product(y @ A, dense.T, y)
    assert_product(jsf.spmv(A, y, y, 2.0, 3.0) - 3 * y, 2 * dense, y)
    product, dot = A.matvec_dot(y, y)
    assert_product(product, dense, y)
    np.testing.assert_allclose(jnp.asarray(dot), np.real(np.vdot(y, dense @ y)))
    assert A.T.T is A and A.layout == SORTED.of(S).layout and A.T.shape == A.shape == (22, 22)
    for B, b in ((A * 2.0, 2 * dense), (-A, -dense), (A / 2, dense / 2), (A.astype(np.complex64), dense)):
        assert isinstance(B, Reordered)
        assert_product(B @ y, b, y)


def test_its_bytes_are_those_of_its_storage_and_of_the_order():
    S, perm = sp.csr_array(GRAPH.scipy()), cuthill_mckee(sp.csr_array(GRAPH.scipy()))
    for layout in (Layout("csr"), Layout("dia"), SORTED):
        A, plain = reordered(layout, S), layout.of(permuted(S, perm)[0])
        sorted_order = getattr(plain, "perm", None)
        own = plain.nbytes - (0 if sorted_order is None else sorted_order.nbytes)  # part of this one
        assert A.nbytes == own + 4 * 22 + A.nnz
        assert A.nbytes_read == A.in_basis.nbytes_read + 4 * 22


@pytest.mark.parametrize(("longest", "kind"), [(256, np.uint8), (257, np.uint16), (65_537, np.uint32)])
def test_a_rank_is_as_wide_as_the_longest_row_asks(longest, kind):
    row, col = np.zeros(longest, int), np.arange(longest)
    S = sp.csr_array((np.arange(1.0, longest + 1), (row, col)), shape=(longest, longest))
    A = reordered(Layout("csr"), S, np.arange(longest)[::-1])
    assert A.rank.dtype == kind
    np.testing.assert_array_equal(A.data, S.data)


@pytest.mark.parametrize("layout", [Layout("csr"), Layout("sdia"), SORTED], ids=str)
def test_repr_is_one_short_line_that_says_so(layout):
    for A in (reordered(layout, GRAPH.scipy()), reordered(layout, GRAPH.scipy(), transpose=True)):
        own = f"<{layout.format} 22×22, nnz={A.nnz}, float64"
        assert repr(A).startswith(own) and repr(A).endswith(", reordered>") and len(repr(A)) < 140
        assert ("transpose in" in repr(A)) == (layout.format != "sdia" and hasattr(A.own, "across"))
        stack = jax.tree.map(lambda a: np.stack([a, a]), A)
        assert repr(stack).startswith(f"<(2,) {layout.format} 22×22 stacked, nnz={A.nnz}")
    assert "leaves" in repr(jax.tree.map(jax.typeof, A))


@pytest.mark.parametrize(
    ("layout", "n"), [(layout, (0, 1, 5)[k % 3]) for k, layout in enumerate(FIRST_LAYOUTS)], ids=str
)
def test_the_smallest_matrices_are_reordered_too(layout, n):
    """Of five unknowns none has an entry."""
    S = sp.csr_array(3.0 * sp.eye_array(n)) if n < 5 else sp.csr_array((5, 5))
    A = reordered(layout, S)
    np.testing.assert_array_equal(A.perm, np.arange(n))
    np.testing.assert_array_equal(A @ np.ones(n), S @ np.ones(n))
    np.testing.assert_array_equal(A.data, S.data)


@pytest.mark.parametrize("layout", FIRST_LAYOUTS[::9], ids=str)
def test_a_stored_zero_stays_an_entry_of_its_place(layout):
    case = CASES["explicit_zero"]
    A = reordered(layout, case.scipy(), [2, 0, 3, 1])
    row, col = case.places()
    assert A.nnz == len(row) == 4
    np.testing.assert_array_equal(A.data, case.dense()[row, col])


# --------------------------------------------------------------------------------------------------------- derivatives


def test_derivatives_and_batches_are_those_of_the_plain_matrix(rng):
    def questions(A, data, Y):
        def loss(data, Y):
            B = A.with_data(data)
            return jnp.sum(jnp.sin(B.T @ (B @ Y) / 64))

        gradient = jax.grad(loss, (0, 1))
        second = jax.jvp(gradient, (data, Y), (2 - data, Y[::-1]))[1]
        mapped = jax.vmap(lambda data, y: A.with_data(data) @ y)(jnp.stack([data, data**2]), Y.T)
        return gradient(data, Y), second, mapped, jax.vmap(lambda y: A @ y, 1)(Y)

    S, Y = GRAPH.scipy(), jnp.asarray(rng.standard_normal((22, 2)))
    questions = quick_jit(questions)
    got, want = (questions(A, A.data, Y) for A in (reordered(SORTED, S), Layout("csr").of(S)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), got, want)


@pytest.mark.parametrize(
    ("stored", "vector"),
    [(jnp.bfloat16, np.float32), (np.complex64, np.complex64)],
    ids=lambda d: np.dtype(d).name,
)
def test_values_of_every_width_multiply(stored, vector, rng):
    kind = np.complex64 if np.dtype(stored).kind == "c" else np.float32
    A, dense, x = reordered(Layout("ell"), GRAPH.scipy(kind), dtype=stored), GRAPH.dense(stored), draw(rng, vector, 22)
    assert A.dtype == stored
    assert_product(A @ x, dense, wide(x), jnp.promote_types(stored, vector))
    np.testing.assert_array_equal(A.asformat("csr").data, A.data)


@pytest.mark.parametrize("dialect", SIGNATURES)
def test_a_gpu_gets_the_kernel_of_the_storage(dialect):
    x = jnp.ones(22, jnp.float32)
    A = [reordered(Layout("ell"), GRAPH.scipy(np.float32), backend=b) for b in (dialect, "xla")]
    assert [SIGNATURES[dialect] in lowered(lambda A, x: A @ x, B, x) for B in A] == [True, False]


def test_a_nan_reaches_exactly_the_rows_that_read_it():
    reads = GRAPH.pattern().astype(int)
    X = np.where(np.arange(22)[:, None] % 4 == np.arange(4), np.nan, 1.0)
    got = quick_jit(lambda A, X: A @ X)(reordered(SORTED, GRAPH.scipy()), X)
    np.testing.assert_array_equal(np.isnan(got), reads @ np.isnan(X) > 0)


def test_another_matrix_of_the_same_layout_shape_does_not_recompile(rng):
    traces = 0

    @jax.jit
    def step(A, x):
        nonlocal traces
        traces += 1
        return A @ x

    base, x = CASES["even_rows"], rng.standard_normal(12)
    moved = sp.coo_array((base.data[::-1], (base.row, (base.col + 5) % 12)), shape=(12, 12))
    for S, order in ((base.scipy(), "rcm"), (moved, "rcm"), (2 * base.scipy(), rng.permutation(12))):
        assert_product(step(reordered(Layout("ell"), S, order), x), S.toarray(), x)
    assert traces == 1


# ------------------------------------------------------------------------------------------------------------ solvers

POISSON, NAMES = shuffled(jsf.gallery.poisson(6))
N = POISSON.shape[0]
B = jnp.asarray(np.random.default_rng(4).standard_normal(N))
SOLVED = [Layout("dia"), Layout("pjds", (("block_size", 8),))]


@pytest.mark.some(layout=1)
@pytest.mark.parametrize("layout", SOLVED, ids=str)
def test_the_loop_permutes_nothing(layout):
    A, plain = reordered(layout, POISSON), layout.of(permuted(POISSON, cuthill_mckee(POISSON))[0])
    permutes = moves_of(lambda A, b: cg(lambda v: A @ v, b).x, A)
    assert permutes["perm"] > 0
    assert moves_of(plainly, A) == moves_of(plainly, A.in_basis) == moves_of(plainly, plain)


def moves_of(solve, A) -> collections.Counter:
    return moves(lambda A, _: solve(A, B), A)


def test_the_basis_is_entered_once_and_left_once(monkeypatch):
    calls = collections.Counter()
    for way in ("enter", "leave"):
        move = getattr(jsf.Basis, way)
        monkeypatch.setattr(jsf.Basis, way, lambda self, x, way=way, move=move: calls.update([way]) or move(self, x))
    S = jsf.gallery.poisson((3, 5, 7))  # of a size that no other test has compiled
    sol = cg(reordered(Layout("pjds"), shuffled(S)[0]), jnp.ones(105))
    assert sol.success and sol.iterations > 2
    assert calls == {"enter": 1, "leave": 1}


@pytest.mark.parametrize("layout", SOLVED, ids=str)
def test_the_answer_is_that_of_scipy(layout):
    A, want = reordered(layout, POISSON), sp.linalg.spsolve(POISSON.tocsc(), B)
    sol = cg(A, B, rtol=1e-12)
    assert sol.success
    np.testing.assert_allclose(sol.x, want, rtol=1e-9, atol=1e-9)


@pytest.mark.deep
def test_a_start_and_a_preconditioner_are_in_the_users_order():
    d = sp.diags_array(10.0 ** np.random.default_rng(7).uniform(-1, 1, N))
    S = sp.csr_array(d @ POISSON @ d)
    A, plain = reordered(Layout("pjds"), S), jsf.from_scipy(S, "csr")
    assert cg(A, B, sp.linalg.spsolve(S.tocsc(), B), M=precond.jacobi(A), rtol=1e-6).iterations == 0
    iterations = [int(cg(C, B, M=precond.jacobi(C), rtol=1e-8).iterations) for C in (A, plain)]
    assert abs(iterations[0] - iterations[1]) <= 1


def test_a_polynomial_of_the_matrix_permutes_nothing_in_its_basis():
    A = reordered(Layout("pjds"), POISSON)
    M = precond.chebyshev(A, 2, (0.3, 9.0)).entered(A.basis)
    names = str(jax.make_jaxpr(lambda M, r: M @ r)(M, B))
    assert M.order.perm is None and "gather" not in names and "scatter" not in names


@pytest.mark.deep
def test_the_gradient_through_a_solve_is_that_of_the_dense_solution(rng):
    S, _ = shuffled(jsf.gallery.convection_diffusion(3))
    assert_gradient_through_a_solve(reordered(SORTED, S, transpose=True), S, rng)


# ------------------------------------------------------------------------------------------------------------- making


@pytest.mark.parametrize("layout", FIRST_LAYOUTS[1::4], ids=str)
def test_it_carries_its_transpose_where_asked_to(layout, rng):
    A, x = reordered(layout, GRAPH.scipy(), transpose=True), rng.standard_normal((22, 2))
    assert hasattr(A.own, "across") != jsf.FORMATS[layout.format].transposes
    product, transposed, data = quick_jit(lambda A, x: (A @ x, A.T @ x, A.data))(A, x)
    assert_product(product, GRAPH.dense(), x)
    assert_product(transposed, GRAPH.dense().T, x)
    np.testing.assert_array_equal(data, GRAPH.dense()[GRAPH.places()])


def test_auto_and_tune_see_the_reordered_matrix(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen, rank = [], ranking.rank
    monkeypatch.setattr(ranking, "rank", lambda S, *args, **kw: seen.append(bandwidth(S)) or rank(S, *args, **kw))
    monkeypatch.setattr(tune, "seconds_per_product", lambda A: 1.0)
    for name in ("auto", "tune"):
        A = reordered(Layout(name), POISSON)
        np.testing.assert_array_equal(A.todense(), POISSON.toarray())
    assert len(seen) == 2 and max(seen) < 60 < bandwidth(POISSON)


def test_a_grid_whose_numbers_were_lost_has_diagonals_again():
    """On a GPU "auto" then takes a format without column indices."""
    n = 3000
    S, _ = shuffled(
        sp.csr_array(sp.diags_array([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], offsets=[-1, 0, 1]))
    )
    first = lambda S: ranking.rank(S, platform="gpu")[0].format  # noqa: E731
    assert first(S) != "sdia" and first(permuted(S, order_of(S, "rcm"))[0]) == "sdia"


def test_every_door_takes_it():
    S, dense, y = GRAPH.scipy(), GRAPH.dense(), np.ones(22)
    for A in (
        jsf.from_coo(S.row, S.col, S.data, S.shape, "csr", reorder="rcm"),
        jsf.from_dense(dense, "ell", np.float32, reorder=PERM, backend="xla"),
        jsf.from_scipy(reordered(SORTED, S), "hll", reorder="rcm"),
    ):
        assert isinstance(A, Reordered)
        assert_product(A @ y, dense, y)


def test_what_is_made_of_it_is_an_ordinary_matrix():
    A = reordered(SORTED, GRAPH.scipy())
    mesh = jax.make_mesh((1,), ("rows",), devices=jax.devices("cpu")[:1])
    sharded = jsf.shard(A, mesh, format="csr")
    np.testing.assert_array_equal(sharded.to_scipy().toarray(), GRAPH.dense())
    inside_jit = jax.jit(lambda data: A.with_data(data).asformat("hll"))(A.data)
    for B in (A.asformat("csr"), A.asformat("auto"), jsf.from_scipy(A, "csr"), inside_jit):
        assert B.name in jsf.FORMATS
        np.testing.assert_array_equal(B.todense(), GRAPH.dense())


def test_it_is_made_inside_jit_as_outside():
    for layout in (Layout("auto"), SORTED):
        S, made = GRAPH.scipy(), []
        jax.jit(lambda layout=layout, S=S, made=made: made.append(reordered(layout, S)))()
        want = reordered(layout, S)
        assert jax.tree.structure(made[0]) == jax.tree.structure(want)
        jax.tree.map(np.testing.assert_array_equal, made[0], want)
