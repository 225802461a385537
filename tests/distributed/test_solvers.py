"""The solvers on sharded matrices: unchanged, in the sharded basis, with as few collectives as they can do with."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from solvers import cg, eigsh, precond, refine
from tests.distributed.problems import MESH
from tests.distributed.programs import facts
from tests.marks import few
from tests.solvers.methods import CASES, N, matrix, right_hand_side


def on_mesh(S, **options):
    return jsf.shard(S, MESH, format="ell", **options)


def check(sol, S, b):
    x = np.linalg.solve(S.toarray(), b)
    assert sol.success and sol.x.shape == b.shape
    np.testing.assert_allclose(sol.x, x, rtol=0, atol=1e-7 * np.abs(x).max())
    assert sol.residual_norm == pytest.approx(np.linalg.norm(b - S @ np.asarray(sol.x)), rel=1e-3, abs=1e-14)


@pytest.mark.parametrize("case", few([case for case in CASES if not case.name.startswith("cg")], 3), ids=str)
def test_every_method_solves_over_eight_devices(case):
    S, b = case.system()
    check(case.solver(on_mesh(S), b, rtol=1e-10), S, b)


BY_NUMBERS = functools.partial(cg, M=jnp.full(N, 0.5))
STEPS = {
    "cg": (cg, 1, 1),
    "cg with an M": (BY_NUMBERS, 1, 2),
    "cg in one reduction": (functools.partial(BY_NUMBERS, one_reduction=True), 1, 1),
    "gmres": (functools.partial(solvers.gmres, restart=3), 1, 3),
    **{"bicgstab": (solvers.bicgstab, 2, 3), "minres": (solvers.minres, 1, 3)},
    **{"cocg": (solvers.cocg, 1, 2), "lsmr": (solvers.lsmr, 2, 2)},
}


@pytest.mark.parametrize("method", few(STEPS, 3))
def test_a_step_takes_an_exchange_a_product_and_as_few_reductions_as_its_form_has(method):
    """Other loops restart."""
    solver, products, reductions = STEPS[method]
    S, b = matrix("definite"), right_hand_side()
    B = on_mesh(S)
    program = jax.jit(lambda A, b: solver(A, b, rtol=1e-10)).lower(B, b).compile()
    loops = [(of["all-to-all"], of["all-reduce"], of["all-gather"]) for of in facts(program.as_text())["loops"]]
    assert (products, reductions, 0) in loops
    check(program(B, b), S, b)


def with_M(A, M, b):
    """The loops of a compiled cg, and what it finds."""
    program = jax.jit(lambda A, M, b: cg(A, b, M=M, rtol=1e-10)).lower(A, M, b).compile()
    return facts(program.as_text())["loops"], program(A, M, b)


@pytest.mark.deep
def test_a_polynomial_of_the_sharded_matrix_stays_in_its_basis_and_saves_steps():
    """Its steps take the matrix's one exchange each, and nothing travels to change the order."""
    S, b = matrix("definite"), right_hand_side()
    B = on_mesh(S, reorder="rcm")
    loops, sol = with_M(B, precond.chebyshev(B, M=precond.jacobi(B)), b)
    assert loops and not any(of["all-gather"] for of in loops)
    check(sol, S, b)
    assert sol.iterations < 0.5 * cg(on_mesh(S), b, rtol=1e-10).iterations


def test_several_columns_and_a_starting_point_and_a_preconditioner_in_the_users_order():
    S, X = matrix("definite"), right_hand_side(columns=(3,))
    d = S.diagonal()
    sol = cg(on_mesh(S), S @ X, X + 1e-3, M=lambda r: r / d, rtol=1e-10)
    assert np.all(sol.success)
    np.testing.assert_allclose(sol.x, X, atol=1e-7)


WAYS = ("A and M", "A and M in the basis", "M")


@pytest.mark.parametrize(("case", "functions"), few(itertools.product(CASES, WAYS), 3), ids=str)
def test_the_sums_of_a_users_functions_are_over_all_devices(case, functions):
    """A = S + u·uᴴ, and M with a norm and an inner product in it: a device's own of either would change them."""
    S, b = case.system()
    u, d = 0.1 * np.sin(np.arange(b.size)), abs(S.diagonal()) + 1
    B, dense = on_mesh(S), S.toarray()
    inside, enter, leave = B, lambda v: v, lambda v: v
    if "basis" in functions:
        inside, enter, leave = B.in_basis, B.basis.enter, B.basis.leave
    U, D = enter(u), jnp.maximum(enter(d), 1)  # places that stand for no unknown hold zeros
    A, M = inside, lambda r: r / D * (1 + jnp.vdot(U, U)) / jnp.linalg.norm(U)
    if "A" in functions:
        A, dense = lambda v: inside @ v + U * jnp.vdot(U, v), dense + np.outer(u, u)
    one = case.solver(dense, b, M=(1 + u @ u) / np.linalg.norm(u) / d, rtol=1e-10)
    got = case.solver(A, enter(b), M=M, rtol=1e-10)
    assert got.success and abs(got.iterations - one.iterations) <= 1 + one.iterations // 20
    np.testing.assert_allclose(leave(got.x), one.x, rtol=0, atol=1e-7 * np.abs(one.x).max())


def test_a_refinement_reaches_double_accuracy():
    S, b = matrix("definite"), right_hand_side()
    sol = refine(on_mesh(S), b, rtol=1e-12, dtype="float32")
    assert sol.success and np.linalg.norm(b - S @ np.asarray(sol.x)) <= 2e-12 * np.linalg.norm(b)


def test_eigsh_finds_copies_and_no_pair_of_empty_places():
    """Empty places would be eigenvectors for 0; the search for copies draws random vectors."""
    S = jsf.gallery.poisson(6, dim=2)  # 36 unknowns, 5 a device and 4 empty places, pairs of equal eigenvalues
    values, vectors = eigsh(on_mesh(S), 4, which="SA")
    wanted = np.linalg.eigvalsh(S.toarray())[:4]
    np.testing.assert_allclose(values, wanted, rtol=1e-8)
    np.testing.assert_allclose(S @ np.asarray(vectors), np.asarray(vectors) * wanted, atol=1e-7)


def test_a_matrix_that_is_not_definite_is_told_so():
    S, b = matrix("definite"), right_hand_side()
    S = sp.csr_array(S - sp.diags_array(2 * (np.arange(len(b)) % 2) * S.diagonal()))
    assert cg(on_mesh(S), b, rtol=1e-10).status == solvers.Status.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize(("order", "exchanges"), few([("its", 2), ("another", None), ("in_basis", 2)], 1))
def test_a_sharded_matrix_is_an_M_and_in_the_order_of_A_takes_one_exchange_a_step(order, exchanges):
    """Nothing comes from the empty places, which the right-hand side in the basis fills."""
    S, b = matrix("definite"), right_hand_side()
    B = on_mesh(S, by="rows")
    M = on_mesh(sp.csr_array(np.linalg.inv(S.toarray())), by="nnz" if order == "another" else "rows")
    leave, given = lambda x: x, (B, M, b)
    if order == "in_basis":
        filled = jnp.where(B.basis.unknowns() < b.size, B.basis.enter(b), 1.0)
        leave, given = B.basis.leave, (B.in_basis, M.in_basis, filled)
    loops, sol = with_M(*given)
    assert sol.success and sol.iterations <= 3
    np.testing.assert_allclose(leave(sol.x), np.linalg.solve(S.toarray(), b), rtol=0, atol=1e-7)
    if exchanges is not None:
        steps = [of for of in loops if of["all-to-all"] == exchanges]
        assert steps and not any(of["all-gather"] for of in steps)


@pytest.mark.parametrize("shape", few([((90, 40),), ((40, 90),)], 1))
def test_least_squares_and_singular_values_stay_in_the_order_of_the_shards(shape):
    rng = np.random.default_rng(0)
    S = sp.csr_array(sp.random_array(shape, density=0.1, rng=rng) + 2 * sp.eye_array(*shape))
    B, b = on_mesh(S), S @ rng.standard_normal(shape[1])
    sol = solvers.lsmr(B, b, rtol=1e-12)
    np.testing.assert_allclose(sol.x, np.linalg.lstsq(S.toarray(), b)[0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(solvers.lsmr(B.T, S.T @ b).x, np.linalg.lstsq(S.T.toarray(), S.T @ b)[0], atol=1e-3)
    program = jax.jit(lambda B: solvers.svds(B, 2)).lower(B).compile()
    assert not any(of["all-gather"] for of in facts(program.as_text())["loops"])
    np.testing.assert_allclose(program(B).s, np.linalg.svd(S.toarray())[1][:2], rtol=1e-10)


def test_a_transpose_is_solved_in_the_basis_of_the_shards_also_with_padding_and_a_b_of_one_device():
    S, b = matrix("general"), right_hand_side()
    B, alone = on_mesh(S), jax.device_put(b, MESH.devices.flat[1])
    loops = facts(jax.jit(lambda A, b: solvers.gmres(A.T, b).x).lower(B, b).compile().as_text())["loops"]
    assert not any(of["all-gather"] for of in loops)
    for of in (B, B.padded):
        filled = jnp.pad(jnp.asarray(b), (0, of.shape[0] - N))
        for given in (filled, alone) if of is B else (filled,):
            sol = solvers.solve(of.T, given, rtol=1e-10)
            assert sol.success
            np.testing.assert_allclose(sol.x[:N], np.linalg.solve(S.toarray().T, b), rtol=0, atol=1e-7)


def test_what_a_transpose_of_a_sharded_matrix_has_not_is_told_as_by_the_matrix():
    B = on_mesh(matrix("general"))
    assert B.T._repr_html_() is None
    with pytest.raises(TypeError, match="its rows lie on several devices"):
        B.T[0]


@pytest.mark.parametrize(("method", "by"), [("auto", "cg with block_jacobi"), ("cg", "cg with jacobi")])
def test_solve_inside_jit_knows_the_shards_of_a_matrix_that_the_function_closes_over(method, by):
    S = sp.csr_array(jsf.gallery.poisson(4))
    A, b, chosen = jsf.shard(S, MESH), np.arange(64.0), []

    def solved(b):
        sol = solvers.solve(A, b, method=method, rtol=1e-10)
        chosen.append(sol.method)
        return sol.x

    np.testing.assert_allclose(jax.jit(solved)(b), np.linalg.solve(S.toarray(), b), rtol=1e-7)
    assert chosen == [by]
