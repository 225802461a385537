"""The operator whose pairs `eigsh` and `eigs` find, of A·x = λ·M·x: A, M⁻¹·A, or the inverse of A − sigma·M, times M.

That of `eigsh` is self-adjoint in the inner product of M. The pairs nearest to sigma are those of the largest
eigenvalues θ = 1/(λ − sigma) of (A − sigma·M)⁻¹·M, also where M is only semidefinite (Ericsson and Ruhe 1980;
Nour-Omid, Parlett, Ericsson and Jensen 1987).
"""

import contextlib
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import is_traced
from solvers import factors
from solvers.core import arguments
from solvers.core.space import transposed
from solvers.host_calls import call, kept
from solvers.precond import _checks as checks
from solvers.solution import SolverError, Status
from solvers.superlu import LU

# Times eps·(‖A‖/‖M‖ + |sigma|): how far below an eigenvalue sigma is placed, until it helps.
UNITS = (8, 32, 128, 512, 2048)
NEAR = 0.5  # over eps·(‖A‖ + |sigma|·‖M‖): a larger inverse is rounding


class Shift(NamedTuple):
    """sigma, the norms ‖A‖₁ and ‖M‖₁, by which rounding is judged, and the diagonal [n] of M."""

    sigma: Array
    A_norm: Array
    M_norm: Array
    M_diagonal: Array

    def scale(self, values: Any) -> Array:
        """‖A‖ + |λ|·‖M‖."""
        return self.A_norm + jnp.abs(values) * self.M_norm


class Pencil(NamedTuple):
    """A·x = λ·M·x between vectors in the basis."""

    A: Any  # a map of [n] or [n, k]
    M: Any = None  # another; None: the identity
    S: Any = None  # factors of A − sigma·M, or without a shift of M; None where M is the identity, too
    shift: Shift | None = None

    def mass(self, v: Array) -> Array:
        """M·v."""
        return v if self.M is None else self.M(v)

    def inverse(self, v: Array) -> Array:
        """(A − sigma·M)⁻¹·v, or M⁻¹·v."""
        return v if self.S is None else self.S.solve(v).astype(v.dtype)

    def operator(self, v: Array) -> Array:
        return self.inverse(self.A(v) if self.shift is None else self.mass(v))

    def seen(self, v: Array) -> Array:
        """v without unknowns that no other is coupled to in M, in which rounding errors would grow unseen."""
        return v if self.M is None or self.shift is None else jnp.where(self.shift.M_diagonal == 0, 0, v)

    def residual(self, values: Array, X: Array) -> Array:
        """A·X − M·X·λ, [n, k]."""
        return self.A(X) - values * self.mass(X)


@pytree
class Given:
    """A user's M⁻¹ in place of factors."""

    inverse: Any
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def T(self) -> "Given":
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    def solve(self, v: Array) -> Array:
        apply = lambda v: (self.inverse @ v).astype(v.dtype)  # noqa: E731
        return transposed(apply, v)(v) if self.is_transposed else apply(v)


def pair(A: Any, M: Any, sigma: Any, Minv: Any) -> tuple[Any, Any]:
    """A and M, dense ones as sparse, without those that are to be factored and have no entries.

    ValueError, TypeError: they fit neither each other nor `Minv`.
    """
    if Minv is not None and (M is None or sigma is not None):
        raise ValueError("Minv is the inverse of an M, and takes no sigma, with which M is not inverted")
    if M is None and sigma is None:
        return A, M
    A, M = (factors.of_dense(a) if isinstance(a, np.ndarray | Array) and np.ndim(a) == 2 else a for a in (A, M))
    factored = [(A, "A")] * (sigma is not None) + [(M, "M")] * (Minv is None and M is not None)
    for a, name in factored:
        if not (checks.has_entries(a) or checks.is_transpose(a)):
            raise TypeError(
                f"M and sigma need jaxsparse matrices, which have entries; {name} is a {type(a).__name__}: "
                "convert it with from_scipy or from_dense; a function as M needs Minv, and for the smallest pairs of a "
                "function use lobpcg"
            )
    shapes = [getattr(a, "shape", None) for a in (A, M)]
    if None not in shapes and shapes[0] != shapes[1]:
        raise ValueError(f"M has shape {shapes[1]}; with A of shape {shapes[0]} it must have the same")
    return A, M


def of(A: Any, M: Any, Minv: Any, S: Any, shift: Shift | None) -> Pencil:
    return Pencil(A, M, S if Minv is None else Given(Minv), shift)


def inverse_of(M: Any) -> Any:
    """The factors of any regular M."""
    return factors.made(arguments.still(M), LU, "eigs(M=)")


def inverse_of_mass(M: Any) -> Any:
    """The factors of an M that must be Hermitian and positive definite; a traced M is not checked."""
    M = arguments.still(M)
    if is_traced(M):
        return factors.made(M, LU, "eigsh(M=)")
    with contextlib.suppress(SolverError):  # singular, or not finite
        found = factors.on_host(M, ("cholesky",), "eigsh(M=)")
        made: Any = factors.split(found, jnp.promote_types(M.dtype, jnp.float32))
        positive = found.host.symmetric and np.all(np.real(made.inverse_pivots) > 0)
        if positive and np.array_equal(found.made.perm_r, found.made.perm_c):
            return jax.device_put(made)
    raise ValueError(
        "M is not symmetric (Hermitian) and positive definite with finite entries, as the M of A·x = λ·M·x must be; "
        "with sigma it may be singular"
    )


def shifted(A: Any, M: Any, sigma: Any, maker: str = "eigsh") -> tuple[Any, Shift]:
    """The factors of A − sigma·M, and the shift that they have.

    The host moves sigma by a few rounding errors where the factors do not exist, or are those of an eigenvalue; for
    `eigs` by a few √eps.

    Raises:
      SolverError: A − sigma·M is known, and singular for every sigma. Of a NaN in A or M a solve gives NaN.
    """
    hermitian, maker = maker == "eigsh", f"{maker}(sigma=)"
    sigma, n = _number(A, M, sigma, hermitian), checks.square(A, maker)
    A, M, sigma = arguments.still((A, M, sigma))
    every = np.arange(n, dtype=np.int32)
    row, col, a = factors.entries(A, maker)
    row_M, col_M, m = (every, every, np.ones(n, a.dtype)) if M is None else factors.entries(M, maker)
    dtype = jnp.promote_types(jnp.promote_types(a.dtype, m.dtype), sigma.dtype)
    units = tuple(u if hermitian else u / float(jnp.finfo(dtype).eps) ** 0.5 for u in UNITS)
    xp: Any = jnp if is_traced(row, col, a, row_M, col_M, m, sigma) else np  # a program a step would take a second
    row, col = (xp.concatenate(list(map(xp.asarray, pair))) for pair in ((row, row_M), (col, col_M)))
    a, m = (xp.asarray(values).astype(dtype) for values in (a, m))
    entries, row_M, real = (row, col, a, m), row[a.size :], jnp.finfo(dtype).dtype
    on_diagonal = xp.where(row_M == col[a.size :], m.real, 0)
    if xp is jnp or not (np.all(np.isfinite(a)) and np.all(np.isfinite(m))):
        xp = jnp  # the numbers are traced, unless all else is known
        (numbers,) = call(_shifts, (n, units), (*entries, sigma), (jax.ShapeDtypeStruct((3,), sigma.dtype),))
        S: Any = factors.HostFactors(row, col, xp.concatenate([a, -numbers[0] * m]), n, LU)
        diagonal: Any = jnp.zeros(n, real).at[row_M].add(on_diagonal)
    else:
        found, numbers = _placed(n, units, *entries, sigma)
        if found is None:
            raise SolverError(
                Status.SINGULAR,
                "A − sigma·M is singular for every sigma: A and M have a null vector in common; remove its unknowns",
            )
        S, diagonal = factors.split(found, dtype), np.bincount(row_M, on_diagonal, n).astype(real)
    A_norm, M_norm = (xp.asarray(number).real.astype(real) for number in numbers[1:])
    return jax.device_put((S, Shift(xp.asarray(numbers[0], sigma.dtype), A_norm, M_norm, diagonal)))


def _shifts(each: Any, n: int, units: tuple[float, ...]) -> Any:
    """The numbers of a `Shift`, [3], for each member of a batch; the host keeps the factors."""
    return [(_placed(n, units, *given)[1],) for given in each]


def _number(A: Any, M: Any, sigma: Any, is_real: bool) -> Any:
    """sigma in the precision of A and M together, in which it is moved."""
    is_number = not np.ndim(sigma) and isinstance(sigma, (int, float, complex, np.number, Array))
    if not is_number or (is_real and jnp.iscomplexobj(sigma)):
        raise TypeError(f"sigma must be a {'real ' if is_real else ''}number; got {sigma!r}")
    if not is_traced(sigma) and not np.isfinite(sigma):
        raise ValueError(f"sigma must be finite; got {sigma}")
    real = jnp.finfo(jnp.result_type(A.dtype, *([] if M is None else [M.dtype]), jnp.float32)).dtype
    sigma = sigma if isinstance(sigma, Array) else np.asarray(sigma)
    return sigma.astype(jnp.promote_types(real, jnp.complex64) if jnp.iscomplexobj(sigma) else real)


def _placed(
    n: int, units: tuple[float, ...], row: Any, col: Any, a: Any, m: Any, sigma: Any
) -> tuple[Any, tuple[Any, Any, Any]]:
    """The factors of A − sigma·M, None if there are none, and the numbers of a `Shift`."""
    row, col, a, m, sigma = map(np.asarray, (row, col, a, m, sigma))
    A_norm, M_norm = (np.max(np.bincount(c, abs(v), n)) for c, v in ((col[: a.size], a), (col[a.size :], m)))
    scale, eps = A_norm + abs(sigma) * M_norm or 1.0, np.finfo(a.dtype).eps
    A_norm = A_norm or scale  # of A = 0, so that something is rounding
    best, place, least = None, sigma, np.inf
    for unit in (0, *units):
        tried = np.asarray(sigma - unit * (eps * scale / (M_norm or 1)) if unit else sigma, sigma.dtype)
        found = kept(n, LU, row, col, np.concatenate([a, -tried * m]).astype(a.dtype, copy=False))
        growth = np.inf if found is None else _growth(n, found) * eps * scale
        if growth < least:
            best, place, least = found, tried, growth
        if growth <= NEAR or not np.isfinite(scale):
            break
    return best, (place, A_norm, M_norm)


def _growth(n: int, found: Any) -> float:
    """‖A⁻¹‖₂ from below, by two steps of the power method."""
    v = np.random.default_rng(0).uniform(-1, 1, n)
    with np.errstate(all="ignore"):
        for _ in range(2):
            v = found.solve(v / np.linalg.norm(v), "N")
        return float(np.linalg.norm(v))
