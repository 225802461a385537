"""The eigenpairs that `eigsh`, `eigs` and `lobpcg` return, and the derivatives of those of a Hermitian A."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._dtypes import floating_dtype
from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt._tracing import device_of
from jaxsparse_fmt.core.basis import Basis, Operator
from solvers.core import arguments, iterate, opaque, operators, stopping
from solvers.core.linear_solve import hermitian_solve
from solvers.core.solve import steps_per_check
from solvers.core.space import HERE, Map, length
from solvers.core.vectors import matmul, ratio
from solvers.minres import METHOD as MINRES
from solvers.pencil import Pencil
from solvers.solution import Outcome, Status, is_one_number

# Vectors in the basis by default, beyond 2·k. Copies come one by one and take places: of a basis of 20, SciPy's, six
# pairs leave a restart so few others that it takes twice the products.
NCV = 20
LEAST_NCV = 5  # vectors beyond k, without which a restart keeps too little
MAXITER = 1000
NEAREST = ", and for those nearest to 0 eigsh(A, k, sigma=0)"  # what else than a `which` finds pairs
LOW_END = (
    "for the smallest of a discretised differential operator use sigma=0 of eigsh or eigs, or if it is symmetric "
    "lobpcg with M=precond.multigrid(A)"
)
MESSAGES = {
    Status.MAXITER: "maxiter did not bring every pair to the tolerance; loosen tol, raise maxiter, or ncv, which eigsh "
    "and eigs take; " + LOW_END,
    Status.STAGNATION: "the residuals stopped falling above the tolerance: the wanted eigenvalues lie close together, "
    f"or at the limit of this precision; loosen tol, or raise ncv, which eigsh and eigs take; {LOW_END}; with "
    "sigma, the factors are too inaccurate: use float64, or another sigma",
    Status.NOT_SYMMETRIC: "A is not symmetric (Hermitian), which eigsh and lobpcg need; (A + Aᵀ)/2 is. For "
    "eigenvalues of a nonsymmetric A use eigs(A)",
    Status.NOT_POSITIVE_DEFINITE: "M has a negative vᴴ·M·v: the M of A·x = λ·M·x (B of lobpcg) must be positive "
    "definite, with sigma at least semidefinite, and the M of lobpcg, which approximates the inverse of A, definite",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A, M and the start; or M is singular and leaves "
    "fewer than k finite eigenvalues; or the Y of lobpcg has dependent columns",
    Status.ROUNDED: "the pairs are as accurate as the dtype allows: their residuals miss the tolerance, but are those "
    "of matrices that differ from the given ones by rounding errors; a wider dtype gets further",
}


@exportable
@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EigenSolution(Outcome):
    """Eigenpairs, a pytree. Unpacks as `w, v = eigsh(A)`.

    Attributes:
      eigenvalues: [k] real, ascending; of `eigs` complex, the most wanted first.
      eigenvectors: [n, k], columns with vᴴ·v = 1, or vᴴ·M·v = 1, orthogonal in that product; their signs (phases) are
        arbitrary. Zero where they are not finite. Of `eigs` vᴴ·v = 1.
      code: int32, the `Status` as a number; under vmap one per matrix.
      n_iterations: int32, restarts, which maxiter counts.
      n_products: int32, products with A, or solves with sigma.
      residual_norms: [k], ‖A·v − λ·v‖₂, or ‖A·v − λ·M·v‖₂, recomputed.
      left_eigenvectors: [n, k], of `eigs(left=True)`, else None.
    """

    eigenvalues: Array
    eigenvectors: Array
    code: Array
    n_iterations: Array
    n_products: Array
    residual_norms: Array
    left_eigenvectors: Array | None = None

    _norm = "residual_norms"
    _messages = MESSAGES

    @property
    def products(self) -> int | Array:
        """Products with A; an int outside jit."""
        return int(self.n_products) if is_one_number(self.n_products) else self.n_products

    def __iter__(self) -> Iterator[Array]:
        return iter((self.eigenvalues, self.eigenvectors))

    def _content(self) -> str:
        values = self.eigenvalues
        shown = np.asarray(values) if is_one_number(self.code) else getattr(values, "shape", values)
        return f"products={self.products}, eigenvalues: {shown}"


class Limits(NamedTuple):
    """Traced, so that changing them does not recompile."""

    tol: Array
    maxiter: Array
    sigma: Array | None = None  # of a loop whose values are θ = 1/(λ − sigma)

    def allowed(self, values: Array, A_norm: Array, units: int | Array) -> Array:
        """The largest residual norm that is small enough: tol·|λ|, but no less than rounding leaves.

        Of θ tol·|θ|·|λ·θ|, since dλ = −dθ/θ², and no more than tol·|θ|.
        """
        sizes, least = jnp.abs(values), units * jnp.finfo(values.dtype).eps * A_norm
        if self.sigma is not None:
            sizes = sizes * jnp.minimum(1, jnp.abs(1 + self.sigma * values))
        return jnp.maximum(self.tol.astype(sizes.dtype) * sizes, least)

    def unsymmetric(self, gap: Array, A_norm: Array, rounding: Any = 0) -> Array:
        """Whether wᴴ·A·v and conj(vᴴ·A·w) differ by more than products that are rounded by `rounding`, beyond eps."""
        return gap > (jnp.finfo(gap.dtype).eps ** 0.5 + self.tol.astype(gap.dtype) + rounding) * A_norm


def basis_sizes(ncv: int | None, k: int, n: int) -> tuple[int, int]:
    """The vectors of a basis from which k pairs come, as the caller wants them, and as restarts need them."""
    ncv = arguments.int_at_least(min(n, 2 * k + NCV) if ncv is None else ncv, "ncv", 1)
    if not k < ncv <= n:
        raise ValueError(f"ncv must be above k = {k} and at most {n}, the length of its vectors; got {ncv}")
    return ncv, min(n, max(ncv, k + LEAST_NCV))


def limits(tol: Any, maxiter: Any) -> Limits:
    return Limits(arguments.tolerance(tol, "tol"), arguments.maxiter(maxiter, MAXITER))


def eigenproblem(
    A: Any, k: Any, start: Any, name: str, more: tuple[int, ...], hermitian: bool = True
) -> tuple[Any, Basis, int, Array]:
    """A between vectors in its basis, that basis, k, and the start: the user's v0 [n] or X0 [n, p], or noise.

    Checks that A is square and, if it is NumPy's and must be, Hermitian. A block X0 of noise has k vectors and `more`
    of them.
    """
    shape = getattr(A, "shape", None)
    if start is None and shape is None and callable(A):
        raise ValueError(f"A is a function, whose size is unknown; pass {name} to start from")
    if shape is not None and (len(shape) != 2 or shape[0] != shape[1]):
        raise ValueError(f"A must be square; got shape {tuple(shape)}")
    start = None if start is None else arguments.vectors(start, name)
    if start is not None and start.ndim != 1 + len(more):
        raise ValueError(f"{name} must be {'vectors as columns' if more else 'one vector'}; got shape {start.shape}")
    n = shape[0] if shape else 1 if start is None else start.shape[0]
    if start is not None and start.shape[0] != n:
        raise ValueError(f"{name} has shape {start.shape}; A of shape {(n, n)} needs vectors of length {n}")
    if hermitian and isinstance(A, np.ndarray) and A.dtype.kind in "fiuc":
        off = np.abs(A - A.conj().T).max(initial=0)
        if off > 1e-3 * np.abs(A).max(initial=0):
            raise ValueError(f"A must be symmetric, or Hermitian if complex; A and its adjoint differ by {off:.3g}")
    A = operators.operator(A, n, "A")
    all_pairs = "eigh" if hermitian else "eig"
    if (k := arguments.int_at_least(k, "k", 1)) >= n:
        cure = f"For all eigenpairs use jnp.linalg.{all_pairs} of a dense array"
        raise ValueError(f"k must be below n = {n}; got {k}. {cure}")
    if start is None:
        dtype = jnp.finfo(jnp.promote_types(floating_dtype(getattr(A, "dtype", float), "A"), jnp.float32)).dtype
        start = A.basis.noise((n, *(min(k + guards, n) for guards in more)), dtype)
    dtype = jnp.result_type(operators.product_dtype(A, start, "A"), start.dtype, jnp.float32)
    return A.in_basis, A.basis, k, A.basis.accept(start).astype(dtype)


def eigenpairs(pairs: "Pairs", basis: Basis, pencil: Pencil, like: Array, frozen: tuple[Any, ...]) -> EigenSolution:
    """The pairs of a pencil of operators, between vectors in the basis like `like`, by a loop with inputs `frozen`."""

    def as_function(A: Operator) -> Any:
        return operators.traced(lambda v: (A @ v).astype(like.dtype), like)

    maps = pencil._replace(A=as_function(pencil.A), M=None if pencil.M is None else as_function(pencil.M))
    sol, _ = pairs((maps, lax.stop_gradient(frozen)))
    return dataclasses.replace(sol, eigenvectors=basis.leave(sol.eigenvectors))


class Pairs(opaque.Operation):
    """The result of a loop, differentiable in whatever A and M depend on; all zero where one number is not finite.

    The loop is not differentiated. From A·v = λ·M·v and vᴴ·M·v = 1 follow dλ = vᴴ·r and
    (A − λ·M)·dv = −(1 − M·v·vᴴ)·r with r = (dA − λ·dM)·v. The systems are singular in the direction of v alone. With
    P = 1 − v·vᴴ·M, K = Pᴴ·(A − λ·M)·P + scale·M·v·vᴴ·M is regular, and a solution with K has no component along v
    (Magnus 1985, Theorem 1). The pairs do not depend on the other inputs of the loop.

    Attributes:
      loop: (*static, pencil, *frozen) -> the pairs, and the norm of A − λ·M.
    """

    loop: Callable[..., tuple[EigenSolution, Array]]
    static: tuple[Any, ...]

    def compute(self, inputs: tuple[Pencil, Any]) -> tuple[EigenSolution, Array]:
        pencil, frozen = inputs
        sol, scale = self.loop(*self.static, pencil, *frozen)
        finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(sol)])
        values, X = jnp.where(finite, sol.eigenvalues, 0), jnp.where(finite, sol.eigenvectors, 0)
        known = finite | (sol.code == Status.NOT_POSITIVE_DEFINITE)
        code = jnp.where(known, sol.code, Status.NON_FINITE).astype(jnp.int32)
        return dataclasses.replace(sol, eigenvalues=values, eigenvectors=X, code=code), scale

    def jvp(self, inputs: tuple[Pencil, Any], tangents: tuple[Pencil, Any]) -> tuple[Any, Any]:
        pencil, d_pencil = inputs[0], tangents[0]
        sol, scale = self(inputs)
        values, X, unit = sol.eigenvalues, sol.eigenvectors, lax.stop_gradient(jnp.where(scale == 0, 1, scale))
        failed = stopping.is_failure(sol.code)
        X = opaque.witness(failed, X)
        r = opaque.jvp(lambda pencil: pencil.residual(values, X), pencil, d_pencil)
        d_sol, d_scale = opaque.undefined((sol, scale), d_pencil)
        d_values = d_X = None
        if r is not None:
            r = opaque.unless(failed, r)

            def K(Z: Array) -> Array:
                MX = pencil.mass(X)
                along = jnp.sum(jnp.conj(MX) * Z, axis=0)
                out = pencil.residual(values, Z - X * along)
                return out + MX * (unit * along - jnp.sum(jnp.conj(X) * out, axis=0))

            d_values = jnp.sum(jnp.conj(X) * r, axis=0).real
            rhs = pencil.mass(X) * jnp.sum(jnp.conj(X) * r, axis=0) - r
            d_X = hermitian_solve(K, lambda rhs: _solve_off(pencil, K, unit, values, X, rhs), rhs)
            d_X = d_X - X * jnp.sum(jnp.conj(pencil.mass(X)) * d_X, axis=0)
            if pencil.M is not None and (dM_X := opaque.jvp(lambda M: M(X), pencil.M, d_pencil.M)) is not None:
                d_X = d_X - X * (jnp.sum(jnp.conj(X) * dM_X, axis=0) / 2)
            d_values, d_X = (opaque.unless(failed, d) for d in (d_values, d_X))
        return (sol, scale), (dataclasses.replace(d_sol, eigenvalues=d_values, eigenvectors=d_X), d_scale)


def _solve_off(pencil: Pencil, K: Map, unit: Array, values: Array, X: Array, rhs: Array) -> Array:
    """The k systems K·z = rhs, by MINRES; NaN where one has no solution, as where an eigenvalue has copies.

    The components along the other eigenvectors are known; those that make a system slow to solve are among them. With a
    shift MINRES solves (1 − (λ − sigma)·(A − sigma·M)⁻¹·M)·z = (A − sigma·M)⁻¹·rhs, times M.
    """
    eps, shift = jnp.finfo(values.dtype).eps, pencil.shift
    MX, XH, XHM = pencil.mass(X), jnp.conj(X).T, jnp.conj(pencil.mass(X)).T

    def inside(Z: Array) -> Array:
        return Z - matmul(X, matmul(XHM, Z))

    def outside(Z: Array) -> Array:
        return Z - matmul(MX, matmul(XH, Z))

    gaps = values[:, None] - values  # [eigenvector, system]
    gaps = jnp.where(jnp.eye(values.size, dtype=bool), unit, jnp.where(jnp.abs(gaps) <= eps**0.75 * unit, 0, gaps))
    known, r = matmul(X, ratio(matmul(XH, rhs), gaps)), outside(rhs)
    if shift is None:
        z = krylov(
            MINRES,
            lambda Z: outside(pencil.residual(values, inside(Z))) + matmul(MX, matmul(XHM, Z)) * unit,
            r,
            lambda v: pencil.inverse(v) / unit,
        )
    else:
        start, above = inside(pencil.inverse(r)), values - shift.sigma
        scale = jnp.where(shift.M_diagonal > 0, shift.M_diagonal, 1)[:, None]
        z = krylov(
            MINRES,
            lambda Z: pencil.mass(Z - inside(above * pencil.operator(inside(Z)))),
            pencil.mass(start),
            lambda v: v / scale,
        )
        z = start + above * pencil.operator(z)
    return where_solved(K, known + inside(z), rhs, unit)


def where_solved(K: Map, z: Array, rhs: Array, unit: Array) -> Array:
    """z where it solves K·z = rhs, a column each, and NaN elsewhere; `unit` is the size of K."""
    eps, size = jnp.finfo(rhs.dtype).eps, length(rhs)
    solved = length(rhs - K(z)) <= jnp.sqrt(eps) * size + 100 * eps * unit * length(z)
    z = jnp.where(solved & (eps**0.75 * unit * length(z) <= size), z, jnp.nan)
    return jnp.where(size == 0, 0, z)  # as of a failure that the loss masks


def krylov(method: iterate.Method, A: Map, b: Array, M: Map | None = None) -> Array:
    """What the method takes for the solution of A·x = b, a column each, to nearly the precision of the dtype."""
    eps, zero = jnp.finfo(b.dtype).eps, jnp.zeros((), jnp.finfo(b.dtype).dtype)
    options = iterate.Options(0, steps_per_check(b.shape[0], device_of().platform), None, None)
    limits = stopping.Limits(eps**0.75 + zero, zero, jnp.int32(min(10 * b.shape[0], 2**31 - 1)), zero)
    return iterate.run(HERE, method, options, iterate.System(A, M, b, None, limits))[0]
