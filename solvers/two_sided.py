"""Right and left eigenpairs of A·x = λ·M·x as one differentiable operation, for `eigs`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core.basis import Basis, Operator
from solvers.core import opaque, operators, stopping
from solvers.core.space import Map, length, transposed
from solvers.core.vectors import matmul, ratio
from solvers.eigenpairs import EigenSolution, krylov, where_solved
from solvers.gmres import method as gmres
from solvers.pencil import Pencil
from solvers.solution import Status

RESTART = 30  # steps of GMRES between restarts, for the derivative of a vector
DEFECTIVE = 0.1  # over √eps: the largest condition number of an eigenvalue that has a derivative
LEFT = 1e3  # times eps·‖A − λ·M‖·‖y‖: the largest residual of a left eigenvector y


def two_sided(operation: "TwoSided", basis: Basis, pencil: Pencil, like: Array, frozen: tuple[Any, ...]) -> Any:
    """The pairs of a pencil of operators, between vectors in the basis like `like`, by a loop with inputs `frozen`."""

    def as_function(A: Operator) -> Any:
        return operators.traced(lambda v: (A @ v).astype(like.dtype), like)

    maps = pencil._replace(A=as_function(pencil.A), M=None if pencil.M is None else as_function(pencil.M))
    sol, ends = operation((maps, lax.stop_gradient(frozen)))
    Y, lost = sol.left_eigenvectors, jnp.any(ends.lost) & ~stopping.is_failure(sol.code)
    return dataclasses.replace(
        sol,
        eigenvectors=basis.leave(sol.eigenvectors),
        left_eigenvectors=None if Y is None else basis.leave(Y),
        code=jnp.where(lost, jnp.int32(Status.STAGNATION), sol.code),
    )


class Solver(NamedTuple):
    solve: Map


def side_of(pencil: Pencil, like: Array, is_left: bool = False) -> Pencil:
    """The pencil as maps of real or complex vectors [n] or [n, k]; its transpose if `is_left`."""

    def wide(f: Map) -> Map:
        if jnp.iscomplexobj(like):
            return f

        def of_both(v: Array) -> Array:  # by one product of real columns
            if not jnp.iscomplexobj(v):
                return f(v)
            parts = f(jnp.concatenate([part.reshape(len(v), -1) for part in (v.real, v.imag)], axis=1))
            return lax.complex(*(part.reshape(v.shape) for part in jnp.split(parts, 2, axis=1)))

        return of_both

    def side(f: Any) -> Any:
        return None if f is None else wide((lambda v: transposed(f, v)(v)) if is_left else f)

    S = pencil.S.T if is_left and pencil.S is not None else pencil.S
    solver = None if S is None else Solver(wide(lambda v: S.solve(v).astype(v.dtype)))
    return pencil._replace(A=side(pencil.A), M=side(pencil.M), S=solver)


class Ends(NamedTuple):
    unit: Array  # the norm of A − λ·M
    lost: Array  # [k] whether no left eigenvector was found
    defective: Array  # [k] whether the eigenvalue has no derivative


class TwoSided(opaque.Operation):
    """The result of a loop, differentiable in whatever A and M depend on; all zero where one number is not finite.

    The loop is not differentiated. From A·x = λ·M·x and left eigenvectors uᵀ·A = λ·uᵀ·M with uᵀ·M·x = 1 follow
    dλ = uᵀ·r and (A − λ·M)·dx = −(1 − M·x·uᵀ)·r with r = (dA − λ·dM)·x, and du by the transposes. The systems are
    singular in the direction of x alone. With P = 1 − x·uᵀ·M and R = 1 − M·x·uᵀ,
    K = R·(A − λ·M)·P + unit·M·x·uᵀ·M is regular.

    Attributes:
      loop: (*static, pencil, start, limits, targets) -> the pairs, and the norm of A − λ·M; the last of `static` is
        what is called after each step.
      left: whether the left eigenvectors are among the results.
    """

    loop: Callable[..., tuple[EigenSolution, Array]]
    static: tuple[Any, ...]
    left: bool

    def compute(self, inputs: tuple[Pencil, Any]) -> tuple[EigenSolution, Ends]:
        pencil, (start, limits) = inputs
        sol, unit = self.loop(*self.static, side_of(pencil, start), start, limits)
        sol = _finite(sol)
        nothing = jnp.zeros(sol.eigenvalues.shape, bool)
        if not self.left:
            return sol, Ends(unit, nothing, nothing)
        values, X, real = sol.eigenvalues, sol.eigenvectors, jnp.finfo(sol.eigenvectors.dtype)
        other = side_of(pencil, start, True)
        found, _ = self.loop(*self.static[:-1], None, other, jnp.zeros_like(start), limits, values)
        Z, MX = _finite(found).eigenvectors, side_of(pencil, start).mass(X)
        # Eigenvectors of one side are orthogonal to others of the other: so a defective one spoils no other.
        apart = jnp.abs(found.eigenvalues[:, None] - values) > real.eps**0.25 * unit
        U = matmul(Z, jnp.linalg.pinv(jnp.where(apart, 0, matmul(Z.T, MX))).T)
        known = jnp.all(jnp.isfinite(U))
        U = jnp.where(known, U, 0)
        size = length(U)
        lost = ~(length(other.residual(values, U)) <= LEFT * real.eps * unit * size) | (size == 0) | ~known
        defective = size * length(MX) > DEFECTIVE / real.eps**0.5
        return dataclasses.replace(sol, left_eigenvectors=jnp.conj(U)), Ends(unit, lost, defective)

    def jvp(self, inputs: tuple[Pencil, Any], tangents: tuple[Pencil, Any]) -> tuple[Any, Any]:
        pencil, d_pencil, start = inputs[0], tangents[0], inputs[1][0]
        sol, ends = dataclasses.replace(self, left=True)(inputs)
        values, X, U = sol.eigenvalues, sol.eigenvectors, jnp.conj(sol.left_eigenvectors)
        failed = stopping.is_failure(sol.code) | ends.lost | ends.defective
        X, U = opaque.witness(failed, X), opaque.witness(failed, U)
        unit = lax.stop_gradient(jnp.where(ends.unit == 0, 1, ends.unit))
        right, left = side_of(pencil, start), side_of(pencil, start, True)
        if not self.left:
            sol, ends = dataclasses.replace(sol, left_eigenvectors=None), Ends(ends.unit, *[ends.lost & False] * 2)
        d_sol, d_ends = opaque.undefined((sol, ends), d_pencil)
        d_values = d_X = d_Y = None
        r = opaque.jvp(lambda pencil: side_of(pencil, start).residual(values, X), pencil, d_pencil)
        if r is not None:
            r, MX, MU = opaque.unless(failed, r), right.mass(X), left.mass(U)
            d_values = jnp.sum(U * r, axis=0)
            d_X = _solve(right, left, unit, values, X, U, MX * d_values - r)
            d_X = d_X - X * jnp.sum(jnp.conj(X) * d_X, axis=0)
            if self.left:
                r = opaque.jvp(lambda pencil: side_of(pencil, start, True).residual(values, U), pencil, d_pencil)
                r = opaque.unless(failed, r)
                d_U = _solve(left, right, unit, values, U, X, MU * jnp.sum(X * r, axis=0) - r)
                along = jnp.sum(MU * d_X, axis=0)
                if pencil.M is not None:
                    dM_X = opaque.jvp(lambda pencil: side_of(pencil, start).mass(X), pencil, d_pencil)
                    along = along if dM_X is None else along + jnp.sum(U * dM_X, axis=0)
                d_Y = jnp.conj(opaque.unless(failed, d_U - U * along))
            d_values, d_X = (opaque.unless(failed, d) for d in (d_values, d_X))
        d_sol = dataclasses.replace(d_sol, eigenvalues=d_values, eigenvectors=d_X, left_eigenvectors=d_Y)
        return (sol, ends), (d_sol, d_ends)


def _finite(sol: EigenSolution) -> EigenSolution:
    finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(sol)])
    values, X = (jnp.where(finite, a, 0) for a in (sol.eigenvalues, sol.eigenvectors))
    code = jnp.where(finite, sol.code, Status.NON_FINITE).astype(jnp.int32)
    return dataclasses.replace(sol, eigenvalues=values, eigenvectors=X, code=code)


def _solve(side: Pencil, other: Pencil, unit: Array, values: Array, X: Array, U: Array, rhs: Array) -> Array:
    """The k systems K·z = rhs of a side, of whose transpose U are the eigenvectors; differentiable."""
    MX, MU = side.mass(X), other.mass(U)

    def K(Z: Array) -> Array:
        along = jnp.sum(MU * Z, axis=0)
        out = side.residual(values, Z - X * along)
        return out + MX * (unit * along - jnp.sum(U * out, axis=0))

    return lax.custom_linear_solve(
        K,
        rhs,
        lambda K, rhs: _solve_off(side, other, K, unit, values, X, U, rhs),
        lambda K, rhs: _solve_off(other, side, K, unit, values, U, X, rhs),
    )


def _solve_off(
    side: Pencil, other: Pencil, K: Map, unit: Array, values: Array, X: Array, U: Array, rhs: Array
) -> Array:
    """By GMRES; NaN where a system has no solution, as where an eigenvalue has copies.

    The components along the other eigenvectors are known. With a shift GMRES solves
    (1 − (λ − sigma)·(A − sigma·M)⁻¹·M)·z = (A − sigma·M)⁻¹·rhs.
    """
    eps, shift = jnp.finfo(X.dtype).eps, side.shift
    MX, MU = side.mass(X), other.mass(U)

    def inside(Z: Array) -> Array:
        return Z - matmul(X, matmul(MU.T, Z))

    def outside(Z: Array) -> Array:
        return Z - matmul(MX, matmul(U.T, Z))

    gaps = values[:, None] - values  # [eigenvector, system]
    gaps = jnp.where(jnp.eye(values.size, dtype=bool), unit, jnp.where(jnp.abs(gaps) <= eps**0.75 * unit, 0, gaps))
    known, r = matmul(X, ratio(matmul(U.T, rhs), gaps)), outside(rhs)
    method = gmres(min(RESTART, X.shape[0]))
    if shift is None:
        z = krylov(method, lambda Z: outside(side.residual(values, inside(Z))) + matmul(MX, matmul(MU.T, Z)) * unit, r)
    else:
        above = values - shift.sigma
        z = krylov(method, lambda Z: Z - inside(above * side.operator(inside(Z))), inside(side.inverse(r)))
    return where_solved(K, known + inside(z), rhs, unit)
