"""Bad input to a sharded matrix, and shards that do not fit, are refused in words."""

import re

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import NamedSharding, PartitionSpec

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import build
from solvers import cg, gmres
from tests.distributed.problems import DEVICES, MESH, irregular
from tests.distributed.test_matrix import S, X, close
from tests.oracle import assert_refused

REVERSE = jax.sharding.Mesh(MESH.devices[::-1], ("rows",))
WIDE, OF_ALL = irregular(90, 40), {"S": S, "mesh": MESH}
PART = "by must give each of {} unknowns one of the parts 0 to 7; got shape {}"

OF_SHARD = [
    ({"axis": "cols"}, ValueError, "a tuple in the mesh's order: 'rows'; got 'cols'"),
    ({"axis": ()}, ValueError, "a tuple in the mesh's order: 'rows'; got ()"),
    ({"mode": "magic"}, ValueError, "mode must be one of overlap, naive, vector; got 'magic'"),
    ({"format": "elk"}, ValueError, "got 'elk'; did you mean 'ell'"),
    ({"format": "tune"}, ValueError, "format='tune' measures a matrix of one device"),
    ({"slice_size": 3}, ValueError, "format='auto' chooses the layout itself"),
    ({"mesh": "all"}, TypeError, "mesh must be a jax.sharding.Mesh"),
    ({"exchange": "permute"}, TypeError, "there is no keyword or layout option 'exchange'; formats have block_shape"),
    ({"format": "ell", "sigma": 3}, ValueError, "format 'ell' has no layout option 'sigma'; it has: none"),
    ({"format": "ell", "max_bytes": 10}, ValueError, "format 'ell' would take"),
    ({"by": np.arange(8)}, ValueError, PART.format(90, "(8,)")),
    ({"by": np.arange(90)}, ValueError, "got shape (90,), and numbers from 0 to 89"),
    ({"by": np.zeros(90)}, TypeError, "by must be one of the words nnz, rows, or integers"),
    ({"by": "columns"}, ValueError, "by must be one of nnz, rows, or the part of each unknown; got 'columns'"),
    ({"reorder": "amd"}, ValueError, "'amd'"),
    ({"by": np.zeros(90, int), "reorder": "rcm"}, ValueError, "renumbers the unknowns itself; leave reorder out"),
    ({"S": WIDE, "by": np.zeros(90, int)}, ValueError, "which a 90 × 40 matrix does not allow"),
    ({"S": WIDE, "reorder": "rcm"}, ValueError, "90 × 40 matrix"),
]
FALLING = [0, 9, 8, 20, 30, 40, 50, 60, 90]
OF_ROWS = [
    ({"rows_of": lambda a, b: S[a:b, :50]}, ValueError, "rows_of(0, 11) must give a matrix (11, 90); got (11, 50)"),
    ({"starts": [0, 90]}, ValueError, "starts must be 9 numbers that rise from 0 to n = 90"),
    ({"starts": FALLING}, ValueError, "starts must be 9 numbers that rise"),
    ({"starts": np.linspace(0, 90, 9)}, TypeError, "starts must be integers"),
    ({"starts": None, "by": "metis"}, TypeError, "has no by= or reorder=: number the unknowns part by part"),
    *(({"n": n}, error, "n must be") for n, error in ((90.0, TypeError), ("90", TypeError), (-3, ValueError))),
]


@pytest.mark.parametrize(("options", "error", "words"), OF_SHARD + OF_ROWS)
def test_options_that_make_no_sense_are_refused(options, error, words):
    of_rows = {"rows_of": lambda a, b: S[a:b], "n": 90, "mesh": MESH, "format": "ell"}
    is_of_rows = not {"rows_of", "starts", "n"}.isdisjoint(options)
    make, given = (jsf.shard_from_rows, of_rows) if is_of_rows else (jsf.shard, OF_ALL)
    assert_refused(lambda: make(**given | options), error, re.escape(words))


def test_does_shard_warn_where_a_host_has_gpus_that_no_process_took(monkeypatch):
    monkeypatch.setattr(build, "_gpus_of_host", lambda mesh: 99)  # the devices here are of the CPU
    with pytest.warns(RuntimeWarning, match=r"has 99 GPUs, of which .* taken \d+: .* srun --ntasks-per-node=99"):
        jsf.shard(S, MESH, format="csr")


def test_a_report_is_of_the_matrix_that_it_is_asked_of():
    """Other values come from a program that serves all equal matrices."""
    chosen = jsf.shard(S, MESH, mode="vector")
    one = chosen.shards.blocks[0]
    named = jsf.shard(S, MESH, format=one.name, mode="vector", **one.layout)
    for B in (chosen, named):
        assert B.with_data(B.data).report() == B.report()
    assert chosen.report() != named.report()


def test_vectors_and_data_of_the_wrong_length_are_refused():
    B = jsf.shard(S, MESH, format="ell")
    assert_refused(lambda: B @ np.ones(89), ValueError, r"of shape \(90,\) or \(90, p\); got \(89,\)")
    assert_refused(lambda: B.with_data(np.ones(3)), ValueError, rf"data must have shape \({S.nnz},\)")
    assert_refused(lambda: B.in_basis @ np.ones(90), ValueError, rf"\({B.basis.places},\)")
    assert_refused(lambda: B[1], TypeError, r"no A\[1\]: .*to_scipy\(\)\[1\]")
    with pytest.raises(TypeError, match="cannot change"):
        B[0, 0] = 1


def test_a_vector_outside_the_mesh_is_told_where_to_go():
    B = jsf.shard(S, jax.sharding.Mesh(jax.devices()[:4], ("rows",)), format="ell")
    outside = jax.device_put(X[:, 0], jax.devices()[7])
    assert_refused(lambda: B @ outside, ValueError, "outside the mesh of the matrix; place it with")
    close(B @ jax.device_put(X[:, 0], jax.devices()[2]), S @ X[:, 0])


def test_vectors_sharded_by_the_user_are_taken_also_in_another_order_of_the_devices():
    T, x = sp.csr_array(irregular(96, 96)), np.arange(96.0)
    B = jsf.shard(T, MESH, format="ell")
    for mesh in (MESH, REVERSE):
        placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows")))
        close(B @ placed, T @ x)
        close(B.scale_rows(placed) @ x, x * (T @ x))


@pytest.mark.parametrize("where", [MESH.devices[0], NamedSharding(REVERSE, PartitionSpec("rows"))], ids=["one", "all"])
def test_a_matrix_that_was_moved_is_told_what_to_do(where):
    """JAX's own text names arguments that no user has given."""
    M = jax.device_put(jsf.shard(S, MESH, format="ell"), where)
    uses = (lambda: M @ X, lambda: M.T @ X, lambda: M.data, lambda: M.diagonal(), lambda: M.todense())
    more = (lambda: M.with_data(S.data), lambda: M.scale_rows(X[:, 0]), lambda: cg(M, X[:, 0]), lambda: M.basis)
    for use in (*uses, *more):
        assert_refused(use, ValueError, "was moved to .*; leave it out of jax.device_put, or make it anew by")


@pytest.mark.parametrize("reorder", [None, np.arange(90)], ids=["as it is", "renumbered"])
def test_what_must_be_free_is_what_a_device_will_hold(reorder, monkeypatch):
    shard = lambda: jsf.shard(S, MESH, format="ell", reorder=reorder)  # noqa: E731
    free = shard().nbytes // DEVICES
    monkeypatch.setattr(type(MESH.devices.flat[0]), "memory_stats", lambda self: {"bytes_limit": free})
    assert shard().nbytes // DEVICES == free
    free -= 1
    assert_refused(shard, ValueError, "use more devices")


@pytest.mark.parametrize("transposed", [False, True], ids=["A", "A.T"])
def test_the_vectors_of_gmres_are_compared_with_what_a_device_holds_of_them(transposed, monkeypatch):
    n = 40_000
    A = jsf.shard(sp.eye_array(n, format="csr"), MESH)
    A = A.T if transposed else A
    monkeypatch.setattr("jaxsparse_fmt.formats.memory.of_host", lambda: 10**9)
    for own, size in ((False, r"12\.8"), (True, r"1\.6")):
        if own:
            monkeypatch.setattr("jaxsparse_fmt.formats.memory.is_own", lambda device: True)
        words = f"take {size} GB, and only 1 GB of memory"
        assert_refused(lambda: gmres(A, np.ones(n), restart=n), ValueError, words)


def test_a_matrix_whose_arrays_were_donated_is_told_so_also_by_a_program_that_ran_before():
    B, x = jsf.shard(S, MESH, format="ell"), np.ones(S.shape[1])
    given = B.copy()
    kept = given @ x
    uses = (lambda: given @ x, lambda: given.data, lambda: cg(given, x), lambda: given * 3.0, lambda: given + given)
    uses = (*uses, lambda: given.copy(), lambda: given.T.copy())
    assert all(use() is not None for use in uses)
    jax.jit(lambda A: A * 2, donate_argnums=0)(given)
    for use in uses:
        assert_refused(use, ValueError, "the arrays of this matrix were donated or deleted")
    np.testing.assert_array_equal(B @ x, kept)
