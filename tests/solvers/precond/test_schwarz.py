"""Preconditioners of a device's own block, and coarse spaces, on eight devices, against dense algebra."""

import functools

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg, factorized, gmres, precond
from tests.distributed.problems import MESH
from tests.distributed.programs import facts
from tests.marks import few
from tests.solvers.precond.operators import apply, spd, unsymmetric

S = spd()  # 81 unknowns, 27 nodes of three
N = S.shape[0]
R = np.random.default_rng(0).standard_normal((N, 2))


def blocks_of(A):
    """The user's unknowns on each device, in the order of the shard, and the number of the first."""
    unknowns = np.asarray(A.domain.unknowns()).reshape(A.parts, -1)
    counts = A.range.over.counts
    return [(of[:count], int(start)) for of, count, start in zip(unknowns, counts, A.range.over.starts, strict=False)]


def inverse_of_blocks(A, T, b):
    """The inverses of blocks of b rows that begin at multiples of b, inside shards."""
    out = np.zeros_like(T)
    for unknowns, start in blocks_of(A):
        number = (start + np.arange(unknowns.size)) // b
        for k in np.unique(number):
            place = np.ix_(unknowns[number == k], unknowns[number == k])
            out[place] = np.linalg.inv(T[place])
    return out


CUTS = {"by entries": {}, "by nodes": {"by": np.repeat(np.arange(27) % 8, 3)}, "in one block": {"mode": "vector"}}


@pytest.mark.parametrize("cut", few(CUTS, 2))
def test_block_jacobi_of_a_sharded_matrix_inverts_blocks_inside_shards(cut):
    A = jsf.shard(S, MESH, format="csr", **CUTS[cut])
    M, wanted = precond.block_jacobi(A, 3), inverse_of_blocks(A, S.toarray(), 3)
    np.testing.assert_allclose(apply(M, R), wanted @ R, rtol=1e-11, atol=1e-11)
    other = A.with_data(2 * S.data)
    np.testing.assert_allclose(apply(M.refreshed(other), R), wanted @ R / 2, rtol=1e-11, atol=1e-11)
    with pytest.raises(ValueError, match="a diagonal block holds a NaN"):
        precond.block_jacobi(A.with_data(np.full(S.nnz, np.nan)), 3)


def restricted(A, T, overlap):
    """Rows of the inverse of each block with its overlap."""
    out = np.zeros_like(T)
    for unknowns, _ in blocks_of(A):
        wide = np.flatnonzero(np.any(T[unknowns] != 0, axis=0)) if overlap else unknowns
        inverse = np.linalg.inv(T[np.ix_(wide, wide)])
        out[np.ix_(unknowns, wide)] = inverse[np.searchsorted(wide, unknowns)] if overlap else inverse
    return out


@pytest.mark.parametrize(("overlap", "transposed"), few([(0, False), (0, True), (1, False), (1, True)], 2))
def test_schwarz_solves_with_every_block_and_its_overlap(overlap, transposed):
    T = unsymmetric()
    boxes = jsf.boxes((4, 4, 4), 8)
    A = jsf.shard(T, MESH, format="csr", by=np.where(boxes == 3, 2, boxes) if overlap else "nnz")  # one has none
    M, wanted = precond.schwarz(A, factorized, overlap), restricted(A, T.toarray(), overlap)
    M, wanted = (M.T, wanted.T) if transposed else (M, wanted)
    r = np.random.default_rng(0).standard_normal(64)
    np.testing.assert_allclose(apply(M, r), wanted @ r, rtol=1e-11, atol=1e-11)


LOCAL = {
    "ilu": precond.ilu,
    "incomplete_cholesky": precond.incomplete_cholesky,
    "sweeps": functools.partial(precond.incomplete_cholesky, solve_sweeps=2),
    "incomplete_lu": precond.incomplete_lu,
    "jacobi": precond.jacobi,
    "block_jacobi": functools.partial(precond.block_jacobi, block_size=3),
}


@pytest.mark.parametrize("name", few(LOCAL, 2))
def test_the_block_of_a_device_may_have_any_preconditioner_of_one_device(name):
    A = jsf.shard(S, MESH, format="csr", by=np.repeat(np.arange(27) % 8, 3))
    M, r = precond.schwarz(A, LOCAL[name]), R[:, 0]
    wanted = np.zeros(N)
    for unknowns, _ in blocks_of(A):
        block = sp.csr_array(S[unknowns][:, unknowns])
        wanted[unknowns] = LOCAL[name](jsf.from_scipy(block)) @ r[unknowns]
    np.testing.assert_allclose(apply(M, r), wanted, rtol=1e-9, atol=1e-9)


def test_multigrid_of_the_blocks_has_one_shape_for_levels_of_several_sizes():
    """In the first half of the grid couplings along one axis are weak, so that its aggregates are lines."""
    line, weak = jsf.gallery.poisson((16,)), sp.diags_array(np.where(np.arange(16) < 8, 1e-3, 1.0))
    T = sp.csr_array(sp.kron(weak, line) + sp.kron(line, sp.eye_array(16)))
    boxes = jsf.boxes((16, 16), 8)
    A = jsf.shard(T, MESH, format="csr", by=boxes)
    local = functools.partial(precond.multigrid, max_coarse=20)
    r = np.random.default_rng(0).standard_normal(256)
    wanted = np.zeros(256)
    sizes = set()
    for unknowns, _ in blocks_of(A):
        M = local(jsf.from_scipy(sp.csr_array(T[unknowns][:, unknowns])))
        wanted[unknowns] = M @ r[unknowns]
        sizes.add(tuple(rows for rows, _ in M.sizes))
    assert len(sizes) > 1 and len({len(of) for of in sizes}) == 1
    np.testing.assert_allclose(apply(precond.schwarz(A, local), r), wanted, rtol=1e-9, atol=1e-9)


def elasticity():
    T = jsf.gallery.elasticity(6).tocsr()
    points, boxes = np.indices((6, 6, 6)).reshape(3, -1).T, jsf.boxes((6, 6, 6), 8)
    W = precond.subdomains(jsf.gallery.rigid_body_modes(points), boxes)
    local = precond.incomplete_cholesky
    many = jsf.shard(T, MESH, by=np.repeat(boxes, 3), format="csr")
    return T, many, cg, local, lambda A: precond.coarse_space(A, W, precond.schwarz(A, local))


def convection():
    """Not by `incomplete_lu`, which is nearly exact here: exact solves of overlapping blocks take 11 steps, too."""
    T = jsf.gallery.convection_diffusion(12).tocsr()
    many = jsf.shard(T, MESH, by=jsf.boxes((12, 12, 12), 8), format="csr")
    return T, many, gmres, precond.ilu, lambda A: precond.schwarz(A, precond.ilu, 1)


@pytest.mark.parametrize("problem", few([elasticity, convection], 1))
def test_eight_devices_take_at_most_twice_the_steps_of_one(problem):
    T, many, solver, local, maker = problem()
    one, b = jsf.from_scipy(T, "csr"), np.random.default_rng(0).standard_normal(T.shape[0])
    alone, sol = solver(one, b, M=local(one), rtol=1e-8), solver(many, b, M=maker(many), rtol=1e-8)
    assert alone.success and sol.success and sol.iterations <= 2 * alone.iterations
    assert np.linalg.norm(b - T @ np.asarray(sol.x)) <= 1e-7 * np.linalg.norm(b)


@pytest.mark.deep
def test_sixty_four_blocks_with_a_coarse_space_take_at_most_twice_the_steps_of_one():
    """On one device, by the matrix without entries between blocks: 64 fake devices take minutes on few cores."""
    T, points = jsf.gallery.elasticity(12).tocoo(), np.indices((12, 12, 12)).reshape(3, -1).T
    parts = jsf.boxes((12, 12, 12), 64)
    inside = np.repeat(parts, 3)[T.row] == np.repeat(parts, 3)[T.col]
    blocks = sp.csr_array((T.data[inside], (T.row[inside], T.col[inside])), shape=T.shape)
    A, b = jsf.from_scipy(T.tocsr(), "csr"), np.random.default_rng(0).standard_normal(T.shape[0])
    W = precond.subdomains(jsf.gallery.rigid_body_modes(points), parts)
    M = precond.coarse_space(A, W, precond.incomplete_cholesky(jsf.from_scipy(blocks, "csr")))
    alone, sol = (cg(A, b, M=M, rtol=1e-8) for M in (precond.incomplete_cholesky(A), M))
    assert alone.success and sol.success and sol.iterations <= 2 * alone.iterations


MAKERS = {
    "block_jacobi": (lambda A: precond.block_jacobi(A, 3), 2),
    "schwarz": (lambda A: precond.schwarz(A, factorized), 2),
    "coarse_space": (lambda A: precond.coarse_space(A, modes(), precond.block_jacobi(A, 3)), 3),
}


def modes():
    return precond.subdomains(np.tile(np.eye(3), (27, 1)), np.arange(27) % 4)


@pytest.mark.parametrize("name", few(MAKERS, 2))
def test_a_step_takes_one_exchange_and_no_device_has_a_whole_vector(name):
    maker, reductions = MAKERS[name]
    A, b = jsf.shard(S, MESH, format="csr"), R[:, 0]
    program = jax.jit(lambda A, M, b: cg(A, b, M=M, rtol=1e-10)).lower(A, M := maker(A), A.basis.placed(b)).compile()
    found = facts(program.as_text())
    loops = [(of["all-to-all"] + of["collective-permute"], of["all-reduce"], of["all-gather"]) for of in found["loops"]]
    assert (1, reductions, 0) in loops
    for leaf in jax.tree.leaves(M.local if name != "coarse_space" else (M.M.local, M.W, M.R)):
        assert max(shard.data.size for shard in leaf.addressable_shards) <= leaf.size // 8
    x = program(A, M, A.basis.placed(b)).x
    np.testing.assert_allclose(S @ np.asarray(x), b, atol=1e-8)


@pytest.mark.parametrize("kind", few(["sparse", "dense"], 1))
def test_a_coarse_space_of_a_sharded_matrix_is_that_of_one_device(kind):
    W = modes() if kind == "sparse" else modes().toarray()
    one, many = (precond.coarse_space(A, W) for A in (jsf.from_scipy(S, "csr"), jsf.shard(S, MESH, format="csr")))
    # Both take their factor θ from a probe of their own.
    plain = precond.jacobi(jsf.from_scipy(S, "csr"))
    slow = [np.asarray(apply(M, R)) - np.asarray(apply(plain, R)) for M in (one, many)]
    ratio = np.vdot(slow[0], slow[1]) / np.vdot(slow[0], slow[0])
    np.testing.assert_allclose(slow[1], ratio * slow[0], rtol=0, atol=1e-10 * np.abs(slow[1]).max())
    assert 0.5 < ratio < 2
