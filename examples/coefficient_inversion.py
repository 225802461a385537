"""Recover a conductivity field from temperatures: a gradient by every cell, through the solve.

A medium with an unknown conductivity in each of its cells is heated in a few places, one after another, and
thermometers on a coarse grid report. `js.assembly` makes the matrix −∇·k∇ of the conductivities of the edges. All
experiments are solved as columns of one system. SciPy's L-BFGS minimises misfit and roughness with gradients through
`cg`, which cost one more solve with the same matrix for all cells at once.

    python examples/coefficient_inversion.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

N, SOURCES = 24, 6  # points a side, experiments
number = np.pad(
    np.arange(N * N).reshape(N, N), 1, constant_values=-1
)  # the boundary, -1, is held at zero
first = np.concatenate([number[:-1, 1:-1].ravel(), number[1:-1, :-1].ravel()])
second = np.concatenate([number[1:, 1:-1].ravel(), number[1:-1, 1:].ravel()])
rows, cols = (
    np.concatenate([first, second, first, second]),
    np.concatenate([first, second, second, first]),
)
inside = (rows >= 0) & (cols >= 0)
grid = js.assembly(rows[inside], cols[inside], (N * N, N * N))
rng = np.random.default_rng(0)
sources = np.zeros((N * N, SOURCES))
sources[rng.choice(N * N, SOURCES, replace=False), np.arange(SOURCES)] = 1.0
seen = np.arange(N * N).reshape(N, N)[1::3, 1::3].ravel()


def temperatures(log_k, rtol=1e-9):
    """The temperatures of every experiment, [points, experiments]."""
    k = jnp.append(jnp.exp(log_k), 0.0)  # the boundary is number -1
    edges = (
        k[first] + k[second]
    ) / 2  # the conductivity of an edge is the mean of its ends'
    A = grid(jnp.concatenate([edges, edges, -edges, -edges])[inside])
    return js.cg(A, sources, M=js.precond.jacobi(A), rtol=rtol).x


def objective(log_k, observed):
    misfit = (temperatures(log_k)[seen] - observed) / jnp.abs(observed).max(
        axis=0
    )
    field = log_k.reshape(N, N)
    roughness = jnp.sum(jnp.diff(field, axis=0) ** 2) + jnp.sum(
        jnp.diff(field, axis=1) ** 2
    )
    return jnp.sum(misfit**2) + 1e-6 * roughness


def main():
    x, y = np.meshgrid(*2 * [np.linspace(0, 1, N)], indexing="ij")

    def hill(a, b):
        return np.exp(-30 * ((x - a) ** 2 + (y - b) ** 2)).ravel()

    truth = hill(0.35, 0.6) - 0.8 * hill(0.7, 0.3)
    observed = temperatures(jnp.asarray(truth), rtol=1e-12)[seen]
    value_and_grad = jax.jit(jax.value_and_grad(objective))
    result = scipy.optimize.minimize(
        lambda log_k: tuple(
            np.asarray(v) for v in value_and_grad(log_k, observed)
        ),
        np.zeros(N * N),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 150},
    )
    middle = (slice(3, -3), slice(3, -3))
    start, error = (
        np.linalg.norm((f - truth).reshape(N, N)[middle])
        for f in (np.zeros(N * N), result.x)
    )
    print(
        f"{N * N} cells, {SOURCES} experiments, {seen.size} thermometers, "
        f"{result.nfev} gradients"
    )
    print(
        f"misfit {objective(np.zeros(N * N), observed):.3g} -> {result.fun:.3g}"
    )
    print(f"error of the field, of its size: {error / start:.2f}")
    assert error < 0.2 * start, "the field was not recovered"

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        slope = value_and_grad(np.zeros(N * N), observed)[1]
        shown = {
            "true log k": truth,
            "recovered log k": result.x,
            "negative gradient": -slope / np.abs(slope).max(),
        }
        figure, axes = pyplot.subplots(
            1, 3, figsize=(7.2, 2.6), layout="constrained"
        )
        for ax, (title, field) in zip(axes, shown.items(), strict=True):
            image = ax.imshow(
                field.reshape(N, N).T,
                cmap="RdBu_r",
                vmin=-1,
                vmax=1,
                origin="lower",
            )
            ax.set(title=title, xticks=[], yticks=[])
        axes[1].plot(*np.unravel_index(seen, (N, N)), ".", color="black", ms=4)
        figure.colorbar(image, ax=axes)
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
