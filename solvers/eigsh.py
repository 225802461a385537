"""A few eigenpairs of a Hermitian matrix by thick-restart Lanczos (Wu and Simon 2000), as in SciPy's `eigsh`.

`_lanczos` has the loop; this file has the public function, its result and the derivatives.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from jaxsparse_fmt._types import floating_dtype, pytree, real_number, standard_promotion
from jaxsparse_fmt.core.basis import Basis
from solvers import _lanczos
from solvers._lanczos import End, Limits, Wanted
from solvers.core import arguments, iterate, opaque, program, stopping
from solvers.core.adjoint import hermitian_solve
from solvers.core.program import Entry
from solvers.core.scaling import Map
from solvers.core.settings import steps_per_check
from solvers.core.vectors import matmul, norm, ratio
from solvers.minres import METHOD as MINRES
from solvers.solution import Outcome, Status, is_one_number

WHICH = ("LM", "SM", "LA", "SA")
# Vectors in the basis by default: SciPy's number, and more for eigenvalues inside the spectrum.
NCV, NCV_INSIDE = 20, 60
MAXITER = 1000

MESSAGES = {
    Status.MAXITER: "maxiter restarts did not bring every pair to the tolerance; raise ncv or maxiter, or loosen tol",
    Status.STAGNATION: "the pairs meet the tolerance by the recursion but not by their true residual; check that A is "
    "Hermitian, and that it gives the same product each time",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A and v0",
}


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EigenSolution(Outcome):
    """Eigenpairs, a pytree. Unpacks as `w, v = eigsh(A)`.

    Attributes:
      eigenvalues: [k] real, ascending.
      eigenvectors: [n, k], orthonormal columns; their signs (phases) are arbitrary. Zero where they are not finite.
      code: int32, the `Status` as a number; under vmap one per matrix.
      n_iterations: int32, restarts, which maxiter counts.
      n_products: int32, products with A.
      residual_norms: [k], ‖A·v − λ·v‖₂, recomputed.
    """

    eigenvalues: Array
    eigenvectors: Array
    code: Array
    n_iterations: Array
    n_products: Array
    residual_norms: Array

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


@standard_promotion
def eigsh(
    A: Any,
    k: int = 6,
    *,
    sigma: float | None = None,
    which: str = "LM",
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
) -> EigenSolution:
    """k eigenvalues and eigenvectors of a symmetric (Hermitian) A.

    The ground state of a Hamiltonian is `eigsh(H, 1, which="SA")`. Works inside jit and vmap.

    Eigenvalues near sigma are found without solving systems, by harmonic Ritz vectors in a larger basis. The denser the
    spectrum is around sigma, the more products the search takes; a larger ncv takes fewer. Where you can apply the
    inverse, `eigsh(inverse, k)` with inverse(v) = (A − sigma)⁻¹·v is faster: its eigenvalues are 1/(λ − sigma).

    All copies of an eigenvalue are found: for k > 1 a search from a random vector follows, outside the pairs
    found and in any symmetry, until it shows that nothing better is left. It costs about as much as the first.

    Eigenvalues are differentiable to second order, eigenvectors to first, with respect to A's values and whatever a
    function closes over; dλ = vᴴ·dA·v and dv = −(A − λ)⁺·dA·v with vᴴ·dv = 0, by MINRES. Derivatives hold for changes
    that keep A Hermitian. An eigenvalue with copies has no derivative of its own (the sum over its copies has one), and
    the derivative of its vectors is NaN.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v,
        which needs v0.
      k: the number of pairs, below n.
      sigma: find the eigenvalues nearest to this number, with which="LM".
      which: "LM" largest in magnitude, "LA" largest, "SA" smallest, "SM" smallest in magnitude, that is nearest to 0.
      v0: [n], start vector; None draws one, the same at every call.
      ncv: vectors in the basis, k < ncv ≤ n, and as many again at a restart; None takes max(2·k + 1, 20), or 60 for 20
        near sigma.
      maxiter: most restarts, each after about (ncv − k)/2 products; None allows 1000.
      tol: pairs are done when ‖A·v − λ·v‖₂ ≤ tol·|λ − sigma| (sigma 0 if None), or when the residual is rounding, a few
        eps·‖A‖₂; 0 iterates down to rounding. The error of an eigenvalue is at most the residual.

    Returns:
      An `EigenSolution`, also `w, v = eigsh(A)`.

    Raises:
      ValueError, TypeError: invalid arguments.
    """
    inner, basis, k, v0 = eigenproblem(A, k, v0, "v0", ())
    n = v0.shape[0]
    if which not in WHICH:
        raise ValueError(f"which must be one of {', '.join(WHICH)}; got {which!r}")
    if sigma is not None and which != "LM":
        raise ValueError(
            f"sigma={sigma} selects the eigenvalues nearest to it and needs which='LM'; got which={which!r}; leave out "
            "sigma or which"
        )
    inside = sigma is not None or which == "SM"
    if ncv is None:
        ncv = min(n, max(2 * k + 1, NCV_INSIDE if inside else NCV))
    ncv = arguments.int_at_least(ncv, "ncv", 1)
    if not k < ncv <= n:
        raise ValueError(f"ncv must be above k = {k} and at most n = {n}; got {ncv}")
    limits = Limits(arguments.tolerance(tol, "tol"), arguments.maxiter(maxiter, MAXITER, 1), _real(sigma, "sigma"))
    return _solve(Wanted(k, "nearest" if inside else which, ncv), (inner,), basis, v0, limits)


def _in_basis(wanted: Wanted, maps: tuple[Any], basis: Basis, v0: Array, limits: Limits) -> EigenSolution:
    start = basis.enter(v0)
    return eigenpairs(functools.partial(_lanczos.run, wanted), basis, maps[0], start, (start, limits))


_solve = Entry(_in_basis, lambda _, v0: (v0,))


def eigenproblem(A: Any, k: Any, start: Any, name: str, more: tuple[int, ...]) -> tuple[Any, Basis, int, Array]:
    """A between vectors in its basis, that basis, k, and the start: `start`, or numbers that are always the same.

    Checks that A is square and, where it is NumPy's, Hermitian.

    Args:
      start, name: the user's v0 [n] or X0 [n, p], or None, and its name.
      more: vectors to draw beyond k, of which the start is a block; () for one vector.
    """
    shape = getattr(A, "shape", None)
    if start is not None:
        start = arguments.vectors(start, name)
        if start.ndim != 1 + len(more):
            raise ValueError(
                f"{name} must be {'vectors as columns' if more else 'one vector'}; got shape {start.shape}"
            )
    elif shape is None and callable(A):
        raise ValueError(f"A is a function, whose size is unknown; pass {name} to start from")
    if shape is not None and (len(shape) != 2 or shape[0] != shape[1]):
        raise ValueError(f"A must be square; got shape {tuple(shape)}")
    n = shape[0] if shape else 1 if start is None else start.shape[0]
    if start is not None and start.shape[0] != n:
        raise ValueError(f"{name} has shape {start.shape}; A of shape {(n, n)} needs vectors of length {n}")
    if isinstance(A, np.ndarray) and A.dtype.kind in "fiuc":
        off = np.abs(A - A.conj().T).max(initial=0)
        if off > 1e-3 * np.abs(A).max(initial=0):
            raise ValueError(f"A must be symmetric, or Hermitian if complex; A and its adjoint differ by {off:.3g}")
    inner, basis = arguments.in_basis(arguments.linear_map(A, n, "A"))
    if (k := arguments.int_at_least(k, "k", 1)) >= n:
        raise ValueError(f"k must be below n = {n}; got {k}. For all eigenpairs take jnp.linalg.eigh of a dense array")
    if start is None:
        dtype = jnp.finfo(jnp.promote_types(floating_dtype(getattr(A, "dtype", float), "A"), jnp.float32)).dtype
        start = basis.noise((n, *(min(k + guards, n) for guards in more)), dtype)
    dtype = jnp.result_type(arguments.result_dtype(inner, start, "A"), start.dtype, jnp.float32)
    return inner, basis, k, basis.accept(start).astype(dtype)


def _real(value: Any, name: str) -> Array:
    """A finite real number as an array, traced or not; None is 0."""
    value = 0.0 if value is None else value
    if not isinstance(value, Tracer) and not math.isfinite(real_number(name, value)):
        raise ValueError(f"{name} must be finite; got {value}")
    return jnp.asarray(value, float)


# ------------------------------------------------------------------------------------------------- differentiation


def eigenpairs(
    loop: Callable[..., tuple[Array, Array, End]], basis: Basis, A: Any, like: Array, frozen: tuple[Any, ...]
) -> EigenSolution:
    """The result of a loop in the basis, differentiable in whatever A depends on.

    All are zero where one number is not finite. The loop is not differentiated. From A·v = λ·v follow dλ = vᴴ·dA·v and
    (A − λ)·dv = −P·dA·v with P = 1 − v·vᴴ. The systems are singular in the direction of v alone.
    K = P·(A − λ)·P + ‖A‖·v·vᴴ is regular, and a solution with K has no component along v (Magnus 1985, Theorem 1). The
    pairs do not depend on `frozen`.

    Args:
      loop: (A, *frozen) -> eigenvalues, eigenvectors, how it ended.
      like: a vector [n] like those that A takes.
    """
    matrix = program.traced(lambda v: arguments.apply(A, v).astype(like.dtype), like)
    frozen = lax.stop_gradient(frozen)

    def primal(A, frozen):
        with basis.scope():
            values, X, end = loop(A, *frozen)
        finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(a)) for a in (values, X, end.residual_norms)])
        code = jnp.where(finite, end.code, Status.NON_FINITE).astype(jnp.int32)
        return jnp.where(finite, values, 0), jnp.where(finite, X, 0), end._replace(code=code)

    def run(A, frozen):
        return opaque.apply(primal, tangent, A, frozen)

    def tangent(primals, tangents):
        (A, frozen), (dA, _) = primals, tangents
        values, X, end = run(A, frozen)
        sound = jnp.where(end.code == Status.NON_FINITE, jnp.nan, 1.0).astype(values.dtype)
        dA_X = opaque.jvp(lambda A: jax.vmap(A)(sound * X), A, dA)
        d_end = opaque.undefined(end, tangents[0])
        if dA_X is None:
            return (values, X, end), (None, None, d_end)
        d_values = jnp.sum(jnp.conj(X) * dA_X, axis=1).real
        size = lax.stop_gradient(jnp.where(end.norm == 0, 1, end.norm))

        K = lambda Z: jax.vmap(functools.partial(_off, A, size))(values, X, Z)  # noqa: E731
        dX = hermitian_solve(K, lambda rhs: _solve_off(A, size, values, X, rhs), -_outside(X, dA_X))
        return (values, X, end), (d_values, _outside(X, dX), d_end)

    values, X, end = run(matrix, frozen)
    return EigenSolution(values, basis.leave(X.T), end.code, end.cycles, end.products, end.residual_norms)


def _off(A: Map, size: Array, value: Array, x: Array, z: Array) -> Array:
    """K·z with K = P·(A − λ)·P + ‖A‖·x·xᴴ and P = 1 − x·xᴴ."""
    inside = _outside(x, z)
    return _outside(x, A(inside) - value * inside) + size * (z - inside)


def _solve_off(A: Map, size: Array, values: Array, X: Array, rhs: Array) -> Array:
    """The k systems K·z = rhs, by MINRES; NaN where one has no solution, as where an eigenvalue has copies.

    The components along the other eigenvectors are known. They are subtracted first, since they make a system slow to
    solve.
    """
    eps, n = jnp.finfo(values.dtype).eps, rhs.shape[1]
    gaps = values - values[:, None]  # [system, eigenvector]
    gaps = jnp.where(jnp.eye(values.size, dtype=bool), size, gaps)
    gaps = jnp.where(jnp.abs(gaps) <= eps**0.75 * size, 0, gaps)
    known = matmul(ratio(matmul(rhs, jnp.conj(X).T), gaps), X)
    options = iterate.Options(0, steps_per_check(n), None, None)
    zero = jnp.zeros((), values.dtype)
    limits, same = stopping.Limits(eps**0.75 + zero, zero, jnp.int32(min(10 * n, 2**31 - 1)), zero), lambda v: v

    def one(value, x, rhs, known):
        K = functools.partial(_off, A, size, value, x)
        z = known + iterate.run(MINRES, options, iterate.System(K, same, rhs - K(known), None, limits), same).x
        solved = norm(rhs - K(z)) <= jnp.sqrt(eps) * norm(rhs)
        bounded = eps**0.75 * size * norm(z) <= norm(rhs)
        return jnp.where(solved & bounded, z, jnp.nan)

    return jax.vmap(one)(values, X, rhs, known)


def _outside(x: Array, z: Array) -> Array:
    """z less its component along x, in the last axis."""
    return z - jnp.sum(jnp.conj(x) * z, axis=-1, keepdims=True) * x
