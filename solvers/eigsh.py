"""A few eigenpairs of a Hermitian matrix by thick-restart Lanczos (Wu and Simon 2000, Algorithm 1).

The loop holds orthonormal vectors V and the real symmetric T of A·Vₘ = Vₘ·T + v·bᵀ, with Vₘ the first m rows of V as
columns and v the row after them. Products fill V, and a restart keeps the best Ritz vectors and v.

Traffic of a step, in vectors of n: the product, and 4·(m + 1) to make its result orthogonal to the basis, twice. A
restart reads the basis and writes half of it. Memory: 2·(m + 1) vectors.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from solvers import pencil as pencils
from solvers.core import arguments, operators
from solvers.core.iterate import tell_end
from solvers.core.program import Entry
from solvers.core.space import Map, Space, exponent, length, norm, outside
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import dot, matmul, ratio, scaled, scaled_by
from solvers.eigenpairs import NEAREST, EigenSolution, Limits, Pairs, basis_sizes, eigenpairs, eigenproblem, limits
from solvers.pencil import Pencil
from solvers.solution import Status

# An order of real numbers that begins with the wanted ones.
KEYS: dict[str, Callable[[Array], Array]] = {"LM": lambda d: -jnp.abs(d), "LA": lambda d: -d, "SA": lambda d: d}
STALLED = 200  # restarts that must halve the least residuals so far, until these are half as small as they can be
# In units of eps·‖A‖: the length that remains, after a step, of a vector in the span of the basis; the residual norm
# that the loop accepts; and the true residual norm that is then allowed, plus a unit for each restart.
BREAKDOWN, ESTIMATE, TRUE = 10, 20, 100
SETTLED = 0.1  # times its distance from the wanted pairs: a residual with which the next pair counts as known
ROUNDED = 100  # times the allowed one: a residual norm that may still be that of rounding
QR = lax.linalg.EighImplementation.QR  # Jacobi's method, a GPU's default for small matrices, loses digits
SPREAD = 1000  # an eigenvalue of the inverse that is larger than others by more hides them


@arguments.door
def eigsh(
    A: Any,
    k: int = 6,
    *,
    M: Any = None,
    Minv: Any = None,
    which: str = "LM",
    sigma: Any = None,
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    progress: Any = None,
) -> EigenSolution:
    """k eigenvalues and eigenvectors of a symmetric (Hermitian) A, at an end of its spectrum or nearest to a number.

    The ground state of a Hamiltonian is `eigsh(H, 1, which="SA")`. Works inside jit and vmap. The smallest eigenvalues
    of a discretised differential operator lie close together: there `sigma=0`, or `lobpcg` with `precond.multigrid(A)`
    where factors would not fit the memory, takes a few steps, and `which="SA"` thousands of products.

    All copies of an eigenvalue are found: for k > 1 a search from a random vector follows, outside the pairs
    found and in any symmetry, until it shows that nothing better is left. It costs about as much as the first.

    Eigenvalues are differentiable to second order, eigenvectors to first, with respect to A's values and whatever a
    function closes over; dλ = vᴴ·dA·v and dv = −(A − λ)⁺·dA·v with vᴴ·dv = 0, by MINRES. Derivatives hold for changes
    that keep A Hermitian. An eigenvalue with copies has no derivative of its own (the sum over its copies has one), and
    the derivative of its vectors is NaN. All derivatives of pairs whose status is a failure are NaN.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v,
        which needs v0.
      k: the number of pairs, below n.
      M: [n, n] matrix, sparse or dense, for the pairs of A·x = λ·M·x. xᴴ·M·x is 1 for the
        eigenvectors. The host factors M, which must be positive definite; with sigma M is not factored, and may be
        semidefinite: infinite eigenvalues, those of its null vectors, are left out.
      Minv: M⁻¹, a matrix or a function v -> M⁻¹·v, in place of factors; M may then be a function, too.
      which: "LM" largest in magnitude, "LA" largest, "SA" smallest.
      sigma: a real number; the pairs nearest to it are those of the largest eigenvalues of (A − sigma·M)⁻¹·M. The host
        factors A − sigma·M, at run time if A is traced, and keeps the last few factors. A is then a jaxsparse matrix,
        and products are solves.
        sigma may be an eigenvalue, as 0 is of a Laplacian or a free body: where A − sigma·M is singular within
        rounding, sigma is lowered by 8·eps·(‖A‖ + |sigma|·‖M‖)/‖M‖, in the norm ‖·‖₁, or by up to 256 times as
        much if M needs it.
      v0: [n], start vector; None draws one, the same at every call.
      ncv: vectors in the basis, k < ncv ≤ n, and half as many again at a restart; None takes 2·k + 20. It never has
        fewer than k + 5, or n.
      maxiter: most restarts, each after about (ncv − k)/2 products; None allows 1000. Two hundred restarts that
        do not halve the largest residual end the search with STAGNATION, unless it has been as small as √eps·‖A‖₂.
      tol: pairs are done when ‖A·v − λ·v‖₂ ≤ tol·|λ|, or when the residual is rounding, a few eps·‖A‖₂; 0 iterates down
        to rounding. The error of an eigenvalue is at most the residual. With sigma, pairs are CONVERGED when
        ‖A·v − λ·M·v‖₂ ≤ 100·eps·(‖A‖ + |λ|·‖M‖)·‖v‖₂, and ROUNDED up to a hundred times as much.
      progress: True shows a bar on standard error; a function is called after each restart with the number of restarts
        and the largest residual norm of the wanted pairs, with sigma that of (A − sigma·M)⁻¹·M.

    Raises:
      ValueError, TypeError: invalid arguments. SolverError: A and M have a null vector in common, so that A − sigma·M
        is singular for every sigma.

    Examples:
      >>> js.eigsh(A, 2).eigenvalues.round(3).tolist()  # the largest
      [6.236, 7.236]
      >>> js.eigsh(A, 2, sigma=0).eigenvalues.round(3).tolist()  # nearest to 0
      [0.764, 1.764]
    """
    if sigma is not None and which != "LM":
        raise ValueError(f"sigma takes the eigenvalues nearest to it, and no which; got {which!r}")
    is_pencil = M is not None or sigma is not None
    A, M = pencils.pair(A, M, sigma, Minv)
    in_basis, basis, k, v0 = eigenproblem(A, k, v0, "v0", ())
    n = v0.shape[0]
    M, Minv = (None if a is None else operators.operator(a, n, "M") for a in (M, Minv))
    v0 = v0 if M is None else v0.astype(operators.promoted(v0.dtype, operators.product_dtype(M, v0, "M")))
    check_choice("which", which, KEYS, NEAREST)
    ncv, m = basis_sizes(ncv, k, n)
    if sigma is None:
        factors = None if M is None or Minv is not None else pencils.inverse_of_mass(M), None
    else:
        factors = pencils.shifted(A, M, sigma)
    numbers = {"k": k, "which": which, "ncv": ncv, "tol": tol, "maxiter": maxiter}
    basis.agree(lambda: numbers | {"M": M, "sigma": sigma, "Minv": Minv})
    if is_pencil:
        in_basis, basis = operators.operator(A, n, "A"), IDENTITY
    watcher = arguments.watcher(progress)
    plan = k, which, m, watcher
    return _solve(plan, (in_basis, M, Minv), basis, v0, factors, limits(tol, maxiter), calls=watcher is not None)


def _in_basis(plan: Any, maps: tuple[Any, ...], basis: Basis, v0: Array, more: Any, limits: Limits) -> EigenSolution:
    start, pencil = basis.enter(v0), pencils.of(*maps, *more)
    return eigenpairs(Pairs(_run, (outside(basis), *plan)), basis, pencil, start, (start, limits))


_solve = Entry(_in_basis, lambda _, v0: (v0, v0, v0))


# -------------------------------------------------------------------------------------------------------- the loop


class State(NamedTuple):
    V: Array  # [m + 1, n] orthonormal rows, zero from row `size` on; the first `locked` ones are pairs that stay
    T: Array  # [m + 1, m + 1]; its lower triangle holds V·A·Vᴴ outside the locked rows, and products gave what is above
    size: Array
    fresh: Array  # whether the next row is random and coupled to nothing: the rows before it span an invariant space
    norm: Array  # ‖A‖₂ outside the locked rows, from below
    locked: Array
    values: Array  # [m + 1] of the locked rows
    best: Array  # the least of the largest residual norms so far
    mark: Array  # `best` at the last of every STALLED restarts
    code: Array
    cycles: Array
    products: Array


class Scaled(NamedTuple):
    """What the basis is made of: an operator, self-adjoint in the inner product of M, both of a norm about 1.

    Large eigenvalues of an inverse may hide others that are wanted. A start or a random vector then enters the basis by
    a product: with those large ones alone, which rounding would mix with it, and without what a singular M leaves open.
    """

    apply: Map
    mass: Map
    rounding: Array | float  # the relative error of a product, beyond eps
    is_inverse: bool
    random: Callable[[State], Array]  # a vector with which a basis starts, or goes on where it spans an invariant space
    exponents: tuple[Any, Any]  # of the powers of two by which the operator of the pencil and M were divided


def _run(
    space: Space, k: int, which: str, m: int, watcher: Any, pencil: Pencil, v0: Array, limits: Limits
) -> tuple[EigenSolution, Array]:
    """The pairs by a basis of m vectors, and the norm of A − λ·M.

    The loop scales the operator and M by powers of two, from their products with v0: this is exact, and no square
    under- or overflows.
    """
    real, zero, shift = jnp.finfo(v0.dtype).dtype, jnp.int32(0), pencil.shift
    noise, largest = space.probe(v0), jnp.max(jnp.abs(v0))
    v0 = jnp.where(largest == 0, noise, ratio(v0, largest))
    e_A = exponent(pencil.operator(v0))
    e_M = zero if pencil.M is None else exponent(pencil.mass(v0)) // 2 * 2

    def random(state: State) -> Array:
        scaled_noise = noise * (2 + state.size + state.cycles)  # another for each row of each basis
        return jnp.where(state.products == 0, v0, scaled_noise - 2 * jnp.round(scaled_noise / 2))

    operator = Scaled(
        scaled_by(lambda v: pencil.seen(pencil.operator(v)), e_A),
        pencil.mass if pencil.M is None else scaled_by(pencil.mass, e_M),
        0.0 if shift is None else scaled(10 * jnp.finfo(real).eps * shift.scale(shift.sigma), e_A),
        shift is not None,
        random,
        (e_A, e_M),
    )
    never, none = jnp.array(jnp.inf, real), jnp.zeros((), real)
    arrays = jnp.zeros((m + 1, v0.size), v0.dtype), jnp.zeros((m + 1, m + 1), v0.dtype)
    rest = none, zero, jnp.zeros(m + 1, real), never, never, zero + RUNNING, zero, zero
    state = State(*arrays, zero, jnp.bool_(True), *rest)

    inside = limits if shift is None else limits._replace(sigma=scaled(shift.sigma, e_A))

    def cycle(state: State) -> State:
        state = lax.while_loop(lambda state: state.size <= m, functools.partial(_step, operator), state)
        return _restart(k, which, inside, operator, state, watcher)

    state = lax.while_loop(lambda state: state.code == RUNNING, cycle, mesh_axes.varying(state, v0))
    found, solves = (_by_operator, k) if shift is None else (_by_inverse, 2 * k)
    values, X, norms, unit, judged = found(pencil, operator, limits, state, state.V[:k].T)
    met, rounded = jnp.all(judged, axis=1)
    true = status_of((met, Status.CONVERGED), (rounded, Status.ROUNDED), otherwise=Status.STAGNATION)
    code = jnp.where(state.code == Status.CONVERGED, true, state.code)
    if watcher is not None:
        tell_end(watcher, state.cycles, norms, limits.allowed(values, unit, TRUE), code)
    order, counts = jnp.argsort(values), (state.cycles, state.products + 1 + solves)
    return EigenSolution(values[order], X[:, order], code, *counts, norms[order]), unit


def _by_operator(pencil: Pencil, operator: Scaled, limits: Limits, state: State, X: Array) -> tuple[Array, ...]:
    """The pairs, their residual norms, the norm of A − λ·M, and which norms are small enough, and which rounding."""
    (e_A, e_M), A_X, MX = operator.exponents, operator.apply(X), operator.mass(X)
    values = jnp.sum(jnp.conj(MX) * A_X, axis=0).real
    lost = A_X - values * X
    norms = norm(lost) if MX is X else jnp.sqrt(jnp.abs(dot(lost, operator.mass(lost))))
    rounding = (TRUE + state.cycles) * jnp.finfo(X.dtype).eps * state.norm
    judged = jnp.stack([norms <= limits.allowed(values, state.norm, TRUE + state.cycles), norms <= ROUNDED * rounding])
    values, norms, unit = *scaled(jnp.stack([values, norms]), e_A), scaled(state.norm, e_A)
    if MX is X:
        return values, X, norms, unit, judged
    X = scaled(X, -e_M // 2)
    return values, X, length(pencil.residual(values, X)), unit * jnp.max(length(pencil.mass(X)) / length(X)), judged


def _by_inverse(pencil: Pencil, operator: Scaled, limits: Limits, state: State, X: Array) -> tuple[Array, ...]:
    """As `_by_operator`, after a step of inverse iteration, by the true residual."""
    shift: Any = pencil.shift
    X = X if pencil.M is None else scaled(X, -operator.exponents[1] // 2)
    MX, A_X = pencil.mass(X), pencil.operator(X)
    A_X = A_X + pencil.inverse(MX - pencil.residual(shift.sigma, A_X))  # pivots on the diagonal lose digits
    # Products with the inverse are inaccurate along eigenvectors near sigma alone. The columns of X begin with those.
    H = matmul(jnp.conj(MX).T, A_X)
    values = jnp.diagonal(H).real
    X = ratio(A_X, values)
    X = X - matmul(X, ratio(H - jnp.diag(jnp.diagonal(H)), values))
    L = jnp.linalg.cholesky(matmul(jnp.conj(X).T, pencil.mass(X)))
    X = lax.linalg.triangular_solve(L, X, left_side=False, lower=True, transpose_a=True, conjugate_a=True)
    values = shift.sigma + 1 / values
    norms, scale = length(pencil.residual(values, X)), shift.scale(values)
    rounding = TRUE * jnp.finfo(X.dtype).eps * scale * length(X)
    asked = limits.tol.astype(values.dtype) * jnp.abs(values) * length(pencil.mass(X))
    judged = jnp.stack([norms <= jnp.maximum(rounding, asked), norms <= ROUNDED * rounding])
    return values, X, norms, jnp.max(scale), judged


def _step(operator: Scaled, state: State) -> State:
    """One product, and the next row of the basis from it; a random row instead where the last product gave none."""
    V, j, fresh = state.V, state.size, state.fresh
    i, row, eps = jnp.maximum(j - 1, 0), jnp.arange(V.shape[0]), jnp.finfo(V.dtype).eps
    last, random = lax.dynamic_index_in_dim(V, i, keepdims=False), operator.random(state)
    w = operator.apply(jnp.where(fresh, random, last) if operator.is_inverse else last)
    w = w if operator.is_inverse else jnp.where(fresh, random, w)
    once = matmul(jnp.conj(V), operator.mass(w))
    w = w - matmul(once, V)
    again = matmul(jnp.conj(V), operator.mass(w))
    w = w - matmul(again, V)
    Mw = operator.mass(w)
    squared = dot(w, Mw)
    beta = jnp.sqrt(jnp.maximum(squared, 0))
    column = jnp.where(row < state.locked, 0, once + again)
    A_norm = jnp.where(fresh, state.norm, jnp.maximum(state.norm, jnp.hypot(norm(column), beta)))
    # A random vector of which a second projection takes more than it leaves lies in the span of the basis.
    ends = beta <= jnp.where(fresh, norm(again), BREAKDOWN * eps * A_norm)
    # A row of zeros stands for the one that is not needed after a full basis, and for one that M does not see.
    adds = ~ends | fresh | (j == V.shape[0] - 1)
    length = jnp.where(ends, 0, beta)
    column = jnp.where(row == j, length.astype(w.dtype), column)
    code = state.code
    if Mw is not w:  # where there is an M
        indefinite = squared < -jnp.sqrt(eps) * norm(w) * norm(Mw)
        code = jnp.where(indefinite, jnp.int32(Status.NOT_POSITIVE_DEFINITE), code)
    return state._replace(
        V=lax.dynamic_update_index_in_dim(V, ratio(w, length), j, 0),
        T=jnp.where(~fresh & (row == i), column[:, None], state.T),
        size=j + adds.astype(jnp.int32),
        fresh=ends & ~fresh,
        norm=A_norm,
        code=code,
        products=state.products + 1,
    )


def _restart(k: int, which: str, limits: Limits, operator: Scaled, state: State, watcher: Any = None) -> State:
    """Judges the pairs, and keeps the best: `keep` of them and the direction of their residuals, or locked ones alone.

    A Krylov space has one vector of each eigenspace. So the loop locks the wanted pairs once they have converged: a
    search starts from a random vector outside them, and when the best pair there is known to be no better, the wanted
    pairs are complete. One pair needs no check, and neither does a basis of the whole space.

    Pairs of an inverse that are far larger than others which are wanted are locked first: rounding relative to the
    large ones hides the others, and a search outside of the large ones does not see them.
    """
    m, n = state.V.shape[0] - 1, state.V.shape[1]
    keep, place = k + (m - k) // 2, jnp.arange(m)
    finite = jnp.all(jnp.isfinite(state.T))
    T = jnp.where(finite, state.T, 0)
    gap = jnp.max(jnp.abs(jnp.triu(T[:m, :m] - jnp.conj(T[:m, :m].T))))
    # Locked rows, coupled to nothing, get eigenvalues before all others in their order, and their own in `values`.
    locked, above = place < state.locked, jnp.maximum(jnp.sum(jnp.abs(T)), jnp.finfo(T.dtype).tiny)
    # `above` is no larger, since rounding in `eigh` may be relative to it.
    first = jnp.where(locked, above * (place / m - 2).astype(above.dtype), 0)
    Y, values = lax.linalg.eigh(T[:m, :m].real + jnp.diag(first), symmetrize_input=False, implementation=QR)
    values = jnp.where(locked, state.values[:m], values)
    Y = jnp.where(locked[:, None] | locked, jnp.eye(m, dtype=Y.dtype), Y)
    coupling = T[m, m - 1].real * Y[m - 1]  # the residual of a pair is this multiple of the last row
    residual_norms, magnitudes = jnp.abs(coupling), jnp.where(locked, 0, jnp.abs(values))
    largest = jnp.max(magnitudes)
    A_norm = jnp.maximum(state.norm, largest)
    allowed = limits.allowed(values, A_norm, ESTIMATE)
    # A copy of a locked pair is no better than that.
    keys = KEYS[which](values) - jnp.where(locked, allowed, 0)
    better = (keys < keys[:, None]) | ((keys == keys[:, None]) & (place < place[:, None]))
    rank = jnp.sum(better, axis=1, dtype=jnp.int32)
    wanted = rank < k
    hidden = (magnitudes < largest / SPREAD) & ~locked & operator.is_inverse
    done = locked | (residual_norms <= allowed)
    ready, same = jnp.all(done | hidden | ~wanted), jnp.all(locked | ~wanted)
    locks, check = jnp.min(jnp.where(done & ~hidden, k, rank), initial=k).astype(jnp.int32), ready & ~same
    complete = ready & ~jnp.any(hidden & wanted)
    if k > 1 and m < n:
        # The square of the residual over the gap, a bound of the error, would end this earlier, but misses near copies.
        distance = SETTLED * (keys - jnp.max(jnp.where(wanted, keys, -jnp.inf)))
        complete = same & jnp.all((residual_norms <= jnp.maximum(allowed, distance)) | (rank != k))
    cycles, best = state.cycles + 1, jnp.minimum(state.best, jnp.max(jnp.where(wanted & ~locked, residual_norms, 0)))
    if watcher is not None:
        open_norms = jnp.where(wanted & ~done, residual_norms, 0)
        sides = (scaled(a, operator.exponents[0]) for a in (open_norms, open_norms, allowed))
        jax.debug.callback(watcher, cycles, *sides)
    due, half = cycles % STALLED == 0, jnp.finfo(best.dtype).eps ** 0.5 * A_norm
    least = jnp.maximum(half, jnp.max(jnp.where(wanted, allowed, 0)))
    code = status_of(
        (state.code != RUNNING, state.code),
        (~finite, Status.NON_FINITE),
        (limits.unsymmetric(gap, A_norm, operator.rounding * A_norm), Status.NOT_SYMMETRIC),
        (complete, Status.CONVERGED),
        (cycles >= limits.maxiter, Status.MAXITER),
        (due & (best > jnp.maximum(state.mark / 2, least)), Status.STAGNATION),
    )

    # Row j of the new basis: the pair of rank j where pairs are locked or returned; else the locked ones stay first.
    over, row = code != RUNNING, jnp.arange(m + 1)
    first = jnp.where(locked, place, state.locked + jnp.sum(better & ~locked, axis=1))
    rank = jnp.where(check | over, rank, first)
    by_rank = matmul(jnp.concatenate([Y, values[None], coupling[None]]), (rank[:, None] == row).astype(Y.dtype))
    Y, values, coupling = by_rank[:m], by_rank[m], by_rank[m + 1]
    held, last = row < jnp.where(check & ~over, locks, keep), (row == keep) & ~check
    active = (row >= state.locked) & (row < keep) & ~check
    T = jnp.where(row[:, None] == row, values, jnp.where(row[:, None] == keep, coupling, 0))
    return State(
        V=matmul(jnp.concatenate([jnp.where(held, Y, 0), last[None].astype(Y.dtype)]).T, state.V),
        T=jnp.where(active, T, 0).astype(state.T.dtype),
        size=jnp.where(check, locks, jnp.where(state.fresh, keep, keep + 1)),
        fresh=check | state.fresh,
        norm=jnp.where(check & operator.is_inverse, 0, A_norm),
        locked=jnp.where(check, locks, state.locked),
        values=jnp.where(check, values, state.values),
        best=jnp.where(check, jnp.inf, best),
        mark=jnp.where(check, jnp.inf, jnp.where(due, best, state.mark)),
        code=code,
        cycles=cycles,
        products=state.products,
    )
