"""Solves by SuperLU on the host for programs, and with refinement: x ← x + M·(b − A·x) from x = 0 by the factors M."""

import contextlib
import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core.basis import IDENTITY, Reordered
from solvers import host_calls, superlu
from solvers.batched import SHRINKS, Known, on_device
from solvers.core.iterate import System
from solvers.core.stopping import End, Limits, within_rounding
from solvers.solution import SolverError, Status


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class HostFactors:
    """Factors of a traced matrix: a solve calls the host, which keeps the factors of the last few matrices.

    A result is NaN where the matrix has no factors.

    Attributes:
      row, col, values: [nnz], the entries, of which equal places add up.
      known: their pattern, if a batch of matrices with it may be solved on the device.
    """

    row: Array
    col: Array
    values: Array
    n: int = dataclasses.field(metadata={"static": True})
    recipe: superlu.Recipe = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})
    known: Known | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        like = jax.ShapeDtypeStruct(r.shape, jnp.result_type(self.dtype, r))
        options = ("T" if self.is_transposed else "N",)
        return host_calls.call(_solved, self.n, self.recipe, (self.row, self.col, self.values), (r,), like, options)


def _solved(found: superlu.OnHost | None, _: Any, r: Any, way: str) -> Any:
    return np.nan if found is None else found.solve(r, way)


def whole(system: System, is_transposed: bool) -> tuple[Array, End]:
    """A solve by one call of the host, or on the device."""
    M = system.M.A if isinstance(system.M, Reordered) else system.M
    pattern = M.factors.known
    by = _by_host if pattern is None or not pattern.is_served else on_device(pattern, _by_host)
    return by(system, is_transposed)


def _by_host(system: System, is_transposed: bool) -> tuple[Array, End]:
    M, basis, limits = system.M, IDENTITY, system.limits
    if isinstance(M, Reordered):
        M, basis = M.A, M.outer
    F, b = M.factors, basis.leave(system.b)
    numbers = jnp.stack([jnp.asarray(number, float) for number in (limits.rtol, limits.atol, limits.maxiter)])
    like = jax.ShapeDtypeStruct((b.shape[0] + 4, *b.shape[1:]), b.dtype)
    options = ("N" if F.is_transposed == is_transposed else "T",)
    found = host_calls.call(
        _refined, F.n, F.recipe, (F.row, F.col, F.values), (b, numbers), like, options, checks=False
    )
    code, k, norm, Ax_norm = found[F.n :].real
    return basis.enter(found[: F.n]), End(k.astype(jnp.int32), norm, code.astype(jnp.int32), None, Ax_norm)


def refined(found: superlu.OnHost, b: Any, limits: Any, dtype: Any, way: str = "N") -> tuple[np.ndarray, ...]:
    """As `by_these`; factors that are not accurate are made again after a failure."""
    result = by_these(found, b, limits, dtype, way)
    with contextlib.suppress(SolverError, ValueError):
        if result[1].any() and found.repaired():
            return by_these(found, b, limits, dtype, way)
    return result


def by_these(found: superlu.OnHost, b: Any, limits: Any, dtype: Any, way: str) -> tuple[np.ndarray, ...]:
    """SuperLU's x, refined in 64 bits on the host, its code, iterations and residual norm, and ‖A‖·‖x‖ of a failure.

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
        return reported(x, code, steps, size * unit, Ax_norm * unit)


def _refined(found: superlu.OnHost | None, entries: Any, b: Any, numbers: Any, way: str) -> np.ndarray:
    """The results of `refined` in one array, whose last four rows are not x."""
    if found is not None:
        x, *ends = refined(found, b, Limits._make([*numbers, 0, None, None, None]), b.dtype, way)
        return np.concatenate([x, np.stack(ends)])
    size, zero = length(b), np.zeros(b.shape[1:])
    is_finite = ~np.isnan(size) & np.all(np.isfinite(entries[2]))
    code = np.where(is_finite, np.where(size == 0, Status.CONVERGED, Status.SINGULAR), Status.NON_FINITE)
    with np.errstate(over="ignore"):
        x, *ends = reported(np.zeros_like(b), code, zero, np.where(is_finite, size, np.nan), zero)
    return np.concatenate([x, np.stack(ends)])


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
