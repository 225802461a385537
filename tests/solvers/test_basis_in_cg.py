"""Conjugate gradients on formats with sorted rows: the basis is entered once, and the loop permutes nothing."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.extend.core import Literal

import jaxsparse_fmt as jsf
from solvers import cg, precond
from tests.marks import few
from tests.solvers.test_cg import spd
from tests.solvers.test_cg_transformed import dense_solution

S = spd(seed=3)
N = S.shape[0]
B = jnp.asarray(np.random.default_rng(4).standard_normal(N))
SORTED = {
    "hll": {"slice_size": 8, "sigma": 64},
    "jds": {},
    "pjds": {"block_size": 8},
    "pellr": {},
    "biell": {},
    "bijad": {},
}
every_sorted = pytest.mark.parametrize("format", few(SORTED, 1))


def sorted_matrix(format: str, matrix: sp.csr_array = S) -> jsf.SparseMatrix:
    A = jsf.from_scipy(matrix, format, **SORTED[format])
    assert A.basis.perm is not None and not np.array_equal(A.basis.perm, np.arange(matrix.shape[0]))
    return A


def subjaxprs(eqn):
    """The programs inside an operation, each with the operands that it gets; products are taken to pieces."""
    if eqn.primitive.name == "sparse_product":
        pattern = functools.partial(jax.tree.unflatten, eqn.params["tree"])
        pieces = jax.make_jaxpr(lambda v, x, *leaves: pattern(leaves).product_face(v, x, "xla"))
        yield pieces(*(v.aval for v in eqn.invars)).jaxpr, eqn.invars
        return
    if eqn.primitive.name == "linear_solve":
        yield eqn.params["program"].jaxpr, eqn.invars
        return
    for value in eqn.params.values():
        for part in value if isinstance(value, (tuple, list)) else [value]:
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part, eqn.invars[len(eqn.invars) - len(part.invars) :]


def in_loops(jaxpr, watched=frozenset(), inside=False):
    """Every operation inside a while loop, and whether one of the `watched` variables is an operand of it."""
    for eqn in jaxpr.eqns:
        if inside:
            yield eqn, any(v in watched for v in eqn.invars if not isinstance(v, Literal))
        for part, given in subjaxprs(eqn):
            pairs = zip(part.invars, given, strict=True)
            handed_on = frozenset(own for own, v in pairs if not isinstance(v, Literal) and v in watched)
            yield from in_loops(part, handed_on, inside or eqn.primitive.name == "while")


def moves(A) -> collections.Counter:
    """Gathers and scatters inside the loops of `cg(A, B)`, and under "perm" the operations there that read perm."""
    closed = jax.make_jaxpr(lambda A, b: cg(A, b).x)(A, B)
    leaves = jax.tree.leaves(A)
    perm = {v for v, leaf in zip(closed.jaxpr.invars, leaves, strict=False) if leaf is getattr(A, "perm", None)}
    found = list(in_loops(closed.jaxpr, frozenset(perm)))
    assert any(eqn.primitive.name == "sparse_product" for eqn, _ in found)
    counts = collections.Counter(eqn.primitive.name for eqn, _ in found)
    named = {name: n for name, n in counts.items() if name.startswith(("gather", "scatter"))}
    return collections.Counter(named, perm=sum(reads for _, reads in found))


@every_sorted
def test_the_loop_permutes_nothing(format):
    A = sorted_matrix(format)
    counts = moves(A)
    assert counts["perm"] == 0
    assert counts == moves(A.in_basis)  # the same arrays, without an order of their own


def test_the_basis_is_entered_once_and_left_once(monkeypatch):
    calls = collections.Counter()
    for way in ("enter", "leave"):
        move = getattr(jsf.Basis, way)
        monkeypatch.setattr(jsf.Basis, way, lambda self, x, way=way, move=move: calls.update([way]) or move(self, x))
    matrix = spd(seed=5, n=47)  # of a size that no other test has compiled
    sol = cg(sorted_matrix("pjds", matrix), jnp.ones(47))
    assert sol.success and sol.iterations > 2
    assert calls == {"enter": 1, "leave": 1}


@every_sorted
def test_the_answer_is_that_of_unsorted_rows(format):
    sol, plain = cg(sorted_matrix(format), B, rtol=1e-10), cg(jsf.from_scipy(S, "csr"), B, rtol=1e-10)
    assert sol.success and abs(sol.iterations - plain.iterations) <= 1
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), B), rtol=1e-7)
    assert sol.residual_norm == pytest.approx(np.linalg.norm(B - S @ np.asarray(sol.x)), rel=1e-3)


def test_a_start_and_a_preconditioner_are_in_the_users_order():
    A, exact = sorted_matrix("pjds"), np.linalg.solve(S.toarray(), B)
    assert cg(A, B, exact, rtol=1e-8).iterations == 0
    d = 10.0 ** np.linspace(-2, 2, N)
    scaled = sp.csr_array(sp.diags_array(d) @ S @ sp.diags_array(d))
    iterations = [
        cg(M, B, M=precond.jacobi(M), rtol=1e-8).iterations
        for M in (sorted_matrix("pjds", scaled), jsf.from_scipy(scaled, "csr"))
    ]
    assert abs(iterations[0] - iterations[1]) <= 1


@pytest.mark.deep
def test_the_gradient_in_the_values_is_that_of_the_dense_solution():
    A, w = sorted_matrix("pjds"), jnp.asarray(np.random.default_rng(6).standard_normal(N))

    def ours(data, b):
        return w @ cg(A.with_data(data), b, rtol=1e-14, maxiter=2000).x

    def dense(data, b):
        return w @ dense_solution(S, data, b)

    for got, want in zip(*(jax.grad(f, (0, 1))(A.data, B) for f in (ours, dense)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8 * float(jnp.max(jnp.abs(want))))


@pytest.mark.parametrize("make", few(SORTED, 1))
def test_a_callback_sees_x_in_the_users_order(make):
    A = sorted_matrix(make)
    seen: list[np.ndarray] = []
    sol = cg(A, B, rtol=1e-8, callback=lambda x: seen.append(np.array(x)))
    jax.effects_barrier()
    assert len(seen) == sol.iterations
    np.testing.assert_allclose(seen[-1], sol.x, rtol=1e-12)


def test_a_callback_over_several_devices_is_refused():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",))
    with pytest.raises(ValueError, match=r"2 devices.*progress="):
        cg(jsf.shard(S, mesh), B, callback=print)
