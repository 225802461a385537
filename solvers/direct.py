"""Direct solves: factors on the host by SuperLU, triangular solves on the device, and refinement by the true residual.

x ← x + M·(b − A·x) from x = 0 by the factors M, until the residual meets the tolerance. That takes one step, or a few
if A is ill-conditioned (Higham 2002, Accuracy and Stability, §12). By SuperLU the host does it all (`refined`), which
a program calls once; by triangles or a library the program does (`METHOD`), and for many systems `batched`.
Derivatives are systems with the same factors.
"""

import contextlib
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxsparse_fmt._pytrees import brief, exportable, pytree
from jaxsparse_fmt._tracing import in_trace, is_traced, standard_promotion
from jaxsparse_fmt.core.basis import IDENTITY
from solvers import factors
from solvers.backends import choice
from solvers.batched import SHRINKS, STEPS
from solvers.core import arguments, nullspaces
from solvers.core.iterate import Method, System, holding
from solvers.core.linear_solve import Adjoint
from solvers.core.operators import operator, promoted
from solvers.core.solve import Settings, by_method
from solvers.core.space import Map, Space, length
from solvers.core.stopping import End, status_of
from solvers.host_calls import HostFactors, whole
from solvers.logdet import inverse_entries, sample, slogdet
from solvers.on_host import refined
from solvers.precond import _checks as checks
from solvers.solution import Solution, SolverError, Status, Told
from solvers.superlu import LU, OnHost

CONDITION_STEPS = 5  # of Hager's method, at most


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    z = M(work.r)
    r = work.r - A(z)
    z_norm, x_norm = space.norm(z), space.norm(work.x)
    code = status_of(
        (~jnp.isfinite(space.largest(z)), Status.NON_FINITE),
        # Their ratio is about eps times the condition number: x has grown until its rounding hides the residual.
        ((x_norm > 0) & (z_norm > SHRINKS * x_norm), Status.SINGULAR),
    )
    return Work(work.x + z, r), space.norm(r), code


METHOD = Method(lambda space, A, M, r, squared, last: Work(jnp.zeros_like(r), r), holding(step), self_adjoint=False)
ON_HOST = METHOD._replace(whole=whole)


@functools.cache
def unsolved(status: Status) -> Method:
    """A method that leaves x at 0, with this status unless b is 0; its derivatives are NaN."""

    def nothing(system: System, is_transposed: bool) -> tuple[Array, End]:
        del is_transposed
        x = jnp.zeros_like(system.b)
        norm = length(system.b - system.A @ x)  # NaN where A has one
        of_b = (jnp.isnan(norm), Status.NON_FINITE), (jnp.isinf(norm), Status.OUT_OF_RANGE)
        code = status_of((norm == 0, Status.CONVERGED), *of_b, otherwise=status)
        return x, End(jnp.zeros_like(code), norm, code, None)

    return METHOD._replace(whole=nothing)


@exportable
@brief
@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Factorized(factors.Inverse):
    """A matrix and its factors: `solve(b)`, `F @ b` and `F(b)` for b of [n] or [n, k], `F.T`; an M for any solver."""

    @standard_promotion
    def solve(
        self, b: Any, *, rtol: float | None = None, atol: float = 0.0, adjoint: Adjoint | None = None
    ) -> Solution:
        """Solves A·x = b, with refinement; see `direct`."""
        b = arguments.vectors(b, "b")
        return by_factors(self.A, b, None, _settings(self, self.A, b, rtol, atol, adjoint))

    @standard_promotion
    def logdet(self) -> tuple[Array, Array]:
        """The sign of det A (of a complex A det A / |det A|) and log|det A|, with derivatives as of `logdet`."""
        return slogdet(self.A)

    @standard_promotion
    def inverse_entries(self) -> Array:
        """[nnz], the entries of A⁻¹ at the places of A's entries, in the order of A.data; differentiable once.

        Those on the diagonal are the marginal variances of a Gaussian with the precision matrix A. It costs some four
        factorizations where A's pattern is symmetric, and the fill of A + Aᵀ otherwise.
        """
        return inverse_entries(self.A)

    @standard_promotion
    def sample(self, z: Any) -> Array:
        """x with covariance A⁻¹ from standard normal z, [n] or [n, k], for a positive definite A; linear in z.

        Raises:
          SolverError: A is not symmetric positive definite; its status is NOT_POSITIVE_DEFINITE. If A is traced, x is
            NaN. NotImplementedError: a derivative by A's values.
        """
        z = arguments.vectors(z, "z")
        x = sample(self.A, z)
        if not is_traced(x) and not bool(jnp.all(jnp.isfinite(x))):
            raise SolverError(Status.NOT_POSITIVE_DEFINITE, f"sample: {Status.NOT_POSITIVE_DEFINITE.message}")
        return x

    @property
    @standard_promotion
    def condition(self) -> Array:
        """An estimate from below, mostly within a factor of 3, of ‖A‖₁·‖A⁻¹‖₁ (Hager 1984; Higham 1988).

        It takes some ten solves with the factors.
        """
        return _condition(lax.stop_gradient(self))


@arguments.door
def factorized(A: Any, *, symmetric: bool | None = None, backend: str = "auto") -> Factorized:
    """The LU factors of a sparse matrix, for many right-hand sides, or as the M of a solver; as SciPy's `splu`.

    The host factors in 64 bits, by SuperLU: a symmetric pattern with a strong diagonal in the order MMD of A + Aᵀ, with
    pivots on the diagonal as far as they serve, any other in the order COLAMD, with partial pivoting. The factors are
    stored in A's dtype, in 32 bits at least. A solve is two triangular solves: on a CPU by rows in a native kernel,
    elsewhere by levels. If A is traced, inside jit or under a derivative, the host factors and solves at run time; it
    keeps the last few factors, and reuses the order of the columns for new values on the same pattern; SciPy's
    interface to SuperLU lets it keep no more.

    Args:
      A: [n, n] jaxsparse matrix on one device, in any format.
      symmetric: whether A is symmetric (Hermitian); None: `factorized` looks at its values, and takes a traced A for
        unsymmetric. Of a symmetric A cuDSS makes half of the factors. SuperLU looks at the pattern itself.
      backend: "superlu"; "cholmod", for a symmetric positive definite A, or "klu", for circuits, which factor inside
        XLA's program on a CPU, in float64 (`pip install 'jaxsparse[direct]'`); or "cudss", on an NVIDIA GPU
        (`jaxsparse[cudss]`). "auto" takes CHOLMOD where it is installed, and A is large, symmetric with a positive
        diagonal, and known; else SuperLU.

    Returns:
      F, a pytree: `F.solve(b)`, a `Solution` whose x is refined, with its true residual; `F @ b` and `F(b)`, x by the
      factors alone; `F.T`, for Aᵀ; and `F.condition`. x has derivatives of any order in b and A. `F.logdet()`,
      `F.inverse_entries()` and `F.sample(z)` are by SuperLU.

    Raises:
      SolverError: A is singular (its status is SINGULAR), or holds a NaN (NON_FINITE), or CHOLMOD finds it not positive
        definite (NOT_POSITIVE_DEFINITE). If A is traced, `F @ b` is NaN instead, and the status of `F.solve(b)` says
        why. ValueError: A is not square, or sharded, or its factors do not fit into the memory. TypeError: not a matrix
        of jaxsparse_fmt. ModuleNotFoundError: the backend is not installed.

    Examples:
      >>> F = js.factorized(A)
      >>> np.allclose(A @ (F @ b), b), (F @ np.ones((16, 3))).shape
      (True, (16, 3))
    """
    # Arrays of NumPy may change, and `device_put` copies only those that are not aligned.
    A = jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, A)
    return jax.device_put(prepared(A, False, "factorized", backend, symmetric))


@arguments.door
def direct(
    A: Any,
    b: Any,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    adjoint: Adjoint | None = None,
    symmetric: bool | None = None,
    backend: str = "auto",
    nullspace: Any = None,
    left_nullspace: Any = None,
) -> Solution:
    """Solves A·x = b by LU factors, where a Krylov method fails or A is small; as SciPy's `spsolve`.

    Args:
      A: [n, n] jaxsparse matrix on one device. Inside jit it may be traced; then every call factors anew. Under vmap
        systems with one known pattern, `A.with_data(data)`, are factored together on the device.
      b: [n] or [n, k].
      rtol, atol: as in `cg`; None: eps^(2/3) of the dtype, 4e-11 in float64 and 2e-5 in float32. An rtol below eps is
        taken as eps: 0 asks for an x as accurate as the dtype allows.
      adjoint: as in `cg`.
      symmetric, backend: as in `factorized`.
      nullspace, left_nullspace: as in `cg`; the factors are those of the bordered matrix [[A, L], [Zᴴ, 0]], for which
        the pattern of A must be known. They are made anew at each call.

    Returns:
      A `Solution`, whose iterations are the solves with the factors, at most 10, and whose `method` names the backend.
      Its status is SINGULAR if A has no factors and b is not zero, or if the residual misses the tolerance and the
      condition number is about 1/eps or more. Derivatives as of `cg`, by the same factors, and NaN if there are none;
      for several right-hand sides keep `factorized(A)`.

    Raises:
      ValueError, TypeError: as `factorized`.

    Examples:
      >>> js.direct(A, b).status
      <Status.CONVERGED: 0>
    """
    b = arguments.vectors(b, "b")
    given = Settings(nullspace=nullspace, left_nullspace=left_nullspace, adjoint=adjoint or Adjoint())
    if nullspace is not None or left_nullspace is not None:
        spaces = nullspaces.given(given, b.shape[0], None, False)
        return _bordered(A, b, spaces, rtol, atol, adjoint, symmetric, backend)
    try:
        M = prepared(A, not in_trace(), "direct", backend, symmetric)
        sol, name = by_factors(A, b, None, _settings(M, A, b, rtol, atol, adjoint)), M.recipe[0]
        return dataclasses.replace(sol, _told=Told((f"direct by {name}",)))
    except SolverError as error:
        return by_method(unsolved(error.status), A, b, None, given)


def _bordered(A: Any, b: Array, given: Any, rtol: Any, atol: Any, adjoint: Any, symmetric: Any, backend: str) -> Any:
    """The shortest solution of a singular system, by the factors of [[A, σ·L], [σ·Zᴴ, 0]], which is regular."""
    n, b = b.shape[0], arguments.cast(b, _dtype(A, b))
    spaces = nullspaces.found(operator(A, n, "A"), IDENTITY, b, given)
    rhs = jnp.concatenate([b, jnp.zeros((len(spaces.Z), *b.shape[1:]), b.dtype)])
    options = {"rtol": rtol, "atol": atol, "adjoint": adjoint, "symmetric": symmetric, "backend": backend}
    sol = direct(factors.bordered(A, *spaces[:3]), rhs, **options)
    limits = _settings(None, A, b, rtol, atol, adjoint).limits(STEPS)
    return nullspaces.shortest(dataclasses.replace(sol, x=sol.x[:n]), A, b, spaces, IDENTITY, limits)


def prepared(
    A: Any, is_eager: bool, maker: str = "direct", backend: str = "superlu", symmetric: bool | None = None
) -> Factorized:
    """A, factored for `by_factors` by the library of this name, or that suits A.

    Errors as of `factorized`; if `is_eager`, the factors of a known A by SuperLU stay SuperLU's.
    """
    name = choice(backend, A, symmetric, maker)
    if name != "superlu":
        with contextlib.suppress(SolverError) if backend == "auto" else contextlib.nullcontext():
            return Factorized(A, factors.made(A, (name,), maker, symmetric), (name,))
    if is_eager and not is_traced(A) and not checks.is_transpose(A):
        return Factorized(A, factors.on_host(A, LU, maker, checks=False), LU)
    return Factorized(A, factors.made(A, LU, maker), LU)


def _settings(M: Any, A: Any, b: Array, rtol: float | None, atol: float, adjoint: Adjoint | None) -> Settings:
    rtol = float(jnp.finfo(_dtype(A, b)).eps) ** (2 / 3) if rtol is None else rtol
    adjoint = Adjoint() if adjoint is None else adjoint
    return Settings(M=M, rtol=reachable(rtol, A, b), atol=atol, adjoint=adjoint)


def _by_host(A: Any, b: Array, x0: Any, settings: Settings) -> Solution | None:
    """As `refined`; None if something is traced or asks for the loop."""
    found, n, limits = settings.M.factors, b.shape[0], settings.limits(STEPS)
    if x0 is not None or settings.is_watched or is_traced(A, b, limits) or n != found.host.n:
        return None
    if not isinstance(b.sharding, jax.sharding.SingleDeviceSharding):  # b has a mesh
        return None
    return placed_like(b, refined(found, b, limits, _dtype(A, b))[:4])


def placed_like(b: Any, found: tuple[np.ndarray, ...], *words: str) -> Solution:
    """x, code, iterations and residual norm as a `Solution`, on b's device if it is committed to that."""
    if isinstance(b, jax.Array) and b.committed:
        of_x = of_ends = b.sharding
        if isinstance(of_x, NamedSharding):  # the ends lack b's first axis
            of_ends = NamedSharding(of_x.mesh, PartitionSpec(*of_x.spec[1:]), memory_kind=of_x.memory_kind)
        placed: Any = jax.device_put(found, (of_x, of_ends, of_ends, of_ends))
        return Solution(*placed, norms=None, _told=Told(words))
    x, *ends = found
    return Solution(jnp.asarray(x), *_on_device(*ends), norms=None, _told=Told(words))


# `device_put` of each would cost 30 µs.
_on_device = jax.jit(lambda *arrays: arrays)


def by_factors(A: Any, b: Any, x0: Any, settings: Settings) -> Solution:
    """The solution of A·x = b by the factors of A as it was `prepared`, in place of M; SINGULAR where A is at fault."""
    F, adjoint, b = settings.M, settings.adjoint, arguments.vectors(b, "b")
    if isinstance(adjoint, str):  # by steps whose factors are constants a derivative by A would be 0
        raise TypeError(f"adjoint must be a solvers.Adjoint for a direct solve; got {adjoint!r}; use a Krylov method")
    if isinstance(F.factors, OnHost):
        if (sol := _by_host(A, b, x0, settings)) is not None:
            return sol
        split = factors.split(F.factors.repaired(), jnp.promote_types(A.dtype, jnp.float32))
        F = dataclasses.replace(F, factors=split)
    if adjoint.maxiter is None:
        adjoint = dataclasses.replace(adjoint, maxiter=STEPS)
    most = STEPS if settings.maxiter is None else settings.maxiter
    every = settings.check_every or 1  # the steps between two checks would be solves
    changed = {"M": dataclasses.replace(F, A=None), "maxiter": most, "adjoint": adjoint, "check_every": every}
    changed = dataclasses.replace(settings, **changed)
    if type(F.factors) is HostFactors and x0 is None and not settings.is_watched:
        return by_method(ON_HOST, A, b, x0, changed)
    sol = by_method(METHOD, A, b, x0, changed)
    if not is_traced(sol.code) and bool(np.all(sol.success)):
        return sol
    norm = matrix_norm(F.A)
    condition = lax.cond(jnp.all(sol.success), jnp.zeros_like, lambda _: _condition(lax.stop_gradient(F)), norm)
    may_be = jnp.isfinite(norm) & jnp.all(jnp.isfinite(b), axis=0) & ~jnp.asarray(sol.success)
    # cuDSS replaces small pivots, so that it has factors even of zeros.
    is_singular = ~(condition * jnp.finfo(condition.dtype).eps < 0.1) | (norm == 0)
    cause = jnp.int32(Status.SINGULAR)
    if F.recipe[0] == "cholmod":
        cause = jnp.where(jnp.isnan(condition), jnp.int32(Status.NOT_POSITIVE_DEFINITE), cause)
    return dataclasses.replace(sol, code=jnp.where(may_be & is_singular, cause, sol.code))


def _dtype(A: Any, b: Array) -> Any:
    """Of x."""
    return promoted(getattr(A, "dtype", b.dtype), b.dtype, np.dtype(np.float32))


def reachable(rtol: Any, A: Any, b: Array) -> Any:
    """rtol, or x's eps if that is larger. Errors as of `arguments.nonnegative`."""
    rtol, eps = arguments.nonnegative(rtol, "rtol", infinite=True), float(jnp.finfo(_dtype(A, b)).eps)
    return jnp.maximum(rtol, eps) if is_traced(rtol) else max(rtol, eps)


def matrix_norm(A: Any) -> Array:
    """‖A‖₁."""
    absolute = abs(A)
    return jnp.max(absolute.T @ jnp.ones(A.shape[0], absolute.dtype))


@jax.jit
def _condition(F: Factorized) -> Array:
    n = F.shape[0]
    transposed = F.factors.T

    def better(_: int, kept: tuple[Array, Array]) -> tuple[Array, Array]:
        x, largest = kept
        y = F.factors.solve(x)
        sign = jnp.where(y == 0, 1, y / jnp.where(y == 0, 1, jnp.abs(y)))
        z = jnp.abs(transposed.solve(jnp.conj(sign)))
        return jnp.zeros_like(x).at[jnp.argmax(z)].set(1), jnp.maximum(largest, jnp.sum(jnp.abs(y)))

    start = jnp.full(n, 1 / n, F.dtype)
    _, largest = lax.fori_loop(0, CONDITION_STEPS, better, (start, jnp.zeros((), start.real.dtype)))
    i = jnp.arange(n, dtype=start.real.dtype)
    ramp = (jnp.where(i % 2 == 0, 1, -1) * (1 + i / max(n - 1, 1))).astype(F.dtype)
    return matrix_norm(F.A) * jnp.maximum(largest, 2 * jnp.sum(jnp.abs(F.factors.solve(ramp))) / (3 * n))
