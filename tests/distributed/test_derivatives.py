"""Derivatives of solves with sharded matrices, in every format that "auto" takes, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix
from solvers import cg
from tests.distributed.problems import MESH
from tests.distributed.programs import facts
from tests.lowering import QUICK
from tests.marks import deep, few

S = jsf.gallery.poisson((40,)).tocsr()
ROW, COL = S.tocoo().coords
B = np.cos(np.arange(40))
TANGENTS = np.sin(np.arange(S.nnz)), np.cos(3 * np.arange(40))  # of the entries and of b
AUTO = [name for name, of in FORMATS.items() if of._footprints.__func__ is not SparseMatrix._footprints.__func__]


def dense(data, b):
    return jnp.linalg.solve(jnp.zeros(S.shape).at[ROW, COL].set(data), b)


def derivatives(x_of, order):
    """x, its vjp and its jvp by entries and b; with order 2 the derivatives of a gradient, forward and reverse."""

    gradient = jax.grad(lambda data, b: jnp.sum(jnp.sin(x_of(data, b))), (0, 1))

    def along(*given):
        return sum(map(jnp.vdot, gradient(*given), TANGENTS))

    def found(data, b):
        if order == 1:
            x, back = jax.vjp(x_of, data, b)
            return x, back(jnp.cos(x)), jax.jvp(x_of, (data, b), TANGENTS)[1]
        return jax.jvp(gradient, (data, b), TANGENTS)[1], jax.grad(along, (0, 1))(data, b)

    return found


def agree(got, want, tolerance):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(np.asarray(other)).max())


# The derivatives of a derivative are the same rules again, so "auto" stands for all formats there.
@pytest.mark.parametrize(("format", "order"), [*few([(f, 1) for f in AUTO], 1), deep("auto", 2)])
def test_every_derivative_of_a_solve_is_that_of_dense_algebra(format, order):
    A = jsf.shard(S, MESH, format=format)
    program = jax.jit(
        lambda A, *given: derivatives(lambda data, b: cg(A.with_data(data), b, rtol=1e-13).x, order)(*given),
        compiler_options=QUICK,
    )
    agree(program(A, S.data, B), jax.jit(derivatives(dense, order))(S.data, B), 1e-7)


def test_a_gradient_by_the_entries_of_what_auto_takes_needs_no_jit():
    A = jsf.shard(S, MESH)
    got = jax.grad(lambda data: cg(A.with_data(data), jnp.ones(40), rtol=1e-12).x.sum())(A.data)
    agree(got, jax.grad(lambda data: dense(data, jnp.ones(40)).sum())(S.data), 1e-7)


def test_a_gradient_by_padded_data_is_whole_on_no_device():
    """118 entries on 8 devices: pieces of 15, of which the last two places have no entry."""
    A = jsf.shard(S, MESH, format="csr", by="rows", reorder=np.random.default_rng(0).permutation(40))
    data = A.padded_data
    assert S.nnz == 118 and data.shape == (120,) and {s.data.shape for s in data.addressable_shards} == {(15,)}
    np.testing.assert_array_equal(data, np.append(S.data, [0, 0]))
    loss = lambda A, data, b: jnp.sum(jnp.sin(cg(A.with_data(data), b, rtol=1e-13).x))  # noqa: E731
    program = jax.jit(jax.grad(loss, argnums=1)).lower(A, data, A.basis.placed(B)).compile()
    got = program(A, data, A.basis.placed(B))
    wanted = jax.grad(lambda data: jnp.sum(jnp.sin(dense(data, B))))(S.data)
    agree(got, np.append(wanted, [0, 0]), 1e-7)
    assert {s.data.shape for s in got.addressable_shards} == {(15,)}
    assert facts(program.as_text())["collectives"]["all-gather"] == 0
