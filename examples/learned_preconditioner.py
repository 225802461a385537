"""Learn a preconditioner through the solver: the coefficients of a polynomial in A, by steps of Adam.

With `adjoint="unrolled"` a solve takes a fixed number of steps and is differentiated by its preconditioner too. The
loss is the residual after ten of them, over random right-hand sides. The table has the iterations of a whole solve with
another right-hand side.

    python examples/learned_preconditioner.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

S = js.gallery.poisson(32, dim=2)
A = js.from_scipy(S / 8)  # eigenvalues between 0 and 1
n, DEGREE, STEPS = A.shape[0], 4, 10


def polynomial(weights):
    """r -> Σ weights[i]·(I − A)^i·r; positive definite for positive weights."""

    def apply(r):
        total, power = jnp.zeros_like(r), r
        for weight in jax.nn.softplus(weights):
            total, power = total + weight * power, power - A @ power
        return total

    return apply


def loss(weights, b):
    sol = js.cg(
        A, b, M=polynomial(weights), rtol=0.0, maxiter=STEPS, adjoint="unrolled"
    )
    return jnp.log(sol.residual_norm)


def main():
    optimizer = optax.adam(0.1)
    weights = jnp.zeros(DEGREE + 1)
    state = optimizer.init(weights)

    @jax.jit
    def train(weights, state, b):
        value, gradient = jax.value_and_grad(loss)(weights, b)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    rng = np.random.default_rng(0)
    equal = polynomial(weights)
    for number in range(101):
        weights, state, value = train(weights, state, rng.standard_normal(n))
        if number % 25 == 0:
            print(
                f"step {number:3}: log of the residual after {STEPS} "
                f"iterations {value:.3f}"
            )
    b = rng.standard_normal(n)
    chebyshev = js.precond.chebyshev(A, degree=DEGREE)
    tried = {
        "none": None,
        "equal coefficients": equal,
        "chebyshev": chebyshev,
        "learned": polynomial(weights),
    }
    solved = {
        name: js.cg(A, b, M=M, rtol=1e-8, history=True).raise_for_status()
        for name, M in tried.items()
    }
    counts = [int(sol.iterations) for sol in solved.values()]
    print(f"{'preconditioner':20}iterations")
    for name, count in zip(tried, counts, strict=True):
        print(f"{name:20}{count:10}")
    assert counts[-1] < counts[1] < counts[0]

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
        js.plot.convergence(solved, ax, rtol=1e-8)
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
