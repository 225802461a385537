"""A few eigenpairs of a Hermitian matrix by thick-restart Lanczos (Wu and Simon 2000, Algorithm 1).

The loop holds orthonormal vectors V and the real symmetric T of A·Vₘ = Vₘ·T + v·bᵀ, with Vₘ the first m rows of V as
columns and v the row after them. Products fill V, and a restart keeps the best Ritz vectors and v.

Traffic of a step, in vectors of n: the product, and 4·(m + 1) to make its result orthogonal to the basis, twice. A
restart reads the basis and writes half of it. Memory: 2·(m + 1) vectors.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import exportable, floating_dtype, pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from solvers.core import arguments, iterate, opaque, program, stopping
from solvers.core.linear_solve import hermitian_solve
from solvers.core.program import Entry
from solvers.core.scaling import Map, scaled
from solvers.core.settings import steps_per_check
from solvers.core.space import HERE, Space, exponent, length, norm, outside
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import matmul, ratio
from solvers.minres import METHOD as MINRES
from solvers.pencil import transformed
from solvers.solution import Outcome, Status, is_one_number

# An order of real numbers that begins with the wanted ones.
KEYS: dict[str, Callable[[Array], Array]] = {"LM": lambda d: -jnp.abs(d), "LA": lambda d: -d, "SA": lambda d: d}
NCV = 20  # vectors in the basis by default, as in SciPy
MAXITER = 1000
STALLED = 200  # restarts that must halve the least residuals so far, until these are half as small as they can be
# In units of eps·‖A‖: the length that remains, after a step, of a vector in the span of the basis; the residual norm
# that the loop accepts; and the true residual norm that is then allowed, plus a unit for each restart.
BREAKDOWN, ESTIMATE, TRUE = 10, 20, 100
# The pair after the wanted ones counts as known once its residual is this fraction of its distance from them.
SETTLED = 0.1

LOW_END = (
    "for the smallest of a discretised differential operator take sigma=0 of eigsh, or lobpcg with "
    "M=precond.multigrid(A)"
)
MESSAGES = {
    Status.MAXITER: "maxiter did not bring every pair to the tolerance; loosen tol, raise maxiter or the ncv of eigsh; "
    + LOW_END,
    Status.STAGNATION: "the residuals stopped falling above the tolerance: the wanted eigenvalues lie close together, "
    f"or at the limit of this precision; raise the ncv of eigsh or loosen tol; {LOW_END}",
    Status.NOT_SYMMETRIC: "A is not symmetric (Hermitian), which eigsh and lobpcg need; (A + Aᵀ)/2 is. For "
    "eigenvalues of a nonsymmetric A take scipy.sparse.linalg.eigs(A.to_scipy())",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A, M and the start",
}


@exportable
@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EigenSolution(Outcome):
    """Eigenpairs, a pytree. Unpacks as `w, v = eigsh(A)`.

    Attributes:
      eigenvalues: [k] real, ascending.
      eigenvectors: [n, k], columns with vᴴ·v = 1, or vᴴ·M·v = 1, orthogonal in that product; their signs (phases) are
        arbitrary. Zero where they are not finite.
      code: int32, the `Status` as a number; under vmap one per matrix.
      n_iterations: int32, restarts, which maxiter counts.
      n_products: int32, products with A, or solves with sigma.
      residual_norms: [k], ‖A·v − λ·v‖₂, or ‖A·v − λ·M·v‖₂, recomputed.
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


@arguments.door
def eigsh(
    A: Any,
    k: int = 6,
    *,
    M: Any = None,
    which: str = "LM",
    sigma: Any = None,
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
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
    the derivative of its vectors is NaN.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v,
        which needs v0.
      k: the number of pairs, below n.
      M: a positive definite jaxsparse_fmt matrix, for the pairs of A·x = λ·M·x; A is then one, too. xᴴ·M·x is 1 for
        the eigenvectors. The host factors M, whose numbers must be known.
      which: "LM" largest in magnitude, "LA" largest, "SA" smallest.
      sigma: a real number; the pairs nearest to it are those of the largest eigenvalues of (A − sigma·M)⁻¹, which is
        applied by the factors of `factorized`. A is then a jaxsparse_fmt matrix, and products are solves.
      v0: [n], start vector; None draws one, the same at every call.
      ncv: vectors in the basis, k < ncv ≤ n, and half as many again at a restart; None takes max(2·k + 1, 20).
      maxiter: most restarts, each after about (ncv − k)/2 products; None allows 1000. Two hundred restarts that
        do not halve the largest residual end the search with STAGNATION, unless it has been as small as √eps·‖A‖₂.
      tol: pairs are done when ‖A·v − λ·v‖₂ ≤ tol·|λ|, or when the residual is rounding, a few eps·‖A‖₂; 0 iterates down
        to rounding. The error of an eigenvalue is at most the residual.

    Raises:
      ValueError, TypeError: invalid arguments. SolverError: sigma is an eigenvalue; take a number beside it.
    """
    if sigma is not None and which != "LM":
        raise ValueError(f"sigma takes the eigenvalues nearest to it, and no which; got {which!r}")
    if M is not None or sigma is not None:
        search = functools.partial(eigsh, k=k, which=which, ncv=ncv, maxiter=maxiter, tol=tol)
        return transformed(A, M, sigma, v0, search)
    inner, basis, k, v0 = eigenproblem(A, k, v0, "v0", ())
    n = v0.shape[0]
    if which not in KEYS:
        cure = "; for those nearest to zero take sigma=0" if which == "SM" else ""
        raise ValueError(f"which must be one of {', '.join(KEYS)}; got {which!r}{cure}")
    ncv = arguments.int_at_least(min(n, max(2 * k + 1, NCV)) if ncv is None else ncv, "ncv", 1)
    if not k < ncv <= n:
        raise ValueError(f"ncv must be above k = {k} and at most n = {n}; got {ncv}")
    own = limits(tol, maxiter)
    basis.agree(lambda: {"k": k, "which": which, "ncv": ncv, "tol": tol, "maxiter": maxiter})
    return _solve((k, which, ncv), (inner,), basis, v0, own)


def _in_basis(plan: Any, maps: tuple[Any], basis: Basis, v0: Array, limits: "Limits") -> EigenSolution:
    start = basis.enter(v0)
    return eigenpairs(Pairs(_run, (outside(basis), *plan)), basis, maps[0], start, (start, limits))


_solve = Entry(_in_basis, lambda _, v0: (v0,))


def eigenproblem(A: Any, k: Any, start: Any, name: str, more: tuple[int, ...]) -> tuple[Any, Basis, int, Array]:
    """A between vectors in its basis, that basis, k, and the start: `start`, or numbers that are always the same.

    Checks that A is square and, where it is NumPy's, Hermitian.

    Args:
      start, name: the user's v0 [n] or X0 [n, p], or None, and its name.
      more: vectors to draw beyond k, of which the start is a block; () for one vector.
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


# -------------------------------------------------------------------------------------------------------- the loop


class Limits(NamedTuple):
    """Traced numbers, so that changing them does not recompile."""

    tol: Array
    maxiter: Array

    def allowed(self, values: Array, A_norm: Array, units: int | Array) -> Array:
        """The largest residual norm that is small enough: tol·|λ|, but no less than rounding leaves."""
        least = units * jnp.finfo(values.dtype).eps * A_norm
        return jnp.maximum(self.tol.astype(values.dtype) * jnp.abs(values), least)

    def unsymmetric(self, gap: Array, A_norm: Array) -> Array:
        """Whether numbers wᴴ·A·v and conj(vᴴ·A·w) with this gap are those of no Hermitian A."""
        return gap > (jnp.finfo(gap.dtype).eps ** 0.5 + self.tol.astype(gap.dtype)) * A_norm


def limits(tol: Any, maxiter: Any) -> Limits:
    return Limits(arguments.tolerance(tol, "tol"), arguments.maxiter(maxiter, MAXITER, 1))


class State(NamedTuple):
    V: Array  # [ncv + 1, n] orthonormal rows, zero from row `size` on; after a restart the first k are the wanted ones
    T: Array  # [ncv + 1, ncv + 1]; its lower triangle holds V·A·Vᴴ, and what products gave stands above
    size: Array
    fresh: Array  # whether the next row is random and coupled to nothing: the rows before it span an invariant space
    norm: Array  # ‖A‖₂, from below
    keys: Array  # [k] of the pairs found before the search for others; infinite before that
    best: Array  # the least of the largest residual norms so far
    mark: Array  # `best` at the last of every STALLED restarts
    code: Array
    cycles: Array
    products: Array


def _run(space: Space, k: int, which: str, m: int, A: Map, v0: Array, limits: Limits) -> tuple[EigenSolution, Array]:
    """The pairs by a basis of m vectors, and ‖A‖₂ from below.

    The loop scales A by a power of two, taken from the product of A with v0: this is exact, and no square under- or
    overflows.
    """
    real, zero = jnp.finfo(v0.dtype).dtype, jnp.int32(0)
    v0 = scaled(v0, -exponent(v0))
    v0, is_zero, e_A = ratio(v0, norm(v0)), ~jnp.any(v0 != 0), exponent(A(v0))
    own, never = (lambda v: scaled(A(v), -e_A)), jnp.array(jnp.inf, real)
    V, T = jnp.zeros((m + 1, v0.size), v0.dtype).at[0].set(v0), jnp.zeros((m + 1, m + 1), v0.dtype)
    size, keys = jnp.where(is_zero, 0, 1), jnp.full(k, jnp.inf, real)
    state = State(V, T, size, is_zero, jnp.zeros((), real), keys, never, never, jnp.int32(RUNNING), zero, zero)

    def cycle(state: State) -> State:
        state = lax.while_loop(lambda state: state.size <= m, functools.partial(_step, space, own), state)
        return _restart(k, which, limits, state)

    state = lax.while_loop(lambda state: state.code == RUNNING, cycle, mesh_axes.varying(state, v0))
    X = state.V[:k].T
    A_X = jax.vmap(own, 1, 1)(X)
    values = jnp.sum(jnp.conj(X) * A_X, axis=0).real
    norms = norm(A_X - values * X)
    is_true = jnp.all(norms <= limits.allowed(values, state.norm, TRUE + state.cycles))
    code = jnp.where((state.code == Status.CONVERGED) & ~is_true, jnp.int32(Status.STAGNATION), state.code)
    order, counts = jnp.argsort(values), (state.cycles, state.products + 1 + k)
    values, norms = scaled(values[order], e_A), scaled(norms[order], e_A)
    return EigenSolution(values, X[:, order], code, *counts, norms), scaled(state.norm, e_A)


def _step(space: Space, A: Map, state: State) -> State:
    """One product, and the next row of the basis from it; a random row instead where the last product gave none."""
    V, j, fresh = state.V, state.size, state.fresh
    i, real = jnp.maximum(j - 1, 0), state.norm.dtype
    w = A(V[i])
    A_norm = jnp.maximum(state.norm, norm(w))
    numbers = space.probe(w) * (2 + state.products % 1000)
    w = jnp.where(fresh, (numbers - 2 * jnp.round(numbers / 2)).astype(w.dtype), w)
    once = matmul(jnp.conj(V), w)
    w = w - matmul(once, V)
    again = matmul(jnp.conj(V), w)
    w, beta = (w := w - matmul(again, V)), norm(w)
    ends = ~fresh & (beta <= BREAKDOWN * jnp.finfo(real).eps * A_norm)
    # A row of zeros stands for the one that is not needed after a full basis.
    adds = ~ends | (j == V.shape[0] - 1)
    column = (once + again).at[j].set(jnp.where(ends, 0, beta).astype(w.dtype))
    return state._replace(
        V=V.at[j].set(jnp.where(ends, 0, ratio(w, beta))),
        T=state.T.at[:, i].set(jnp.where(fresh, state.T[:, i], column)),
        size=j + adds.astype(jnp.int32),
        fresh=ends,
        norm=A_norm,
        products=state.products + 1,
    )


def _restart(k: int, which: str, limits: Limits, state: State) -> State:
    """Judges the pairs, and keeps the best: `keep` of them and the direction of their residuals, or the k wanted alone.

    A Krylov space has one vector of each eigenspace. So the loop checks the wanted pairs once they have converged: a
    search starts from a random vector outside them, and when the best pair there is known to be no better, the wanted
    pairs are complete. One pair needs no check, and neither does a basis of the whole space.
    """
    m, n = state.V.shape[0] - 1, state.V.shape[1]
    keep = k + (m - k) // 2
    finite = jnp.all(jnp.isfinite(state.T))
    T = jnp.where(finite, state.T, 0)
    gap = jnp.max(jnp.abs(jnp.triu(T[:m, :m] - jnp.conj(T[:m, :m].T))))
    values, Y = jnp.linalg.eigh(T[:m, :m].real, symmetrize_input=False)
    order = jnp.argsort(keys := KEYS[which](values))
    values, keys, Y = values[order], keys[order], Y[:, order]
    coupling = T[m, m - 1].real * Y[m - 1]  # the residual of a pair is this multiple of the last row
    residual_norms, A_norm = jnp.abs(coupling), jnp.maximum(state.norm, jnp.max(jnp.abs(values)))
    allowed = limits.allowed(values, A_norm, ESTIMATE)

    found = jnp.all((residual_norms <= allowed)[:k])
    same = ~jnp.any(jnp.abs(keys[:k] - state.keys) > allowed[:k])
    check, complete = found & ~same, jnp.bool(True)
    if k > 1 and m < n:
        complete = same & (residual_norms[k] <= jnp.maximum(allowed[k], SETTLED * (keys[k] - keys[k - 1])))
    cycles, best = state.cycles + 1, jnp.minimum(state.best, jnp.max(residual_norms[:k]))
    due, half = cycles % STALLED == 0, jnp.finfo(best.dtype).eps ** 0.5 * A_norm
    code = status_of(
        (~finite, Status.NON_FINITE),
        (limits.unsymmetric(gap, A_norm), Status.NOT_SYMMETRIC),
        (found & complete, Status.CONVERGED),
        (cycles >= limits.maxiter, Status.MAXITER),
        (due & (best > jnp.maximum(state.mark / 2, jnp.maximum(half, jnp.max(allowed[:k])))), Status.STAGNATION),
    )

    held, last = jnp.arange(keep) < jnp.where(check, k, keep), jnp.where(check, 0, coupling[:keep])
    Q = jnp.zeros((m + 1, keep + 1), Y.dtype).at[:m, :keep].set(Y[:, :keep] * held).at[m, keep].set(~check)
    T = jnp.zeros_like(Y, shape=T.shape).at[:keep, :keep].set(jnp.diag(values[:keep] * held)).at[keep, :keep].set(last)
    return State(
        V=jnp.zeros_like(state.V).at[: keep + 1].set(matmul(Q.T, state.V)),
        T=T.astype(state.T.dtype),
        size=jnp.where(check, k, jnp.where(state.fresh, keep, keep + 1)),
        fresh=check | state.fresh,
        norm=A_norm,
        keys=jnp.where(check, keys[:k], state.keys),
        best=best,
        mark=jnp.where(due, best, state.mark),
        code=code,
        cycles=cycles,
        products=state.products,
    )


# ------------------------------------------------------------------------------------------------- differentiation


def eigenpairs(rules: "Pairs", basis: Basis, A: Any, like: Array, frozen: tuple[Any, ...]) -> EigenSolution:
    """The pairs of A between vectors like `like`, which have entered the basis, by a loop with the inputs `frozen`."""
    matrix = program.traced(lambda v: arguments.apply(A, v).astype(like.dtype), like)
    sol, _ = rules((matrix, lax.stop_gradient(frozen)))
    return dataclasses.replace(sol, eigenvectors=basis.leave(sol.eigenvectors))


class Pairs(opaque.Rules):
    """The result of a loop, differentiable in whatever A depends on; all zero where one number is not finite.

    The loop is not differentiated. From A·v = λ·v follow dλ = vᴴ·dA·v and (A − λ)·dv = −P·dA·v with P = 1 − v·vᴴ. The
    systems are singular in the direction of v alone. K = P·(A − λ)·P + ‖A‖·v·vᴴ is regular, and a solution with K has
    no component along v (Magnus 1985, Theorem 1). The pairs do not depend on the other inputs of the loop.

    Attributes:
      loop: (*static, A, *frozen) -> the pairs and ‖A‖.
    """

    loop: Callable[..., tuple[EigenSolution, Array]]
    static: tuple[Any, ...]

    def compute(self, given: tuple[Any, Any]) -> tuple[EigenSolution, Array]:
        A, frozen = given
        sol, A_norm = self.loop(*self.static, A, *frozen)
        finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(sol)])
        values, X = jnp.where(finite, sol.eigenvalues, 0), jnp.where(finite, sol.eigenvectors, 0)
        code = jnp.where(finite, sol.code, Status.NON_FINITE).astype(jnp.int32)
        return dataclasses.replace(sol, eigenvalues=values, eigenvectors=X, code=code), A_norm

    def jvp(self, given: tuple[Any, Any], moved: tuple[Any, Any]) -> tuple[Any, Any]:
        A, dA = given[0], moved[0]
        sol, A_norm = self(given)
        values, X, size = sol.eigenvalues, sol.eigenvectors, lax.stop_gradient(jnp.where(A_norm == 0, 1, A_norm))
        sound = jnp.where(sol.code == Status.NON_FINITE, jnp.nan, 1.0).astype(values.dtype)
        dA_X = opaque.jvp(lambda A: jax.vmap(A, 1, 1)(sound * X), A, dA)
        d_sol, d_norm = opaque.undefined((sol, A_norm), dA)
        d_values = d_X = None
        if dA_X is not None:

            def K(Z):
                inside = _outside(X, Z)
                return _outside(X, jax.vmap(A, 1, 1)(inside) - values * inside) + size * (Z - inside)

            d_X = hermitian_solve(K, lambda rhs: _solve_off(K, size, values, X, rhs), -_outside(X, dA_X))
            d_values, d_X = jnp.sum(jnp.conj(X) * dA_X, axis=0).real, _outside(X, d_X)
        return (sol, A_norm), (dataclasses.replace(d_sol, eigenvalues=d_values, eigenvectors=d_X), d_norm)


def _solve_off(K: Map, size: Array, values: Array, X: Array, rhs: Array) -> Array:
    """The k systems K·z = rhs, by MINRES; NaN where one has no solution, as where an eigenvalue has copies.

    The components along the other eigenvectors are known. They are subtracted first, since they make a system slow to
    solve.
    """
    eps, zero, most = jnp.finfo(values.dtype).eps, jnp.zeros((), values.dtype), min(10 * rhs.shape[0], 2**31 - 1)
    gaps = values[:, None] - values  # [eigenvector, system]
    gaps = jnp.where(jnp.eye(values.size, dtype=bool), size, jnp.where(jnp.abs(gaps) <= eps**0.75 * size, 0, gaps))
    known = matmul(X, ratio(matmul(jnp.conj(X).T, rhs), gaps))
    steps, unit = steps_per_check(rhs.shape[0], arguments.memory.device().platform), lambda v: v / size
    limits = stopping.Limits(eps**0.75 + zero, zero, jnp.int32(most), zero)
    system = iterate.System(K, unit, rhs - K(known), None, limits)
    z = known + iterate.run(HERE, MINRES, iterate.Options(0, steps, None, None), system)[0]
    solved, bounded = length(rhs - K(z)) <= jnp.sqrt(eps) * length(rhs), eps**0.75 * size * length(z) <= length(rhs)
    return jnp.where(solved & bounded, z, jnp.nan)


def _outside(X: Array, Z: Array) -> Array:
    """Columns of Z less their components along those of X."""
    return Z - jnp.sum(jnp.conj(X) * Z, axis=0) * X
