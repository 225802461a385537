"""What a Space gives a method on pieces of vectors is what it gives on whole ones."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.vector_passes import total
from solvers import bicgstab, precond
from solvers.core.space import HERE, outside
from tests.distributed.problems import MESH

A = jsf.shard(jsf.gallery.poisson(6, dim=2), MESH, format="ell")  # 36 unknowns, 5 a device and 4 empty places
BASIS: Any = A.basis
PIECE, SAME = PartitionSpec("rows"), PartitionSpec()


def in_pieces(f, *operands, out=SAME):
    space = dataclasses.replace(outside(BASIS), in_pieces=True)
    run = jax.jit(lambda *operands: BASIS.run(lambda *a: f(space, *a), operands, (PIECE,) * len(operands), out))
    return run(*operands)


@pytest.mark.parametrize("columns", [(), (3,)], ids=str)
def test_sums_over_pieces_are_those_of_whole_vectors(columns):
    x, y = (BASIS.enter(v) for v in np.random.default_rng(0).standard_normal((2, 36, *columns)))

    def numbers(space, x, y):
        both = space.sum(jnp.sum(x, axis=0), jnp.sum(y, axis=0))
        parts = space.joined(space.part(x, y), space.part(x, x))
        one = space.dot(x, y), space.norm(x), space.length(1e200 * x), space.inner_product(x, y), space.largest(y)
        return both, *map(total, parts), one, space.exponent(x)

    got, wanted = in_pieces(numbers, x, y), numbers(HERE, x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), got, wanted)


def test_noise_is_the_same_in_pieces_and_zero_in_empty_places():
    x = BASIS.enter(np.ones(36))
    got = in_pieces(lambda space, x: (space.probe(x), space.noise(x, 3)), x, out=PIECE)
    space = outside(BASIS)
    for noise, wanted in zip(got, (space.probe(x), space.noise(x, 3)), strict=True):
        np.testing.assert_array_equal(noise, wanted)
        np.testing.assert_array_equal(noise == 0, x == 0)


@pytest.mark.deep
def test_a_cycle_of_multigrid_in_pieces_has_its_transpose():
    """Its coarsest level is on every device; a derivative of bicgstab solves with the transpose of M."""
    S = jsf.gallery.convection_diffusion(8, diffusion=0.5)
    B = jsf.shard(S, MESH, format="ell")
    M, b = precond.multigrid(B, max_coarse=20), np.ones(S.shape[0])
    gradient = jax.jit(jax.grad(lambda b: jnp.sum(bicgstab(B, b, M=M, rtol=1e-12).x ** 2)))(b)
    wanted = np.linalg.solve(S.toarray().T, 2 * np.linalg.solve(S.toarray(), b))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-7)
