"""Solves by SuperLU on the host with refinement: x ← x + M·(b − A·x) from x = 0 by the factors M."""

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from solvers.batched import SHRINKS
from solvers.core.stopping import within_rounding
from solvers.solution import SolverError, Status
from solvers.superlu import OnHost


def refined(found: OnHost, b: Any, limits: Any, dtype: Any, way: str = "N") -> tuple[np.ndarray, ...]:
    """SuperLU's x, refined in 64 bits on the host, its code, iterations and residual norm, and ‖A‖·‖x‖ of a failure.

    Factors that are not accurate are made again after a failure.

    Args:
      b: [n] or [n, k], of NumPy or on one device.
      dtype: that of x.
      way: "T" for a system with Aᵀ.
    """
    S = found.host.S.T if way == "T" else found.host.S
    rhs = np.asarray(b, np.complex128 if b.dtype.kind == "c" else S.dtype)
    with np.errstate(all="ignore"):
        b_norm, unit = length(rhs), 1.0
        if is_scaled := not _is_moderate(b_norm):
            unit = unit_of(rhs, S)
            rhs = rhs / unit
            b_norm = length(rhs)
        least = np.maximum(limits.rtol * b_norm, limits.atol / unit)
        x, size, last = np.zeros(rhs.shape, dtype), b_norm, np.inf
        exact, r, r_norm, rounded = np.zeros_like(rhs), rhs, b_norm, x
        steps, diverges = np.zeros(b_norm.shape, np.int32), np.zeros(b_norm.shape, bool)
        while True:
            goes_on = (size > least) & (r_norm > least) & (r_norm <= last / 2)
            if not goes_on.any() or steps.max() >= limits.maxiter:
                break
            steps, last, z = steps + goes_on, r_norm, found.solve(r, way)
            if steps.max() > 1:
                diverges = diverges | goes_on & (length(z) > SHRINKS * length(exact))
            exact = exact + (z if goes_on.all() else np.where(goes_on, z, 0))
            r, rounded = rhs - S @ exact, (exact * unit if is_scaled else exact).astype(dtype, copy=False)
            r_norm = rounded_norm = length(r)
            if rounded is not exact:
                rounded_norm = length(rhs - S @ (rounded / unit))
            better = rounded_norm < size
            if better.all():
                x, size = rounded, rounded_norm
            else:
                x, size = np.where(better, rounded, x), np.where(better, rounded_norm, size)
        code, Ax_norm = np.zeros(b_norm.shape, np.int32), np.zeros_like(b_norm)
        if not (size <= least).all():
            Ax_norm, eps = found.host.longest_column * length(x / unit), jnp.finfo(dtype).eps
            # About the condition number times eps: x has grown until its rounding hides the residual.
            is_rounding = within_rounding(size, Ax_norm, b_norm, least, eps, np) & ~diverges
            is_held = length(rounded / unit - exact) <= eps * length(exact)  # by the dtype
            otherwise = np.where(is_held, Status.STAGNATION, Status.OUT_OF_RANGE)
            otherwise = np.where(goes_on, Status.MAXITER, otherwise)
            is_lost = ~(is_rounding | (size <= least)) & np.isfinite(b_norm)
            if is_lost.any() and (np.any(diverges) or not found.condition * eps < 0.1):
                otherwise = Status.SINGULAR
            code = np.where(is_rounding, Status.ROUNDED, np.where(np.isfinite(b_norm), otherwise, Status.NON_FINITE))
            code = np.where(size <= least, Status.CONVERGED, code)
        result = reported(x, code, steps, size * unit, Ax_norm * unit)
    if result[1].any() and found.better is None:
        with contextlib.suppress(SolverError, ValueError):
            if (other := found.repaired()) is not found:
                return refined(other, b, limits, dtype, way)
    return result


def reported(x: np.ndarray, code: Any, steps: Any, size: Any, Ax_norm: Any) -> tuple[np.ndarray, ...]:
    """x and how its solve ended: with OUT_OF_RANGE if x's dtype cannot hold the residual norm `size`."""
    real = np.real(x).dtype
    size, Ax_norm = size.astype(real), Ax_norm.astype(real)
    return x, np.where(np.isinf(size), Status.OUT_OF_RANGE, code).astype(np.int32), steps, size, Ax_norm


def length(a: Any) -> np.ndarray:
    """‖a‖₂ by column, in 64 bits; no square over- or underflows."""
    a = np.asarray(a, np.complex128 if a.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        norm = np.linalg.norm(a, axis=0)
        if _is_moderate(norm):
            return norm
        if a.dtype.kind == "c":  # magnitudes may overflow, and NumPy divides complex numbers by a reciprocal
            a = np.concatenate([a.real, a.imag])
        size = np.max(np.abs(a), axis=0)
        return size * np.linalg.norm(a / np.where(size == 0, 1, size), axis=0)


def _is_moderate(norm: Any) -> bool:
    """Whether the squares of vectors with these norms, and of what matters beside them, lie in the range of 64 bits."""
    if norm.ndim == 0:
        return bool(1e-100 < norm < 1e100)  # `np.all` would cost 4 µs
    return bool(np.all((norm > 1e-100) & (norm < 1e100)))


def unit_of(b: Any, S: Any) -> np.ndarray:
    """A power of two for each column of b; neither b over it nor S⁻¹·b over it leaves the range of 64 bits.

    XLA calls the host in a mode in which subnormal numbers are zeros.
    """
    _, of_b = np.frexp(np.max(np.maximum(np.abs(b.real), np.abs(b.imag)), axis=0))
    _, of_S = np.frexp(np.max(np.abs(S.data), initial=0))
    return np.ldexp(1.0, np.clip(of_b - of_S // 2, -1000, 1000))
