"""A solve that is interrupted and goes on from disk: the same bits as without an interruption, and nothing else's."""

import re

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, cg, checkpointed_cg, precond
from tests.distributed.problems import MESH

S = jsf.gallery.poisson(16, dim=2)  # 256 unknowns
A = jsf.from_scipy(S, "csr")
B = np.random.default_rng(0).standard_normal(256)
MATRICES = {"one device": A, "eight devices": jsf.shard(S, MESH, format="ell", reorder="rcm")}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_a_solve_that_goes_on_from_disk_has_the_bits_of_one_without_an_interruption(matrix, tmp_path):
    options = {"every": 12, "rtol": 1e-10, "M": precond.jacobi(matrix)}
    whole = checkpointed_cg(matrix, B, tmp_path / "whole", **options)
    first = checkpointed_cg(matrix, B, tmp_path / "parts", **options, maxiter=24)
    assert first.status is Status.MAXITER and first.iterations == 24
    again = checkpointed_cg(matrix, B, tmp_path / "parts", **options)
    assert whole.success and again.iterations == whole.iterations
    np.testing.assert_array_equal(again.x, whole.x)
    assert np.linalg.norm(B - S @ np.asarray(whole.x)) <= 1.01e-10 * np.linalg.norm(B)
    assert whole.iterations <= 1.1 * cg(matrix, B, M=options["M"], rtol=1e-10).iterations
    assert len(list((tmp_path / "parts").iterdir())) == 2  # the last two states
    done = checkpointed_cg(matrix, B, tmp_path / "parts", **options)
    assert done.success and done.iterations == whole.iterations


@pytest.mark.parametrize("scale", [1, 1e200])
def test_a_state_that_is_damaged_or_of_another_system_is_refused(scale, tmp_path):
    B = scale * np.random.default_rng(0).standard_normal(256)
    checkpointed_cg(A, B, tmp_path, every=5, maxiter=10)
    with pytest.raises(ValueError, match=r"is the state of another system: its residual norm was \S+ and is \S+ with"):
        checkpointed_cg(A, B + scale, tmp_path, every=5)
    before, newest = sorted(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    content[content.find(b"x (0,)") + 400] ^= 1
    newest.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(newest)) + " is damaged, .*goes on from the state be") as told:
        checkpointed_cg(A, B, tmp_path, every=5)
    assert "Bad CRC" in str(told.value.__cause__)
    newest.unlink()
    assert checkpointed_cg(A, B, tmp_path, every=5, maxiter=5).iterations == 5 and before.exists()


def test_a_state_of_other_devices_is_refused(tmp_path):
    checkpointed_cg(MATRICES["eight devices"], B, tmp_path, every=5, maxiter=5)
    with pytest.raises(ValueError, match="is of other devices or dtypes; start the solve as before, or name another"):
        checkpointed_cg(A, jax.device_put(B), tmp_path)


def test_a_state_of_another_dtype_is_not_called_damaged(tmp_path):
    checkpointed_cg(A, B, tmp_path, every=5, maxiter=5)
    with pytest.raises(ValueError, match="is of other devices or dtypes; start the solve as before"):
        checkpointed_cg(A.astype(np.float32), B.astype(np.float32), tmp_path)


@pytest.mark.parametrize("at", [b"state.npy", b"PK\x01\x02", b"PK\x05\x06"], ids=["name", "directory", "end"])
def test_no_damage_to_a_state_raises_anything_but_that_it_is_damaged(at, tmp_path):
    checkpointed_cg(A, B, tmp_path, every=5, maxiter=5)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    place = content.rfind(at)
    for offset in range(6, 20):
        path.write_bytes(
            content[: place + offset] + bytes([content[place + offset] ^ 0x81]) + content[place + offset + 1 :]
        )
        try:
            checkpointed_cg(A, B, tmp_path, every=5, maxiter=5)  # no check covers the date of a file
        except ValueError as error:
            assert "is damaged" in str(error)


COMPLEX = jsf.from_scipy(2 * S + sp.diags_array([0.3j, -0.3j], offsets=[1, -1], shape=S.shape).tocsr(), "csr")


@pytest.mark.parametrize(("A", "b"), [(A, B.astype(np.float32)), (A, np.arange(256)), (A, B + 1j), (COMPLEX, B)])
def test_b_may_have_another_dtype_than_the_matrix(A, b, tmp_path):
    first = checkpointed_cg(A, b, tmp_path, every=20, maxiter=20)
    again = checkpointed_cg(A, b, tmp_path, every=20)
    assert first.iterations == 20 and again.success and again.x.dtype == cg(A, b).x.dtype


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda b: jax.vmap(f)(b[None])])
def test_jit_grad_and_vmap_are_refused(transform, tmp_path):
    with pytest.raises(TypeError, match="works outside jit, vmap and grad only"):
        transform(lambda b: checkpointed_cg(A, b, tmp_path).x.sum())(jax.numpy.asarray(B))


def test_several_columns_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"b must be one vector, \[n\]; got shape \(256, 2\)"):
        checkpointed_cg(A, np.ones((256, 2)), tmp_path)
