"""A few eigenpairs of any square matrix by Krylov-Schur (Stewart 2001), with left eigenvectors and derivatives.

The loop holds orthonormal vectors V and H of A·Vₘ = Vₘ·H + v·bᵀ, with Vₘ the first m rows of V as columns and v the row
after them. Products fill V. A restart orders the Schur form of H and keeps v and the span of its first vectors. For a
real A, V and H are real, and a restart keeps or drops both vectors of a conjugate pair.

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
from solvers import ritz
from solvers.core import arguments, operators
from solvers.core.iterate import tell_end
from solvers.core.program import Entry
from solvers.core.space import Map, Space, exponent, norm, outside
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import matmul, ratio, scaled, scaled_by
from solvers.eigenpairs import EigenSolution, Limits, basis_sizes, eigenproblem, limits
from solvers.eigsh import BREAKDOWN, ESTIMATE, QR, SETTLED, STALLED, TRUE
from solvers.pencil import Pencil
from solvers.schur import ordered, schur
from solvers.solution import Status
from solvers.two_sided import TwoSided, two_sided

# An order of complex numbers that begins with the wanted ones.
KEYS: dict[str, Callable[[Array], Array]] = {
    "LM": lambda d: -jnp.abs(d),
    "SM": jnp.abs,
    "LR": lambda d: -d.real,
    "SR": lambda d: d.real,
    "LI": lambda d: -d.imag,
    "SI": lambda d: d.imag,
}
NEAR = 1e3  # times eps·‖A‖: eigenvalues at such a distance are copies, of which any may be kept
SAME = 100  # times eps·‖A‖: how far the keys of the wanted pairs may move while copies of them are looked for


@arguments.door
def eigs(
    A: Any,
    k: int = 6,
    *,
    M: Any = None,
    Minv: Any = None,
    sigma: Any = None,
    which: str = "LM",
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    left: bool = False,
    progress: Any = None,
) -> EigenSolution:
    """k eigenvalues and eigenvectors of any square A, or of A·x = λ·M·x; as SciPy's function of this name.

    Works inside jit and vmap. A few restarts find eigenvalues at the rim of the spectrum, and any others by `sigma`.

    Eigenvalues are differentiable to second order, and eigenvectors, right and left, to first, with respect to A's and
    M's values and whatever a function closes over. A derivative finds the left eigenvectors by a second search, with
    the transposes of A and M, and takes dλ = yᴴ·(dA − λ·dM)·x, where yᴴ·M·x = 1, and solves by GMRES for dx, where
    xᴴ·dx = 0. It is NaN at a defective eigenvalue, whose ‖y‖·‖M·x‖ is about 1/√eps or more, or if the second search
    fails. Copies have derivatives in sum, and their vectors none.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v,
        which needs v0.
      k: the number of pairs, below n. It may cut a conjugate pair, of which then the one with Im λ > 0 is returned.
      M: [n, n] matrix, sparse or dense, for A·x = λ·M·x. The host factors M; with sigma M is not factored, and may be
        singular: infinite eigenvalues are the last ones.
      Minv: as in `eigsh`.
      sigma: a real or complex number; the host factors A − sigma·M, as in `eigsh`, and `which` orders
        1/(λ − sigma): "LM" takes the eigenvalues nearest to sigma. Where A − sigma·M is singular within rounding, sigma
        is moved by about √eps·(‖A‖ + |sigma|·‖M‖)/‖M‖ in the norm ‖·‖₁, and eigenvalues that are nearly as far from it
        as others may replace them. Residuals fall to about eps·|sigma|·‖M‖: a sigma that is a thousand times as
        large as the eigenvalues ends in ROUNDED or STAGNATION, unless tol asks for less.
      which: "LM", "SM" largest or smallest in magnitude, "LR", "SR" in the real part, "LI", "SI" in the imaginary part;
        of a real A and sigma in the magnitude of the imaginary part.
      v0: [n], start vector; None draws one, the same at every call. A complex v0 makes all arithmetic complex.
      ncv, maxiter, tol, progress: as in `eigsh`. Pairs are done when ‖A·x − λ·x‖₂ ≤ tol·|λ|, or when the residual is
        rounding. How far λ is from an eigenvalue is about the residual times ‖y‖.
      left: find left eigenvectors, too: yᴴ·A = λ·yᴴ·M, with yᴴ·M·x = 1, so that ‖y‖ is the condition number of λ.

    Returns:
      An `EigenSolution` in the order of `which`, of conjugate pairs the one with Im λ > 0 first. Eigenvalues and
      eigenvectors are complex, with ‖x‖₂ = 1 and the largest entry of x positive.

    Raises:
      ValueError, TypeError: invalid arguments. SolverError: M is singular, or A − sigma·M for every sigma.

    Examples:
      >>> turn = js.from_dense(np.array([[1.0, -2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 0.5]]))
      >>> js.eigs(turn, 2).eigenvalues.round(3).tolist()
      [(1+2j), (1-2j)]
    """
    check_choice("which", which, KEYS)
    if not isinstance(left, bool):
        raise TypeError(f"left must be True or False; got {left!r}")
    is_pencil = M is not None or sigma is not None
    A, M = pencils.pair(A, M, sigma, Minv)
    in_basis, basis, k, v0 = eigenproblem(A, k, v0, "v0", (), hermitian=False)
    n = v0.shape[0]
    M, Minv = (None if a is None else operators.operator(a, n, "M") for a in (M, Minv))
    ncv, m = basis_sizes(ncv, k, n)
    if sigma is None:
        factors = None if M is None or Minv is not None else pencils.inverse_of(M), None
    else:
        factors = pencils.shifted(A, M, sigma, "eigs")
    of_M = [] if M is None else [operators.product_dtype(M, v0, "M")]
    v0 = v0.astype(operators.promoted(v0.dtype, *of_M, *([] if factors[1] is None else [factors[1].sigma.dtype])))
    numbers = {"k": k, "which": which, "ncv": ncv, "tol": tol, "maxiter": maxiter, "left": left}
    basis.agree(lambda: numbers | {"M": M, "sigma": sigma, "Minv": Minv})
    if is_pencil:
        in_basis, basis = operators.operator(A, n, "A"), IDENTITY
    watcher = arguments.watcher(progress)
    plan = k, which, m, left, watcher
    return _solve(plan, (in_basis, M, Minv), basis, v0, factors, limits(tol, maxiter), calls=watcher is not None)


def _in_basis(plan: Any, maps: tuple[Any, ...], basis: Basis, v0: Array, more: Any, limits: Limits) -> EigenSolution:
    k, which, m, left, watcher = plan
    start, pencil = basis.enter(v0), pencils.of(*maps, *more)
    operation = TwoSided(_run, (outside(basis), k, which, m, watcher), left)
    return two_sided(operation, basis, pencil, start, (start, limits))


_solve = Entry(_in_basis, lambda _, v0: (v0, v0, v0))


# -------------------------------------------------------------------------------------------------------- the loop


class State(NamedTuple):
    V: Array  # [m + 1, n] orthonormal rows, zero from row `size` on
    H: Array  # [m + 1, m + 1] of the operator: column i belongs to row i of V
    size: Array
    fresh: Array  # whether the next row is random and coupled to nothing: the rows before it span an invariant space
    norm: Array  # the norm of the operator, from below
    checks: Array  # searches for copies
    keys: Array  # [m] of the wanted pairs when the last of these began
    best: Array  # the least of the largest residual norms so far
    mark: Array  # `best` at the last of every STALLED restarts
    code: Array
    cycles: Array
    products: Array


def _run(
    space: Space,
    k: int,
    which: str,
    m: int,
    watcher: Any,
    pencil: Pencil,
    v0: Array,
    limits: Limits,
    targets: Array | None = None,
) -> tuple[EigenSolution, Array]:
    """The pairs by a basis of m vectors, and the norm of A − λ·M.

    With `targets` [k] the pairs nearest to these, and one more, which is 0 unless the last are conjugates. The last
    target, whose pair k may cut, comes last; distances that are rounding would order them by chance.

    The loop scales the operator by a power of two, from its product with v0: this is exact, and no square under- or
    overflows.
    """
    real, zero, is_inverse = jnp.finfo(v0.dtype).dtype, jnp.int32(0), pencil.shift is not None
    noise, largest = space.probe(v0), jnp.max(jnp.abs(v0))
    v0 = jnp.where(largest == 0, noise, ratio(v0, largest))
    e_A = exponent(pencil.operator(v0))
    apply, is_real = scaled_by(pencil.operator, e_A), not jnp.iscomplexobj(v0)

    def random(state: State) -> Array:
        scaled_noise = noise * (2 + state.size + state.cycles)  # another for each row of each basis
        return jnp.where(state.products == 0, v0, scaled_noise - 2 * jnp.round(scaled_noise / 2))

    def keys(values: Array) -> Array:
        """Equal for both values of a conjugate pair of a real operator."""
        values = lax.complex(values.real, jnp.abs(values.imag)) if is_real else values
        if targets is None:
            return KEYS[which](values)
        goal = scaled(
            targets if pencil.shift is None else ratio(jnp.ones_like(targets), targets - pencil.shift.sigma), -e_A
        )
        goal = lax.complex(goal.real, jnp.abs(goal.imag)) if is_real else goal
        apart = jnp.abs(values[:, None] - goal)
        near, nearest = jnp.finfo(real).eps ** 0.5 * jnp.maximum(1, jnp.max(jnp.abs(goal))), jnp.min(apart, axis=1)
        return nearest - jnp.where((nearest <= near) & (jnp.argmin(apart, axis=1) < k - 1), near, 0)

    none = jnp.array(jnp.inf, real)
    arrays = jnp.zeros((m + 1, v0.size), v0.dtype), jnp.zeros((m + 1, m + 1), v0.dtype)
    rest = jnp.zeros((), real), zero, jnp.zeros(m, real), none, none, zero + RUNNING, zero, zero
    state = State(*arrays, zero, jnp.bool_(True), *rest)

    inside = limits if pencil.shift is None else limits._replace(sigma=scaled(pencil.shift.sigma, e_A))

    def cycle(state: State) -> State:
        step = functools.partial(_step, apply, is_inverse, random)
        state = lax.while_loop(lambda state: state.size <= m, step, state)
        return _restart(k, keys, inside, e_A, state, watcher)

    state = lax.while_loop(lambda state: state.code == RUNNING, cycle, mesh_axes.varying(state, v0))
    found, solves = (ritz.by_operator, 1) if not is_inverse else (ritz.by_inverse, 1 + 4 * ritz.ROUNDS)
    values, X, norms, unit, judged = found(pencil, apply, e_A, keys, limits, state, p := min(k + 1, m))
    met, rounded = jnp.all(judged[:, :k], axis=1)
    true = status_of((met, Status.CONVERGED), (rounded, Status.ROUNDED), otherwise=Status.STAGNATION)
    code = jnp.where(state.code == Status.CONVERGED, true, state.code)
    count = k if targets is None else p  # a cut pair of targets is whole then
    values, X, norms = values[:count], X[:, :count], norms[:count]
    values = lax.complex(values.real, jnp.where(values.imag == 0, 0, values.imag))  # no -0j
    if watcher is not None:
        tell_end(watcher, state.cycles, norms, limits.allowed(jnp.abs(values), unit, TRUE), code)
    return EigenSolution(values, X, code, state.cycles, state.products + 1 + solves * p, norms), unit


def _step(apply: Map, is_inverse: bool, random: Callable[[State], Array], state: State) -> State:
    """One product, and the next row of the basis from it; a random row instead where the last product gave none."""
    V, j, fresh = state.V, state.size, state.fresh
    i, row, eps = jnp.maximum(j - 1, 0), jnp.arange(V.shape[0]), jnp.finfo(V.dtype).eps
    last = lax.dynamic_index_in_dim(V, i, keepdims=False)
    # Of an inverse a random vector enters by a product, without what a singular M leaves open.
    w = apply(jnp.where(fresh, random(state), last) if is_inverse else last)
    w = w if is_inverse else jnp.where(fresh, random(state), w)
    once = matmul(jnp.conj(V), w)
    w = w - matmul(once, V)
    again = matmul(jnp.conj(V), w)
    w = w - matmul(again, V)
    beta = norm(w)
    A_norm = jnp.where(fresh, state.norm, jnp.maximum(state.norm, jnp.hypot(norm(once + again), beta)))
    # A random vector of which a second projection takes more than it leaves lies in the span of the basis.
    ends = beta <= jnp.where(fresh, norm(again), BREAKDOWN * eps * A_norm)
    # A row of zeros stands for the one that is not needed after a full basis.
    adds, beta = ~ends | fresh | (j == V.shape[0] - 1), jnp.where(ends, 0, beta)
    column = jnp.where(row == j, beta.astype(w.dtype), once + again)
    return state._replace(
        V=lax.dynamic_update_index_in_dim(V, ratio(w, beta), j, 0),
        H=jnp.where(~fresh & (row == i), column[:, None], state.H),
        size=j + adds.astype(jnp.int32),
        fresh=ends & ~fresh,
        norm=A_norm,
        products=state.products + 1,
    )


def _restart(k: int, keys: Any, limits: Limits, e_A: Array, state: State, watcher: Any = None) -> State:
    """Judges the pairs, and keeps the span of the best Schur vectors with the direction of their residuals.

    A Krylov space has one vector of each eigenspace. So once the wanted pairs have converged, the search goes on from a
    random vector outside of them, and when the next pair is known to be no better, they are complete. One pair needs no
    such search, and neither does a basis of the whole space.
    """
    m, n = state.V.shape[0] - 1, state.V.shape[1]
    is_real, eps, place, row = not jnp.iscomplexobj(state.V), jnp.finfo(state.V.dtype).eps, *map(jnp.arange, (m, m + 1))
    finite = jnp.all(jnp.isfinite(state.H))
    H, coupling = jnp.where(finite, state.H, 0)[:m, :m], jnp.where(finite, state.H[m, m - 1], 0)
    T, Q, values = schur(H)
    rank, most = jnp.argsort(jnp.argsort(keys(values), stable=True)), k + (m - k) // 2
    _, Q, values = ordered(T, Q, values, jnp.minimum(rank, most + 1), NEAR * float(eps))
    key = keys(values)

    def whole(count: int) -> Array:
        """With both values of a pair."""
        return jnp.int32(count) + (is_real & (values[count - 1].imag > 0))

    k_whole, keep = whole(k), whole(most)
    residuals = jnp.abs(coupling * Q[m - 1])
    norms = jnp.sqrt(jnp.cumsum(residuals**2))  # bounds for those of the eigenvectors
    A_norm = jnp.maximum(state.norm, jnp.max(jnp.abs(values)))
    allowed, wanted = limits.allowed(values, A_norm, ESTIMATE), place < k_whole
    complete, check = jnp.all((norms <= allowed) | ~wanted), jnp.bool_(False)
    if k > 1 and m < n:
        near = jnp.abs(key - state.keys) <= SAME * 10.0**state.checks * eps * A_norm
        same = (state.checks > 0) & jnp.all(near | (place >= k))
        after = jnp.minimum(k_whole, m - 1)
        settled = residuals[after] <= jnp.maximum(SETTLED * (key[after] - key[k - 1]), allowed[after])
        complete, check = complete & same & settled, complete & ~same
    cycles, best = state.cycles + 1, jnp.minimum(state.best, jnp.max(jnp.where(wanted, norms, 0)))
    if watcher is not None:
        sides = (scaled(a, e_A) for a in (*[jnp.where(wanted, norms, 0)] * 2, allowed))
        jax.debug.callback(watcher, cycles, *sides)
    due = cycles % STALLED == 0
    least = jnp.maximum(eps**0.5 * A_norm, jnp.max(jnp.where(wanted, allowed, 0)))
    code = status_of(
        (state.code != RUNNING, state.code),
        (~finite, Status.NON_FINITE),
        (complete, Status.CONVERGED),
        (cycles >= limits.maxiter, Status.MAXITER),
        (due & (best > jnp.maximum(state.mark / 2, least)), Status.STAGNATION),
    )
    over, check = code != RUNNING, check & (code == RUNNING)
    ends = over | check
    keep = jnp.where(ends, k_whole, keep)
    W = jnp.where(place < keep, Q, 0)
    if is_real:  # a real basis of the span, from the projector on it
        projector = matmul(W, jnp.conj(W.T)).real
        W = lax.linalg.eigh(projector, symmetrize_input=False, implementation=QR)[0][:, ::-1]
        W = jnp.where(place < keep, W, 0)
    last = jnp.where(~ends & (row == keep), 1, 0).astype(W.dtype)
    H = jnp.pad(matmul(jnp.conj(W.T), matmul(H, W)), (0, 1))
    H = H + last[:, None] * jnp.pad(coupling * W[m - 1], (0, 1))
    return state._replace(
        V=matmul(jnp.concatenate([jnp.pad(W, ((0, 0), (0, 1))), last[None]]).T, state.V),
        H=H,
        size=jnp.where(check | state.fresh, keep, keep + 1),
        fresh=check | state.fresh,
        norm=A_norm,
        checks=state.checks + check.astype(jnp.int32),
        keys=jnp.where(check, key, state.keys),
        best=jnp.where(check, jnp.inf, best),
        mark=jnp.where(check, jnp.inf, jnp.where(due, best, state.mark)),
        code=code,
        cycles=cycles,
    )
