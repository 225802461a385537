"""What no preconditioner can be made of is refused, in words that name the argument, its value and the cure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import SolverError, factorized
from solvers.precond import (
    block_jacobi,
    chebyshev,
    coarse_space,
    ilu,
    incomplete_cholesky,
    incomplete_lu,
    jacobi,
    multigrid,
    multigrid_from,
    schwarz,
    subdomains,
)
from tests.distributed.problems import MESH
from tests.solvers.precond.operators import spd, unsymmetric

S = spd()
A, GENERAL = jsf.from_scipy(S, "csr"), jsf.from_scipy(unsymmetric(), "csr")
HOLE = A.with_data(A.data.at[7].set(np.nan))
INDEFINITE = jsf.from_scipy(sp.csr_array(S - 2.0 * sp.eye_array(81)), "csr")
SIGNS = jnp.diag(jnp.where(jnp.arange(81) % 10 == 0, -1.0, 1.0))
W = np.linalg.qr(np.random.default_rng(0).standard_normal((81, 5)))[0]
HOLES = np.where(W > 0.3, np.nan, W)
GRID = jsf.shard(jsf.gallery.poisson(8), MESH, format="csr")  # 512 unknowns on eight devices
DEFINITE = "needs a finite, positive definite matrix"


def csr(a) -> jsf.SparseMatrix:
    return jsf.from_scipy(sp.csr_array(a), "csr")


def with_entry(value: float) -> jsf.SparseMatrix:
    a = S.toarray()
    a[4, 3] = value
    return csr(a)


def of_many_degrees(block: jsf.SparseMatrix):
    return chebyshev(block, 1 + block.nnz % 7, bounds=(0.1, 1.0))


# Maker, arguments, options, and what stands in the message of a ValueError.
VALUES = [
    *((chebyshev, (A,), {"bounds": b}, "0 < least ≤ largest < ∞") for b in ((2.0, 1.0), (0.0, 1.0), (1.0, np.nan))),
    *((chebyshev, (bad,), {}, DEFINITE) for bad in (-A, INDEFINITE, 0 * A)),
    (chebyshev, (A,), {"M": SIGNS}, "a finite, positive definite matrix and M.* from -inf"),
    (chebyshev, (HOLE,), {}, "to nan"),
    (chebyshev, (A,), {"degree": -1}, "degree must be at least 0; got -1"),
    (block_jacobi, (A, 0), {}, "at least 1; got 0"),
    (coarse_space, (A, W[:7]), {}, r"shape \(81, m\) with m from 1 to 81; got \(7, 5\)"),
    (coarse_space, (A, W[:, 0]), {}, r"got \(81,\)"),
    (coarse_space, (A, W[:, :0]), {}, r"got \(81, 0\)"),
    (coarse_space, (A, HOLES), {}, "W has a NaN or an infinity"),
    (coarse_space, (A, sp.csr_array(np.where(W > 0.3, np.inf, W))), {}, "W has a NaN or an infinity"),
    (coarse_space, (A, W @ np.ones((5, 2))), {}, "2 columns of rank 1; leave out those that others span"),
    (coarse_space, (A, np.zeros((81, 1))), {}, "1 columns of rank 0"),
    (coarse_space, (A, sp.csr_array(W[:, [0, 1, 0]])), {}, "3 columns of rank 2"),
    (subdomains, (np.ones(6), np.zeros(4, int)), {}, r"got \(6, 1\) and \(4,\)"),
    (subdomains, (np.full(6, np.nan), np.zeros(6, int)), {}, "B has a NaN"),
    (subdomains, (np.ones(6), np.full(6, -1)), {}, "no point is in a subdomain"),
    (incomplete_cholesky, (csr([[2.0, 1], [1, 0]]),), {}, "its diagonal is 0 in row 1"),
    (incomplete_cholesky, (csr(np.diag([2.0, -3])),), {}, "its diagonal is -3 in row 1; use incomplete_lu"),
    (incomplete_cholesky, (with_entry(np.nan),), {}, "needs finite entries; A has nan in row 4"),
    (incomplete_cholesky, (GENERAL,), {}, r"needs a symmetric \(Hermitian\) matrix.* incomplete_lu"),
    (incomplete_lu, (csr([[2.0, 1], [1, 0]]),), {}, "zero on its diagonal in row 1"),
    (incomplete_lu, (csr(([2.0, 1, 0], ([0, 0, 1], [0, 1, 1]))),), {}, "zero on its diagonal in row 1"),
    (incomplete_lu, (with_entry(np.inf),), {}, "needs finite entries; A has inf in row 4"),
    (incomplete_lu, (A,), {"solve_sweeps": -1}, "solve_sweeps must be at least 0; got -1"),
    *((ilu, (GENERAL,), {"drop_tol": tol}, "drop_tol") for tol in (2.0, -1.0)),
    *((ilu, (GENERAL,), {"fill": fill}, "fill") for fill in (0.5, 0)),
    (ilu, (GRID,), {}, r"precond\.schwarz, which has a factorization"),
    (jacobi, (lambda v: A @ v,), {}, r"got function, which has no entries to read.*M=1/d if you know"),
    (schwarz, (A,), {}, "schwarz takes a sharded matrix"),
    (schwarz, (GRID, lambda block: jnp.eye(3)), {}, r"what local makes of a block has shape \(3, 3\)"),
    (chebyshev, (jnp.zeros((0, 0)),), {}, r"chebyshev needs a matrix with at least one row; got shape \(0, 0\)"),
    (block_jacobi, (jnp.zeros((0, 0)), 2), {}, r"block_jacobi needs a matrix with at least one row"),
    (schwarz, (GRID, factorized, 2), {}, "overlap must be 0 or 1; got 2"),
    (schwarz, (jsf.shard(S, MESH, format="csr"), of_many_degrees), {}, "several structures"),
    (multigrid_from, ([], GRID), {}, r"lie on one device.*from_scipy\(A\.to_scipy\(\)\)"),
    (multigrid, (GRID, np.ones(3)), {}, r"shape \(512, k\); got \(3, 1\)"),
    (multigrid, (GRID, np.full(512, np.nan)), {}, "B has a NaN"),
    (multigrid, (GRID * np.nan,), {}, "A has a NaN or an infinity"),
    (multigrid, (GRID * 1e6,), {"dtype": "float16"}, "float16 holds none above"),
    (multigrid, (GRID.shift(-6.0),), {}, "zero on its diagonal, first in row 0"),
]
# The same of a TypeError.
TYPES = [
    (chebyshev, (A,), {"M": lambda r: r}, "M must be a pytree with a shape"),
    *((chebyshev, (A,), {"bounds": b}, "must be two numbers") for b in (3.0, (1.0, 2.0, 3.0), "ab")),
    (chebyshev, (S,), {}, "convert a sparse matrix once"),
    (block_jacobi, (A, 2.5), {}, "whole number; got 2.5"),
    (block_jacobi, (S, 3), {}, "convert a SciPy matrix"),
    (coarse_space, (A, W * 1j), {}, r"W is complex and A is not; pass real columns, or A.astype\(complex128\)"),
    (coarse_space, (A, np.full((81, 2), "a")), {}, "dtype|type"),
    (coarse_space, (A, None), {}, "W must be an array of numbers; got NoneType"),
    (coarse_space, (S, W), {}, "A is SciPy's; convert"),
    (subdomains, (np.ones(6), np.zeros(6)), {}, "parts must be whole numbers; got float64"),
    (incomplete_lu, (np.eye(3),), {}, "takes a jaxsparse matrix, got ndarray"),
    (incomplete_lu, (S,), {}, "takes a jaxsparse matrix, got csr_array"),
    (jax.jit(incomplete_cholesky), (A,), {}, r"make M outside jit, pass it, and use M\.refreshed\(A\)"),
    (jacobi, (block_jacobi(A, 3),), {}, r"jacobi reads A.diagonal\(\), which BlockJacobi does not have"),
    (schwarz, (GRID, "ilu"), {}, "local must make a preconditioner"),
    (schwarz, (GRID, lambda block: None), {}, "what local makes of a block must be a matrix with a shape and @"),
    (schwarz, (GRID, lambda block: sp.linalg.splu(block.to_scipy().tocsc())), {}, "SciPy's SuperLU.*factorized"),
    (jax.jit(multigrid), (GRID,), {}, "A, which is traced"),
    (jax.jit(lambda data: multigrid(GRID.with_data(data))), (GRID.data,), {}, "build M outside jit"),
]
ROWS = [(error, *row) for error, rows in ((ValueError, VALUES), (TypeError, TYPES)) for row in rows]
ROWS += [(SolverError, ilu, (csr(np.diag([2.0, 0])),), {}, "singular")]


@pytest.mark.parametrize(("error", "make", "arguments", "options", "words"), ROWS, ids=range(len(ROWS)))
def test_is_what_cannot_be_refused_in_words(error, make, arguments, options, words):
    with pytest.raises(error, match=words):
        make(*arguments, **options)
