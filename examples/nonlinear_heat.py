"""Nonlinear heat flow: implicit steps with new matrices, and a multigrid that serves several of them.

The conductivity 1 + u³ of a plate changes as the plate warms, so every step has a new matrix on the same pattern. A
preconditioner need only be near A⁻¹, so one multigrid serves until the steps of `cg` have doubled; then a new one takes
its place. The table has the iterations of `cg` in each step with Jacobi's preconditioner and with that multigrid.

    python examples/nonlinear_heat.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

N, STEPS, DT = 48, 8, 0.5
number = np.arange(N * N).reshape(N, N)
first = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
second = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
every = number.ravel()
rows = np.concatenate([first, second, first, second, every])
cols = np.concatenate([first, second, second, first, every])
grid = js.assembly(rows, cols, (N * N, N * N), "csr")
cold = np.where(
    (every % N == 0) | (every % N == N - 1), 2.0, 0.0
)  # two edges lose heat
heat = np.zeros(N * N)
heat[number[N // 4 : N // 2, N // 4 : N // 2]] = 1.0


def implicit(u):
    """identity + DT·(diffusion with the conductivities of u)"""
    k = DT * (1 + ((u[first] + u[second]) / 2) ** 3)
    return grid(jnp.concatenate([k, k, -k, -k, 1 + DT * cold]))


@jax.jit
def step(u, M):
    A, b = implicit(u), u + DT * heat
    solutions = [
        js.cg(A, b, u, M=m, rtol=1e-8) for m in (js.precond.jacobi(A), M)
    ]
    return (
        solutions[-1].x,
        [s.iterations for s in solutions],
        solutions[-1].status,
    )


def main():
    u, counts = jnp.zeros(N * N), []
    M = js.precond.multigrid(implicit(u))
    print(f"{'time':>6}{'warmest':>9}{'jacobi':>9}{'multigrid':>11}")
    for number in range(STEPS):
        u, (jacobi, iterations), status = step(u, M)
        assert status == 0 and iterations < 0.75 * jacobi
        print(
            f"{(number + 1) * DT:6.1f}{float(u.max()):9.3f}{int(jacobi):9}"
            f"{int(iterations):11}"
        )
        counts.append((int(jacobi), int(iterations)))
        if iterations > 12:
            M = js.precond.multigrid(implicit(u))

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(
            1, 2, figsize=(10, 3.8), layout="constrained"
        )
        image = axes[0].imshow(u.reshape(N, N), cmap="magma")
        axes[0].set(
            title=f"temperature at time {STEPS * DT:g}", xticks=[], yticks=[]
        )
        figure.colorbar(image, ax=axes[0])
        axes[1].plot(
            range(1, STEPS + 1), counts, "o-", label=["jacobi", "multigrid"]
        )
        axes[1].set(title="iterations of cg", xlabel="time step", ylim=0)
        axes[1].legend()
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
