"""Train a network through a Poisson solve: it learns the conductivity of a plate from temperatures.

The network gives the conductivity of every edge of a grid from the edge's place. The matrix is assembled of these, `cg`
solves, and optax's Adam follows the gradient of the misfit through the solve into the weights.

    python examples/training.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsparse as js

N, STEPS = 16, 300
number = np.arange(N * N).reshape(N, N)
first = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
second = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
place = np.stack(np.unravel_index(number.ravel(), (N, N)), axis=1) / (
    N - 1
)  # [points, 2]
middle = (place[first] + place[second]) / 2  # [edges, 2]
diagonal = number.ravel()
rows = np.concatenate([first, second, first, second, diagonal])
cols = np.concatenate([first, second, second, first, diagonal])
grid = js.assembly(rows, cols, (N * N, N * N), "csr")
sources = (
    np.random.default_rng(0).standard_normal((N * N, 4)).astype(np.float32)
)


def temperatures(k):  # [edges] -> [points, sources]
    A = grid(jnp.concatenate([k, k, -k, -k, jnp.full(N * N, 0.05)]))
    return js.cg(A, sources, rtol=1e-5, maxiter=500).x


def conductivity(weights):
    hidden = jnp.tanh(middle @ weights["in"] + weights["shift"])
    return jax.nn.softplus(hidden @ weights["out"]) + 0.05


def main():
    truth = 0.3 + np.exp(-12 * ((middle - 0.4) ** 2).sum(axis=1)).astype(
        np.float32
    )
    observed = temperatures(truth)
    key = jax.random.key(0)
    weights = {
        "in": 3 * jax.random.normal(key, (2, 24)),
        "shift": jax.random.normal(jax.random.fold_in(key, 1), (24,)),
        "out": 0.1 * jax.random.normal(jax.random.fold_in(key, 2), (24,)),
    }
    optimizer = optax.adam(2e-2)

    @jax.jit
    def step(weights, state):
        def misfit(weights):
            return jnp.mean(
                (temperatures(conductivity(weights)) - observed) ** 2
            ) / jnp.mean(observed**2)

        loss, gradient = jax.value_and_grad(misfit)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, loss

    state, losses = optimizer.init(weights), []
    print(f"{'step':>6}{'misfit':>12}{'error of the conductivity':>28}")
    for number in range(STEPS + 1):
        error = np.linalg.norm(conductivity(weights) - truth) / np.linalg.norm(
            truth
        )
        weights, state, loss = step(weights, state)
        losses.append(loss)
        if number % 60 == 0:
            print(f"{number:6}{loss:12.2e}{error:28.3f}")
    assert error < 0.1, "the conductivity was not learned"

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        shown = {
            "true conductivity": truth,
            "learned by the network": conductivity(weights),
        }
        figure, axes = pyplot.subplots(
            1, 3, figsize=(10, 3.3), layout="constrained"
        )
        for ax, (title, k) in zip(axes, shown.items(), strict=False):
            image = ax.scatter(
                *middle.T, c=k, s=18, cmap="viridis", vmin=0.2, vmax=1.3
            )
            ax.set(title=title, xticks=[], yticks=[], aspect="equal")
        figure.colorbar(image, ax=axes[1])
        axes[2].semilogy(losses)
        axes[2].set(title="misfit", xlabel="step of Adam")
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
