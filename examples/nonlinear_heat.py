"""Implicit steps of nonlinear heat flow, with a multigrid that serves several steps.

The conductivity 1 + u³ of a plate changes as the plate warms, so every step has a new matrix on the same pattern. A
preconditioner need only be near A⁻¹, so one multigrid serves until the steps of `cg` have doubled; then a new one takes
its place. The table has the iterations of `cg` in each step with Jacobi's preconditioner and with that multigrid.

    python examples/nonlinear_heat.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from solvers import cg, precond

jax.config.update("jax_enable_x64", True)

N, STEPS, DT = 48, 8, 0.5
number = np.arange(N * N).reshape(N, N)
first = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
second = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
every = number.ravel()
rows = np.concatenate([first, second, first, second, every])
cols = np.concatenate([first, second, second, first, every])
grid = jsf.assembly(rows, cols, (N * N, N * N), "csr")
cold = np.where((every % N == 0) | (every % N == N - 1), 2.0, 0.0)  # two edges lose heat
heat = np.zeros(N * N)
heat[number[N // 4 : N // 2, N // 4 : N // 2]] = 1.0


def implicit(u):
    """The matrix of a step: identity + DT·(diffusion with the conductivities of u)."""
    k = DT * (1 + ((u[first] + u[second]) / 2) ** 3)
    return grid(jnp.concatenate([k, k, -k, -k, 1 + DT * cold]))


@jax.jit
def step(u, M):
    A, b = implicit(u), u + DT * heat
    solutions = [cg(A, b, u, M=m, rtol=1e-8) for m in (precond.jacobi(A), M)]
    return solutions[-1].x, [s.iterations for s in solutions], solutions[-1].status


def main():
    u = jnp.zeros(N * N)
    M = precond.multigrid(implicit(u))
    print(f"{'time':>6}{'warmest':>9}{'jacobi':>9}{'multigrid':>11}")
    for number in range(STEPS):
        u, (jacobi, iterations), status = step(u, M)
        assert status == 0 and iterations < 0.75 * jacobi
        print(f"{(number + 1) * DT:6.1f}{float(u.max()):9.3f}{int(jacobi):9}{int(iterations):11}")
        if iterations > 12:
            M = precond.multigrid(implicit(u))


if __name__ == "__main__":
    main()
