"""Least-squares solutions of singular systems, for `solve`: LEAST_SQUARES where they do not solve the system."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from solvers.core.stopping import ROUNDED
from solvers.host import Host
from solvers.lsmr import lsmr
from solvers.solution import Solution, Status


def by_lsmr(A: Any, b: Any, x0: Any, settings: Any) -> Solution:
    """By LSMR, the shortest one if x0 is None."""
    sol = lsmr(A, b, x0, **settings)
    tolerance = jnp.maximum(settings["rtol"] * jnp.linalg.norm(b, axis=0), settings["atol"])
    is_least = (sol.code == Status.CONVERGED) & (sol.residual_norm > tolerance * (1 + 1e-6))
    code = jnp.where(is_least, jnp.int32(Status.LEAST_SQUARES), sol.code)
    return Solution(sol.x, code, sol.n_iterations, sol.residual_norm, sol.norms)


def by_singular_values(host: Host, b: Any, dtype: Any, settings: Any) -> Solution:
    """The shortest one, by LAPACK on the host: singular values below n·eps of the largest count as zero."""
    S, eps = host.S, jnp.finfo(dtype).eps
    rhs = np.asarray(b).astype(np.result_type(S, b.dtype, np.float64))
    x, _, _, values = np.linalg.lstsq(S.toarray(), rhs, rcond=host.n * np.finfo(S.dtype).eps)
    x = x.astype(dtype)
    r = rhs - S @ x
    size, b_norm, x_norm = (np.linalg.norm(v, axis=0) for v in (r, rhs, x))
    rounding = ROUNDED * eps * (values[0] * x_norm + b_norm)
    code = np.where(size <= rounding, Status.ROUNDED, Status.LEAST_SQUARES)
    code = np.where(size <= np.maximum(settings["rtol"] * b_norm, settings["atol"]), Status.CONVERGED, code)
    ends = code.astype(np.int32), np.ones_like(code, np.int32), size.astype(jnp.finfo(dtype).dtype)
    x, code, steps, size = jax.device_put((x, *ends), b.sharding if b.committed else None)
    return Solution(x, code, steps, size, None)
