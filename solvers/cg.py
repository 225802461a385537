"""Conjugate gradients, in two forms.

`step` (Hestenes and Stiefel 1952; Saad, Iterative Methods, Algorithm 9.1) computes rᵀ·M·r after it has updated r, so it
passes over vectors, and adds up over devices, twice. `step_predicting` (Chen and Carson 2020, PR-CG) predicts rᵀ·M·r of
the next r = r − α·s by rᵀ·r, rᵀ·s and sᵀ·s, and so updates all vectors in one pass. The sum itself replaces the
prediction one step later, so that errors do not add up. A is symmetric, so rᵀ·s follows from sums at hand: `_z_dot_s`.

Traffic of a step without preconditioner, in vectors of n. In both forms the product reads p and writes s = A·p, and
computes its sums in the same pass in formats such as `dia`, `csr` and `bsr` if rows are short; else they take a pass
and 2n more. In `step` the update of r reads 2 and writes 1, and that of x and p reads 3 and writes 2: together
10n. In `step_predicting` one pass reads x, r, p and s and writes x, r and p: together 9n, after a product and a pass
more at each start.
"""

import functools
from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt.core.vector_passes import DOT, Number, Pass
from solvers.core.iterate import Method
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.core.space import Map, Product, Space
from solvers.core.stopping import RESTART, RUNNING, Now
from solvers.core.vectors import ratio, root
from solvers.solution import Solution, Status


class Work(NamedTuple):
    x: Array  # [n] the vector to add to x
    r: Array  # [n] residual b − A·x by recursion
    p: Array  # [n] direction
    gamma: Array  # rᵀ·M·r
    alpha: Array  # the last α; 0 before the first


class Predicting(NamedTuple):
    """Vectors of `step_predicting`, with the direction p in units of the last step α.

    So A·d is about as long as r, and its square lies in the dtype. In float32 that bounds A: from about 1e27 on dᵀ·A·d
    vanishes, and the solve ends as DIVERGED or BREAKDOWN.
    """

    x: Array
    r: Array
    z: Array | None  # [n] M·r by recursion; None without M
    d: Array  # [n] u·p, which is u·z + c·d of the last step
    u: Array  # the last α; 1 before the first
    c: Array  # u·β / the α before
    curvature: Array  # dᵀ·A·d of the last step; 0 before the first
    sums: tuple[Number, ...]  # rᵀ·r, and zᵀ·A·d of the last d; with M also rᵀ·z

    @property
    def p(self) -> Array:
        return ratio(self.d, self.u.astype(self.d.dtype))


@solver()
def cg(A: Any, b: Any, x0: Any = None, *, one_reduction: bool = False, **settings: Unpack[Keywords]) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) definite A, positive or negative.

    Works inside jit, vmap and grad. Differentiable in b and in A's values to any order, by implicit differentiation:
    the derivative of a solve is a solve with the same A, M and rtol, and is NaN if either of the two fails. x has no
    derivative with respect to M and x0; the derivatives of `residual_norm` and `history` are NaN. See `adjoint` for
    more.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v.
        A matrix is an argument of the compiled solver, which serves all matrices of its format and array shapes. A
        function, or a matrix that is not a pytree, is traced at each call. Outside jit the same function object reuses
        its compiled solver, with the arrays that it closes over now; a new lambda compiles again.
      b: [n], or with a matrix A [n, k] for k systems at once: they share every product, and each starts, counts its
        iterations and ends separately. With a function A, b is an array of any shape or a pytree of arrays: a single
        system, whose A and M are functions of such arrays. Use `jax.vmap` for several.
      x0: initial guess, of the shape of b; None: zero. Ignored if ‖b − A·x0‖ ≥ 1024·‖b‖.
      M: an approximation of A⁻¹, definite: anything with `@`, a function r -> M·r, or the diagonal [n] of a
        diagonal M.
      rtol, atol: stop when ‖b − A·x‖₂ ≤ max(rtol·‖b‖₂, atol), by the true residual. If rounding errors prevent that,
        as they often do in float32, a solve that stagnates at their level ends as ROUNDED, a success:
        ‖b − A·x‖ ≤ 10·eps·(‖A‖·‖x‖ + ‖b‖) and ≤ eps^¼·‖b‖, so that x is as accurate as the dtype allows. An rtol below
        eps asks for more, and ends with STAGNATION; inf accepts x0. Denormal numbers of A and b count as zeros.
      maxiter: most iterations; None allows 10·n. A solve ends earlier if its residual grows beyond what rounding lets
        it recover from (DIVERGED), or if A proves not symmetric while the residual does not fall.
      history: keep the residual norms: True up to 10,000, a whole number up to that many.
      callback: called as callback(x) after every iteration, as in SciPy; copies x to the host each time. Not available
        for a matrix over several devices.
      progress: True shows a bar on standard error, with the quantity that the stopping rule compares and its target.
        A function is called as progress(iterations, residual_norm). Both see about every 16th iteration, and under vmap
        every one of each system. Outside jit a solve with a callback or progress returns after the last call, and
        compiles for a new function.
      check_every: iterations between checks, at most 1000; None takes 1 on a CPU, and on a GPU, where a check waits for
        a copy to the host, 10 or 40, or fewer with an M of many arrays, such as `precond.multigrid`. It changes neither
        the answer nor the reported iterations.
      adjoint: how derivatives are computed: an `Adjoint`, with a tolerance, maxiter and report of its own; or
        "unrolled", which takes at most maxiter steps and differentiates them, for example to train an M: then x and
        residual_norm have derivatives with respect to A, b, x0 and M, and reverse mode stores the vectors of maxiter
        steps.
      nullspace: the vectors that a singular A takes to 0: "constant", an array [n] or [n, m], or a list of vectors like
        b; they need not be orthonormal, and M may be singular along them. x is then the shortest least-squares solution
        A⁺·b, and the status is LEAST_SQUARES if b is not in A's range. Derivatives are those of (P·A·P)⁺·b, where P
        projects along the vectors, in both cases: those of A⁺·b, as long as the data on which A depends keeps the null
        space, or the vectors move with it. If A or the vectors are traced, and A does not take these to 0, the
        status is BREAKDOWN, and derivatives are NaN.
      left_nullspace: those that Aᴴ takes to 0, for `gmres`, `bicgstab`, `idrs`, `solve` and `direct`; None takes A to
        be symmetric. It needs as many vectors.
      one_reduction: use the form with one reduction a step instead of two (Chen and Carson 2020), for many devices,
        since a reduction waits for all of them. Without an M it reads and writes one vector less, and is the default
        for a matrix with a real b [n] on a GPU, and in the loop over several devices. With an M it reads and writes
        three vectors more. It predicts the residual norms that `history` and `progress` show: a norm that falls by more
        than half the digits in a step may show as 0. The last digits of x differ, and in ill-conditioned systems the
        number of steps.

    Returns:
      A `Solution`. Its status reports how the solve ended; x is always finite, and the best one if a solve failed.

    Raises:
      ValueError, TypeError: shapes that do not fit, or invalid arguments, such as dependent vectors of a null space, or
        some that A does not take to 0: ‖A·z‖ > 1e-6·‖A‖, in float32 1e-5.

    Examples:
      >>> sol = js.cg(A, b, rtol=1e-8)
      >>> sol.status, bool(sol.residual_norm <= 1e-8 * np.linalg.norm(b))
      (<Status.CONVERGED: 0>, True)
      >>> x, info = js.cg(A, b)  # as SciPy's
    """
    if not isinstance(one_reduction, bool):
        raise TypeError(f"one_reduction must be True or False; got {one_reduction!r}")
    return by_method(ONE_REDUCTION if one_reduction else METHOD, A, b, x0, Settings(**settings))


def start(space: Space, A: Map, M: Map, r: Array, squared: Array, last: Any, z: Array | None = None) -> Work:
    """The first vectors, for z = M·r. The direction is the last one with its part along z replaced: so rᵀ·p = rᵀ·M·r.

    This is a reliable update (Clark et al. 2010, §5): a restart from M·r would lose the conjugacy to earlier directions
    and converge as slowly as from the start.
    """
    z = M(r) if z is None else z
    gamma, p = squared if z is r else space.dot(r, z), z
    if last is not None:
        direction, along = last
        rest, is_kept = _rest(gamma, along)
        p = jnp.where(is_kept, direction + rest.astype(r.dtype) * z, z)
    return Work(jnp.zeros_like(r), r, p, gamma, jnp.zeros_like(gamma))


@one_kernel
def _rest(gamma: Array, along: Array) -> tuple[Array, Array]:
    return ratio(gamma - along.astype(gamma.dtype), gamma), along < jnp.inf


def start_predicting(
    space: Space, A: Map, M: Map, r: Array, squared: Array, last: Any, always: bool = False
) -> Work | Predicting:
    """As `start`; or the vectors of `step_predicting`, by one more product and pass, if its steps cost no more.

    Args:
      always: take `step_predicting` whatever its steps cost.
    """
    z = M(r)
    work = start(space, A, M, r, squared, last, z)
    if not (always or (z is r and isinstance(A, Product) and space.sums_at_once(r))):
        return work
    # p is z + d with d = p − z in place of the direction of the step before, and u = c = 1.
    x, r, p, gamma, _ = work
    one, (rr, rest, rz) = jnp.ones_like(gamma), space.sweep(FIRST, (), (r, z, A(p), p - z))[2]
    if z is r:
        return Predicting(x, r, None, p, one, one, jnp.zeros_like(one), (rr, rest))
    return Predicting(x, r, z, p, one, one, jnp.zeros_like(one), (rr, rest, rz))


def step(space: Space, A: Map, M: Map, work: Any, now: Now) -> tuple[Any, Now]:
    """One step, in four kernels and M: the passes also compute the loop's scalars, which else would be more kernels.

    Work of `start_predicting` goes to `step_predicting`.
    """
    if isinstance(work, Predicting):
        return step_predicting(space, A, M, work, now)
    x, r, p, gamma, last_alpha = work
    q, (curvature,) = space.product_sums(A, p, DOT, p)
    numbers = gamma, last_alpha, curvature, *now.numbers
    (r,), (_, alpha, ended, moves), (rr,) = space.sweep(DESCEND, numbers, (r, q))
    z = M(r)
    rz = rr if z is r else space.part(r, z)
    numbers = gamma, alpha, moves, rr, rz, now.k
    (x, p), (gamma, k, norm, *_), _ = space.sweep(TURN, numbers, (x, p, z))
    return Work(x, r, p, gamma, alpha), now._replace(k=k, norm=norm, code=ended)


def _descend(gamma, last_alpha, curvature, *now):
    then, alpha = Now(*now), jnp.where(curvature == 0, 0, gamma / curvature)
    code = step_code(gamma, curvature, alpha, last_alpha)
    moves = then.active & (code == RUNNING)
    kept = jnp.where(moves, alpha, last_alpha)
    return -kept, kept, jnp.where(then.active, code, then.code), moves


def _descend_each(scalars, r, q):
    minus_alpha, _, _, moves = scalars
    r = jnp.where(moves, r + minus_alpha * q, r)  # as x, so that a CPU compiles one kernel for both
    return (r,), ((r, r),)


def _turn(gamma, alpha, moves, rr, rz, k):
    # Without a step r is as it was, and so are rᵀ·r and rᵀ·M·r.
    return rz, k + moves.astype(jnp.int32), root(rr), alpha, rz / gamma, moves


def _turn_each(scalars, x, p, z):
    *_, alpha, beta, moves = scalars
    return (jnp.where(moves, x + alpha * p, x), jnp.where(moves, z + beta * p, p)), ()


def step_predicting(space: Space, A: Map, M: Map, work: Predicting, now: Now) -> tuple[Predicting, Now]:
    """One step in two kernels, with M in three and M."""
    x, r, z, d, u, c, curvature, last_sums = work
    numbers = u, c, curvature, *last_sums, *now.numbers
    if z is None:
        s, sums = space.product_sums(A, d, SUMS, d)
        vectors, scalars, sums = space.sweep(ADVANCE, (*sums, *numbers), (x, r, d, s))
    else:
        s, sums = space.product_sums(A, d, SUMS_OF_M, d, r)
        t = M(s)
        numbers = *sums, space.part(s, t), *numbers  # sᵀ·M·s shows the sign of M; z, a recursion, may not
        vectors, scalars, sums = space.sweep(ADVANCE_OF_M, numbers, (x, r, d, s, z, t))
    (x, r, d, *of_M), (u, c, curvature, k, norm, ended, *_) = vectors, scalars
    z = of_M[0] if of_M else None
    return Predicting(x, r, z, d, u, c, curvature, sums), now._replace(k=k, norm=norm, code=ended)


def _advance(curvature, ss, u, c, before, rr, rest, *now):
    squares = rr, _z_dot_s(u, c, before, curvature, rest), ss
    return _advanced(u, curvature, before, squares, squares, Now(*now))


def _advance_of_M(curvature, ss, rs, st, u, c, before, rr, rest, rz, *now):
    of_M = rz, _z_dot_s(u, c, before, curvature, rest), st
    return _advanced(u, curvature, before, (rr, rs, ss), of_M, Now(*now))


def _z_dot_s(u, c, before, curvature, rest):
    """zᵀ·A·d, as z is (d − c·d₀) / u and d₀ᵀ·A·d = (A·d₀)ᵀ·(u·z + c·d₀), with the direction d₀ of the last step."""
    return (curvature - c * (u * rest + c * before)) / u


def _advanced(u, curvature, before, squares, of_M, now):
    """The scalars after the step, α, and whether the vectors move."""
    gamma = of_M[0]
    alpha = jnp.where(curvature == 0, 0, u * gamma / curvature)
    code = step_code(gamma, curvature, alpha, jnp.abs(before))  # α in units of the last one is negative if that was not
    opposite = jnp.where(gamma > 0, of_M[2], -of_M[2]) < 0
    is_rounding = opposite & (alpha < 0) & (jnp.where(before > 0, curvature, -curvature) > 0)
    code = jnp.where((code == RUNNING) & opposite, jnp.int32(Status.NOT_POSITIVE_DEFINITE), code)
    code = jnp.where((before != 0) & is_rounding, jnp.int32(RESTART), code)
    moves = now.active & (code == RUNNING)
    # The first unit may be far from α: then the squares of A·d lie beyond the dtype, and the method starts again.
    far = jnp.finfo(alpha.dtype).max ** 0.25
    known = (jnp.abs(alpha) < far) & (jnp.abs(alpha) > 1 / far)
    squared = jnp.where(known, _predicted(alpha, *squares), squares[0])
    c = jnp.where(known, alpha * _or_zero(_predicted(alpha, *of_M) / gamma), 0)
    then = now.after(root(_or_zero(squared)), code)
    return jnp.where(moves, alpha * u, u), c, curvature, then.k, then.norm, then.code, alpha, moves


def _predicted(alpha, rr, rs, ss):
    """‖r − α·s‖², in some inner product."""
    return rr - alpha * (2 * rs - alpha * ss)


def _or_zero(squared):
    """0 for what rounding makes negative, after a step that took nearly all of r."""
    return jnp.where(squared < 0, 0, squared)


def _advance_each(scalars, x, r, d, s, *of_M):
    u, c, *_, alpha, moves = scalars
    x, r = jnp.where(moves, x + alpha * d, x), jnp.where(moves, r - alpha * s, r)
    if not of_M:
        return (x, r, jnp.where(moves, u * r + c * d, d)), ((r, r), (s, r))
    z, t = of_M
    z = jnp.where(moves, z - alpha * t, z)
    return (x, r, jnp.where(moves, u * z + c * d, d), z), ((r, r), (s, z), (r, z))


DESCEND = Pass(_descend, _descend_each)
TURN = Pass(_turn, _turn_each)
FIRST = Pass(tuple, lambda _, r, z, s, q: ((), ((r, r), (s, q), (r, z))))
SUMS, ADVANCE = Pass(tuple, lambda _, s, d: ((), ((d, s), (s, s)))), Pass(_advance, _advance_each)
SUMS_OF_M = Pass(tuple, lambda _, s, d, r: ((), ((d, s), (s, s), (r, s))))
ADVANCE_OF_M = Pass(_advance_of_M, _advance_each)


def step_code(gamma: Array, curvature: Array, alpha: Array, last_alpha: Array) -> Array:
    """RUNNING, or the Status of a step that must not be taken.

    α = rᵀ·M·r / pᵀ·A·p keeps its sign if A and M are definite. The first step decides the sign: for −A the recurrences
    yield the same x, with −α for α.
    """
    turns = ((alpha < 0) & (last_alpha > 0)) | ((alpha > 0) & (last_alpha < 0))
    largest = jnp.finfo(alpha.dtype).max
    refused = jnp.where(turns, jnp.int32(Status.NOT_POSITIVE_DEFINITE), jnp.int32(Status.BREAKDOWN))
    refused = jnp.where(jnp.abs(gamma + curvature) <= largest, refused, jnp.int32(Status.NON_FINITE))
    is_step = (jnp.abs(alpha) > 0) & (jnp.abs(alpha) <= largest)
    return jnp.where(is_step & (refused == Status.BREAKDOWN), jnp.int32(RUNNING), refused)


METHOD = Method(start_predicting, step, keeps=True, sums=lambda without_M: (SUMS, 1) if without_M else (DOT, 1))
ONE_REDUCTION = Method(
    functools.partial(start_predicting, always=True),
    step,
    keeps=True,
    sums=lambda without_M: (SUMS, 1) if without_M else (SUMS_OF_M, 2),
)
