"""Shards in "dia", in which a product reads two entries from one place."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.distributed.problems import MESH
from tests.distributed.test_matrix import X, anew, both_ways, close, times

of_data = jax.jit(jax.grad(lambda data, A, x: jnp.sum(jnp.sin(A.with_data(data) @ x))))
of_whole = jax.jit(jax.grad(lambda A, x: jnp.sum(jnp.sin(A @ x)), allow_int=True))


def test_shards_that_read_half_of_a_symmetric_matrix_read_all_of_other_entries():
    P, x = jsf.gallery.poisson((6, 5, 3)), X[:, 0]
    A, D = jsf.shard(P, MESH, format="dia"), sp.diags_array(x)
    local = A.shards.blocks[0]
    assert local.nbytes_read < 0.7 * local.nbytes
    row, col = P.tocoo().coords
    uneven = P.copy()
    uneven.data = P.data + np.sin(np.arange(P.nnz))
    (product, data), B = anew(A, uneven.data, x), A.with_data(uneven.data)
    close(product, uneven @ x)
    np.testing.assert_array_equal(data, uneven.data)
    assert jax.tree.structure(A) == jax.tree.structure(B)
    for M, T in ((A, P), (B, uneven), (A + B, P + uneven), (2 * A, 2 * P), (B.scale_rows(x), D @ uneven)):
        product, transposed = both_ways(M, x)
        close(product, T @ x)
        close(transposed, T.T @ x)
        assert abs(M.to_scipy() - T).max() < 1e-15
    for M, T in ((A.scale_cols(x), P @ D), (A.shift(x), P + D)):
        close(times(M, x), T @ x)
    close(B.diagonal(), uneven.diagonal())
    shifted = jax.jit(lambda data, x: A.with_data(data).scale_rows(x).shift(1.0) @ x)
    close(shifted(uneven.data, x), x * (uneven @ x) + x)

    slopes = sp.csr_array((np.cos(P @ x)[row] * x[col], P.indices, P.indptr))
    close(of_data(P.data, A, x), slopes.data)
    part = np.searchsorted(A.record.imbalance.rows.cumsum(), np.arange(90), "right")
    mean = (slopes + slopes.T).tocsr()[row, col] / 2  # an entry and its image in the same shard are one number
    close(A.data_of(of_whole(A, x)), np.where(part[row] == part[col], mean, slopes.data))
