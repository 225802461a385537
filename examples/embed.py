"""Fit the conductivity of a plate and the strength of its source: a solve inside a jitted, differentiated function.

Heat spreads over a plate from a source at a known place. Gauss-Newton steps, with the Jacobian through the solver, find
the conductivity of the plate and the strength of the source from the temperatures.

    python examples/embed.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

A = js.from_scipy(js.gallery.poisson(100, dim=2))  # 10,000 unknowns
n = A.shape[0]
source = jnp.zeros(n).at[n // 2 + 50].set(1.0)


def temperature(parameters, A):
    """u with −conductivity·Δu + u/100 = strength·source."""
    conductivity, strength = jnp.exp(parameters)
    return js.cg(
        lambda u: conductivity * (A @ u) + 0.01 * u,
        strength * source,
        rtol=1e-10,
    ).x


@jax.jit
def gauss_newton(parameters, A, observed):
    residual = temperature(parameters, A) - observed
    jacobian = jax.jacfwd(temperature)(parameters, A)
    step, *_ = jnp.linalg.lstsq(jacobian, residual)
    return parameters - step, jnp.linalg.norm(residual) / jnp.linalg.norm(
        observed
    )


observed = temperature(jnp.log(jnp.array([2.0, 5.0])), A)
parameters = jnp.log(jnp.array([1.0, 1.0]))
misfits = []
for step in range(20):
    parameters, misfit = gauss_newton(parameters, A, observed)
    misfits.append(misfit)
    print(
        f"step {step}: misfit {misfit:.1e}, conductivity and strength "
        f"{jnp.exp(parameters).round(6)}"
    )
    if misfit < 1e-8:
        break
assert misfit < 1e-8, "the fit did not converge"

if len(sys.argv) > 1:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, 2, figsize=(10, 3.8), layout="constrained"
    )
    image = axes[0].imshow(
        temperature(parameters, A).reshape(100, 100)[30:70, 30:70], cmap="magma"
    )
    axes[0].set(title="temperature around the source", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[0])
    axes[1].semilogy(misfits, "o-")
    axes[1].set(title="misfit", xlabel="Gauss-Newton step")
    figure.savefig(sys.argv[1])
