"""Steer the heating of a plate: implicit time steps in a scan, differentiated by the control.

A plate whose edges are kept cold is heated on a strip next to its centre. Which power over time brings the centre to a
wanted course? Every step of implicit Euler is a solve; `jax.grad` runs through all of them backwards, a transposed
solve each, and the memory is that of the states.

    python examples/time_stepper.py [PICTURE.png]
"""

import functools
import sys

import jax
import jax.numpy as jnp

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

N, STEPS, DT = 24, 20, 8e-3
A = js.from_scipy(js.gallery.poisson(N, dim=2) * (N + 1) ** 2)  # −Δ
n = A.shape[0]
heater = jnp.zeros((N, N)).at[:, 6:9].set(100.0).ravel()
centre = n // 2 + N // 2
wanted = 0.2 * (1 - jnp.cos(jnp.linspace(0, 2 * jnp.pi, STEPS)))


def course(power, A):
    """The temperature of the centre after every step."""

    def step(u, p):
        implicit = lambda v: v + DT * (A @ v)  # noqa: E731
        u = js.cg(implicit, u + DT * p * heater, u, rtol=1e-10).x
        return u, u[centre]

    return jax.lax.scan(step, jnp.zeros(n), power)[1]


def misfit(power, A):
    return jnp.sum((course(power, A) - wanted) ** 2) + 1e-4 * jnp.sum(power**2)


def main():
    # The misfit is quadratic in the power: one step of Newton, solved by cg
    # with products of the Hessian, is the answer.
    zero = jnp.zeros(STEPS)
    gradient = jax.jit(jax.grad(misfit))
    hessian = jax.jit(
        lambda v, A: jax.jvp(lambda p: jax.grad(misfit)(p, A), (zero,), (v,))[1]
    )
    power = (
        js.cg(functools.partial(hessian, A=A), -gradient(zero, A), rtol=1e-6)
        .raise_for_status()
        .x
    )
    before, after = (
        float(jnp.sqrt(jnp.mean((course(p, A) - wanted) ** 2)))
        for p in (zero, power)
    )
    print(f"{STEPS} implicit steps of {n} unknowns")
    print(
        f"distance from the wanted course: {before:.3g} without heat, "
        f"{after:.3g} with the power found"
    )
    assert after < 0.1 * before, "the power was not found"

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(
            1, 2, figsize=(10, 3.5), layout="constrained"
        )
        axes[0].plot(wanted, "o", label="wanted")
        axes[0].plot(course(power, A), label="with the power found")
        axes[0].set(title="temperature of the centre", xlabel="step")
        axes[0].legend()
        axes[1].step(range(STEPS), power, where="mid")
        axes[1].set(title="power of the heater", xlabel="step")
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
