"""A solve inside a jitted, differentiated function: fit an unknown conductivity and source strength.

Heat spreads over a plate from a source at a known place. Gauss-Newton steps, with the Jacobian through the solver, find
the conductivity of the plate and the strength of the source from the temperatures.

    python examples/embed.py
"""

import jax
import jax.numpy as jnp

import jaxsparse_fmt as jsf
from solvers import cg

jax.config.update("jax_enable_x64", True)

A = jsf.from_scipy(jsf.gallery.poisson(100, dim=2))  # 10,000 unknowns
n = A.shape[0]
source = jnp.zeros(n).at[n // 2 + 50].set(1.0)


def temperature(parameters, A):
    """u with −conductivity·Δu + u/100 = strength·source."""
    conductivity, strength = jnp.exp(parameters)
    return cg(lambda u: conductivity * (A @ u) + 0.01 * u, strength * source, rtol=1e-10).x


@jax.jit
def gauss_newton(parameters, A, observed):
    residual = temperature(parameters, A) - observed
    jacobian = jax.jacfwd(temperature)(parameters, A)
    step, *_ = jnp.linalg.lstsq(jacobian, residual)
    return parameters - step, jnp.linalg.norm(residual) / jnp.linalg.norm(observed)


observed = temperature(jnp.log(jnp.array([2.0, 5.0])), A)
parameters = jnp.log(jnp.array([1.0, 1.0]))
for step in range(20):
    parameters, misfit = gauss_newton(parameters, A, observed)
    print(f"step {step}: misfit {misfit:.1e}, conductivity and strength {jnp.exp(parameters).round(6)}")
    if misfit < 1e-8:
        break
assert misfit < 1e-8, "the fit did not converge"
