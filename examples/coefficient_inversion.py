"""Recover a diffusion field from observations: the derivative of a solve with respect to every entry of its matrix.

A medium with an unknown conductivity in each of its cells is heated in a few places, one after another, and
thermometers on a coarse grid report. The matrix −∇·k∇ has the entries T·k with a sparse T, whose rows hold the
contributions of the cells. All experiments are solved as columns of one system. SciPy's L-BFGS minimises misfit and
roughness with gradients through `cg`, which cost one more solve with the same matrix for all cells at once.

    python examples/coefficient_inversion.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg, precond

jax.config.update("jax_enable_x64", True)

N = 24  # points a side
SOURCES = 6


def gradient(n: int) -> sp.csr_array:
    """Differences along the edges of an n × n grid whose boundary is held at zero, [edges, points]."""
    ends = sp.diags_array([np.ones(n), -np.ones(n)], offsets=[0, -1], shape=(n + 1, n))
    return sp.vstack([sp.kron(ends, sp.eye_array(n)), sp.kron(sp.eye_array(n), ends)]).tocsr()


def assembly(G: sp.csr_array) -> tuple[sp.csr_array, sp.csr_array]:
    """The pattern of Gᵀ·diag(k)·G, and T with its entries T·k in canonical order."""
    pattern = sp.csr_array(abs(G).T @ abs(G))
    place = sp.csr_array((np.arange(pattern.nnz), pattern.indices, pattern.indptr), pattern.shape)
    entries = G.tocoo()
    pairs = sp.csr_array((np.arange(G.nnz), entries.row, np.arange(G.nnz + 1)), (G.nnz, G.shape[0]))
    first, second = (pairs @ pairs.T).nonzero()  # two entries of G on the same edge
    at = place[entries.col[first], entries.col[second]]
    products = entries.data[first] * entries.data[second]
    return pattern, sp.csr_array((products, (np.asarray(at).ravel(), entries.row[first])), (pattern.nnz, G.shape[0]))


G = gradient(N)
pattern, T = assembly(G)
A, T = jsf.from_scipy(pattern), jsf.from_scipy(T)
to_edges = jsf.from_scipy(0.5 * abs(G))  # the conductivity of an edge is the mean of its ends'
rng = np.random.default_rng(0)
sources = np.zeros((N * N, SOURCES))
sources[rng.choice(N * N, SOURCES, replace=False), np.arange(SOURCES)] = 1.0
seen = np.arange(N * N).reshape(N, N)[1::3, 1::3].ravel()


def temperatures(log_k, A, T, rtol=1e-9):
    """The temperatures of every experiment, [points, experiments]."""
    matrix = A.with_data(T @ (to_edges @ jnp.exp(log_k)))
    return cg(matrix, sources, M=precond.jacobi(matrix), rtol=rtol).x


def objective(log_k, A, T, observed):
    misfit = (temperatures(log_k, A, T)[seen] - observed) / jnp.abs(observed).max(axis=0)
    field = log_k.reshape(N, N)
    roughness = jnp.sum(jnp.diff(field, axis=0) ** 2) + jnp.sum(jnp.diff(field, axis=1) ** 2)
    return jnp.sum(misfit**2) + 1e-6 * roughness


def main():
    x, y = np.meshgrid(*2 * [np.linspace(0, 1, N)], indexing="ij")
    truth = (
        np.exp(-30 * ((x - 0.35) ** 2 + (y - 0.6) ** 2)) - 0.8 * np.exp(-30 * ((x - 0.7) ** 2 + (y - 0.3) ** 2))
    ).ravel()
    observed = temperatures(jnp.asarray(truth), A, T, rtol=1e-12)[seen]
    value_and_grad = jax.jit(jax.value_and_grad(objective))
    result = scipy.optimize.minimize(
        lambda log_k: tuple(np.asarray(v) for v in value_and_grad(log_k, A, T, observed)),
        np.zeros(N * N),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 150},
    )
    inside = (slice(3, -3), slice(3, -3))
    start, error = (np.linalg.norm((f - truth).reshape(N, N)[inside]) for f in (np.zeros(N * N), result.x))
    print(f"{N * N} cells, {SOURCES} experiments, {seen.size} thermometers, {result.nfev} gradients")
    print(f"misfit {objective(np.zeros(N * N), A, T, observed):.3g} -> {result.fun:.3g}")
    print(f"error of the field, of its size: {error / start:.2f}")
    assert error < 0.2 * start, "the field was not recovered"


if __name__ == "__main__":
    main()
