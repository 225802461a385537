"""Programs that take and return matrices: exported, serialized, pickled, copied, with static and donated arguments."""

import copy
import importlib.util
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg, eigsh, lsmr, precond
from tests.marks import deep, few
from tests.oracle import assert_same_storage
from tests.process import printed
from tests.zoo import CASES, FIRST_LAYOUTS

S = sp.csr_array(sp.diags_array([np.full(20, 3.0), -np.ones(19), -np.ones(19)], offsets=[0, 1, -1]))
B = np.linspace(-1, 1, 20)
IRREGULAR = CASES["irregular"]


flatbuffers = pytest.mark.skipif(
    importlib.util.find_spec("flatbuffers") is None, reason="jax.export serializes with it"
)


def through_bytes(f, *args, platforms=("cpu", "cuda")):
    """What f gives after it has been exported, serialized and read again."""
    written = jax.export.export(jax.jit(f), platforms=platforms)(*args).serialize()
    return jax.export.deserialize(written).call(*args)


@flatbuffers
@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)
def test_an_exported_program_takes_and_returns_a_matrix_of_every_format(layout):
    A, x = layout.of(IRREGULAR.scipy(), backend="xla"), np.linspace(-1, 1, 13)
    C, y = through_bytes(lambda A, x: (A * 2, A @ x), A, x)
    assert jax.tree.structure(C) == jax.tree.structure(A)
    np.testing.assert_allclose(y, IRREGULAR.dense() @ x, rtol=1e-13)
    np.testing.assert_array_equal(C.todense(), 2 * IRREGULAR.dense())


EVERYTHING = {
    "paired": lambda: jsf.from_scipy(S, "hll", transpose=True),
    "transposed": lambda: jsf.from_scipy(S, "hll").T,
    "basis": lambda: jsf.from_scipy(S, "hll").basis,
    "jacobi": lambda: precond.jacobi(jsf.from_scipy(S)),
    "block_jacobi": lambda: precond.block_jacobi(jsf.from_scipy(S), 2),
    "chebyshev": lambda: precond.chebyshev(jsf.from_scipy(S), bounds=(1, 5)),
    "incomplete": lambda: precond.incomplete_cholesky(jsf.from_scipy(S), solve_sweeps=2),
    "incomplete, of two factors": lambda: precond.incomplete_lu(jsf.from_scipy(S)),
    "multigrid": lambda: precond.multigrid(jsf.from_scipy(S)),
}


@flatbuffers
@pytest.mark.parametrize("make", few(EVERYTHING.values(), 4), ids=EVERYTHING)
def test_everything_else_that_a_program_may_take_goes_through_bytes_too(make):
    A = make()
    again = through_bytes(lambda A: A, A)
    assert_same_storage(again, A)


SOLVES = [lambda A, b: cg(A, b, rtol=1e-10, history=30), deep(lsmr), deep(lambda A, b: eigsh(A, 1, v0=b))]


@flatbuffers
@pytest.mark.parametrize("solve", SOLVES, ids=["cg", "lsmr", "eigsh"])
@pytest.mark.parametrize(("platforms", "backend"), [(None, "auto"), (("cpu", "cuda"), "xla")], ids=["cpu", "both"])
def test_an_exported_solve_returns_its_solution(solve, platforms, backend):
    A = jsf.from_scipy(S, "csr", backend=backend)
    sol, want = through_bytes(solve, A, B, platforms=platforms), solve(A, B)
    assert sol.success and jax.tree.structure(sol) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12), sol, want)


@flatbuffers
def test_another_process_loads_an_exported_program(tmp_path):
    A = jsf.from_scipy(S, "hll")
    (tmp_path / "program").write_bytes(jax.export.export(jax.jit(lambda A, x: A @ x))(A, B).serialize())
    (tmp_path / "arguments").write_bytes(pickle.dumps((A, B)))
    code = """
import pathlib, pickle, sys
import jax
jax.config.update("jax_enable_x64", True)
import jaxsparse_fmt
program = jax.export.deserialize(bytearray(pathlib.Path(sys.argv[1], "program").read_bytes()))
print(*map(float, program.call(*pickle.loads(pathlib.Path(sys.argv[1], "arguments").read_bytes()))))
"""
    np.testing.assert_allclose([float(word) for word in printed("-c", code, tmp_path).split()], S @ B, rtol=1e-14)


@pytest.mark.parametrize("copied", few([copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))], 1))
def test_matrices_and_results_can_be_copied_and_pickled(copied):
    A = jsf.from_scipy(S, "pjds", transpose=True)
    M = precond.jacobi(A)
    for a in (A, A.T, A.basis, M, cg(A, B, M=M, history=True), eigsh(A, 1, v0=B)):
        again = copied(a)
        assert type(again) is type(a)
        assert_same_storage(again, a)


def test_a_matrix_may_be_donated_and_is_refused_as_a_static_argument_in_words():
    A = jsf.from_scipy(S, "hll")
    C = jax.jit(lambda A: 2 * A, donate_argnums=0)(A)
    np.testing.assert_array_equal(C.todense(), 2 * S.toarray())
    product = jax.jit(lambda A, x: A @ x, static_argnums=0)  # hashed by identity: compiled once for each matrix
    np.testing.assert_allclose(product(C, B), 2 * (S @ B))


@pytest.mark.deep
def test_shapes_and_rematerialized_solves_are_those_of_solves():
    A = jsf.from_scipy(S, "csr")
    assert jax.eval_shape(lambda x: A @ x, B).shape == (20,)
    sol = jax.eval_shape(lambda A, b: cg(A, b, history=9), A, B)
    assert sol.x.shape == (20,) and sol.norms.shape == (10,) and "Solution" in repr(sol)
    assert jax.eval_shape(lambda A, b: eigsh(A, 2, v0=b), A, B).eigenvectors.shape == (20, 2)

    def loss(data, b):
        return jnp.sum(cg(A.with_data(data), b, rtol=1e-12).x ** 2)

    plain, again = (jax.jit(jax.grad(f, (0, 1)))(A.data, B) for f in (loss, jax.checkpoint(loss)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), plain, again)
