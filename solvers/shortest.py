"""The shortest of many solutions: least squares, and what is left of a solution without its part in the null space."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from solvers import on_host
from solvers.core import arguments, opaque
from solvers.core.solve import Settings
from solvers.core.space import length
from solvers.core.stopping import within_rounding
from solvers.direct import placed_like
from solvers.host import Host
from solvers.lsmr import by_settings
from solvers.solution import SINGULAR, Solution, Status, Told

GRADIENT, TINY = 1e-4, 1e-300
SHOWN = 3  # null vectors, and unknowns of each, that a report names


@jax.jit
def of_least_squares(A: Any, b: Any, x: Any, code: Any) -> Any:
    """The shortest of a symmetric A's least-squares solutions, from any: A takes its residual to 0.

    x itself if the residual is too far from A's kernel for that. Liu, Milzarek and Roosta (2023), Obtaining
    pseudo-inverse solutions with MINRES.
    """
    is_least = code == Status.LEAST_SQUARES
    r = jnp.where(is_least, b - A @ x, 1)  # a norm has no derivative at 0
    size = jnp.linalg.norm(r, axis=0)
    unit = r / jnp.where(size == 0, 1, size)
    shorter = x - unit * jnp.sum(unit.conj() * x, axis=0)
    keeps = jnp.linalg.norm(b - A @ shorter, axis=0) <= (1 + 1e-10) * size
    return jnp.where(is_least & keeps, shorter, x)


def by_lsmr(A: Any, b: Any, x0: Any, settings: Settings) -> Solution:
    """A least-squares solution, the shortest one if x0 is None; LEAST_SQUARES if it does not solve the system."""
    sol = by_settings(A, b, x0, 0.0, settings)
    code = _code_of_system(sol.code, sol.residual_norm, b, settings.rtol, settings.atol)
    x = opaque.Withheld()((sol.x, code == Status.LEAST_SQUARES))
    return Solution(x, code, sol.n_iterations, sol.residual_norm, sol.norms)


@jax.jit
def _code_of_system(code: Any, size: Any, b: Any, rtol: Any, atol: Any) -> Any:
    is_solved = jnp.isfinite(size) & (size <= (1 + 1e-6) * jnp.maximum(rtol * length(b), atol))
    return jnp.where((code == Status.CONVERGED) & ~is_solved, jnp.int32(Status.LEAST_SQUARES), code)


def by_singular_values(host: Host, b: Any, dtype: Any, settings: Settings) -> Solution:
    """The shortest least-squares solution, by LAPACK on the host; singular values below n·eps of the largest are 0."""
    S, eps = host.S, jnp.finfo(dtype).eps
    rhs = np.asarray(b).astype(np.result_type(S, b.dtype, np.float64))
    with np.errstate(all="ignore"):
        unit = on_host.unit_of(rhs, S)
        rhs = rhs / unit
        exact, _, _, values = np.linalg.lstsq(S.toarray(), rhs, rcond=host.n * host.eps)
        x = (exact * unit).astype(dtype)
        x = np.where(np.all(np.isfinite(x), axis=0), x, 0)
        size, b_norm, x_norm = (on_host.length(v) for v in (rhs - S @ (x / unit), rhs, x / unit))
        is_held = on_host.length(x / unit - exact) <= eps * on_host.length(exact)  # by the dtype
        least = np.maximum(settings.rtol * b_norm, settings.atol / unit)
        is_rounding = within_rounding(size, values[0] * x_norm, b_norm, least, eps, np)
        is_met = (size <= least) & np.isfinite(least)
        code = np.where(is_held, np.int32(Status.LEAST_SQUARES), np.int32(Status.OUT_OF_RANGE))
        code = np.where(is_met, np.int32(0), np.where(is_held & is_rounding, np.int32(Status.ROUNDED), code))
        return placed_like(b, on_host.reported(x, code, np.ones_like(code), size * unit, size)[:4])


def shortened(sol: Solution, b: Any, host: Host, Z: Any, rtol: Any, atol: Any, is_singular: bool = False) -> Solution:
    """A solution less its part in the null space of A, where that is known; its derivatives are those of `sol`.

    `tried` then ends with a line on the null space.

    Args:
      Z: [n, k], orthonormal null vectors that A's factors show; None: there are none. Those that are constant on
        connected parts of A need no factors.
    """
    spaces, words = [Z for Z in (host.constants, Z) if Z is not None], in_words(host, Z, is_singular)
    sol = dataclasses.replace(sol, _told=Told((sol.method, *sol.tried, *words))) if words else sol
    if not spaces:
        return sol
    rhs = np.asarray(arguments.still(b), host.S.dtype if b.dtype.kind != "c" else np.complex128)
    old, size = (np.asarray(arguments.still(a)) for a in (sol.x, sol.residual_norm))
    x = old.astype(np.result_type(old, np.float64))
    for Z in spaces:
        x = x - Z @ (Z.conj().T @ x)
    x = x.astype(old.dtype)
    norm = on_host.length(rhs - host.S @ x)
    keeps = norm <= np.maximum(np.maximum(rtol * on_host.length(rhs), atol), (1 + 1e-6) * size)
    x = sol.x - arguments.still(sol.x) + np.where(keeps, x, old)  # with the derivatives of sol.x
    return dataclasses.replace(sol, x=x, residual_norm=jnp.where(keeps, norm.astype(size.dtype), sol.residual_norm))


def in_words(host: Host, Z: Any, is_singular: bool = False) -> tuple[str, ...]:
    """A line on the vectors that A takes to 0, as far as they are known without work; none for a regular A."""
    if Z is not None:
        largest = [np.argsort(-np.abs(z), kind="stable")[:SHOWN] for z in Z.T[:SHOWN]]
        each = "; ".join(", ".join(map(str, np.sort(at))) for at in largest)
        count = "a vector" if Z.shape[1] == 1 else f"{Z.shape[1]} vectors"
        return (f"{SINGULAR}: it takes {count} to 0, largest at the unknowns {each}; nullspace(A) has all",)
    if (constants := host.constants) is not None:
        parts = constants.shape[1]
        where = (
            "constant vectors" if parts == 1 else f"vectors that are constant on each of its {parts} connected parts"
        )
        return (f"{SINGULAR}: it takes {where} to 0",)
    return (f"{SINGULAR}: nullspace(A) finds the vectors that it takes to 0",) if is_singular else ()


def as_small_as(part: np.ndarray, b: Any, rtol: Any) -> float:
    """The rtol, at most the given one, by which a residual of b - part is GRADIENT of `part` in all columns or less."""
    sizes, rest = on_host.length(part), on_host.length(np.asarray(b) - part)
    return min(float(rtol), GRADIENT * float(np.min(sizes / np.maximum(rest, TINY), where=sizes > 0, initial=1)))


def for_all_of(b: Any, sol: Solution, host: Host, rtol: Any, atol: Any) -> Solution:
    """The least-squares solution for b from `sol`, that for what is left of b."""
    size = on_host.length(np.asarray(b) - host.S @ np.asarray(sol.x))
    is_least = np.asarray(sol.success) & (size > np.maximum(rtol * on_host.length(b), atol))
    code = jnp.where(is_least, jnp.int32(Status.LEAST_SQUARES), sol.code)
    size = jnp.asarray(size, sol.residual_norm.dtype)
    return dataclasses.replace(sol, code=code, residual_norm=size)
