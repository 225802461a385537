"""A bridge to lineax: our matrices as its operators, our methods as its solvers.

import lineax
from solvers import gmres
from solvers.lineax import Krylov, SparseOperator
solution = lineax.linear_solve(SparseOperator(A), b, Krylov(gmres, rtol=1e-8))
solution.value, solution.result, solution.stats["num_steps"]

Each half works alone: lineax's own CG, GMRES, BiCGStab and Normal take a SparseOperator, and Krylov takes any square
operator of lineax, over any pytree of vectors. lineax differentiates, by one more solve with the same solver.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from jaxsparse_fmt._arguments import check_dense, owned
from jaxsparse_fmt._dtypes import requested_dtype
from jaxsparse_fmt._text import nearest
from solvers.cg import cg
from solvers.core.operators import is_function, refuse_scipy
from solvers.direct import direct
from solvers.fcg import fcg
from solvers.lsmr import LeastSquaresSolution, lsmr
from solvers.minres import minres
from solvers.patterns import Pattern, known
from solvers.precond._checks import has_entries, is_transpose
from solvers.refine import METHODS, refine
from solvers.solution import Solution, Status
from solvers.solve import solve

try:
    import equinox as eqx
    import lineax as lx
except ModuleNotFoundError:
    raise ImportError("solvers.lineax is for use with lineax, which is not installed; pip install lineax") from None

Operator: TypeAlias = lx.AbstractLinearOperator

SELF_ADJOINT = (cg, fcg, minres)
# lineax's messages are fixed. Its "breakdown", for all other statuses, advises another solver.
RESULTS = {
    Status.CONVERGED: lx.RESULTS.successful,
    Status.ROUNDED: lx.RESULTS.successful,
    Status.MAXITER: lx.RESULTS.max_steps_reached,
    Status.STAGNATION: lx.RESULTS.stagnation,
    Status.PRECISION: lx.RESULTS.stagnation,
    Status.NON_FINITE: lx.RESULTS.nonfinite_input,
    Status.OUT_OF_RANGE: lx.RESULTS.nonfinite_input,
}
# Arguments that lineax passes on or differentiates, and `callback`, whose order lineax cannot guarantee.
NOT_SETTINGS = ("A", "b", "x0", "M", "damp", "callback", "adjoint")


class SparseOperator(lx.MatrixLinearOperator):
    """A matrix of any format, its transpose, or a preconditioner, as an operator of lineax.

    Differentiable in the matrix's values, and mapped over by vmap, as the matrix is.

    Attributes:
      matrix: [m, n].
      dtype: of the vectors.
      tags: the properties that lineax may assume.
      pattern: that of the entries, if it was known. lineax traces all arrays, and `direct` solves the systems of a
        batch on the device if it knows their pattern.
    """

    matrix: Any
    dtype: np.dtype = eqx.field(static=True)
    pattern: Pattern | None = eqx.field(static=True)

    def __init__(self, A: Any, tags: Any = (), *, dtype: Any = None):
        """Makes the operator.

        Args:
          A: [m, n], a pytree with a shape, a dtype, `T` and `@`.
          tags: one or several of lineax's, such as `lineax.positive_semidefinite_tag`. They are not checked: a wrong
            one may make answers and derivatives wrong.
          dtype: of the vectors, if they are wider than A's values; None takes the dtype of A.

        Raises:
          TypeError: A is not such a matrix. ValueError: `dtype` cannot hold A's values.
        """
        refuse_scipy(A, "A")
        if not all(hasattr(A, name) for name in ("shape", "dtype", "T", "__matmul__")) or len(A.shape) != 2:
            raise TypeError(f"A must be a matrix with a shape (m, n), a dtype, T and @; got {type(A).__name__}")
        self.matrix = jax.tree.map(owned, A)
        self.dtype = requested_dtype(A.dtype if dtype is None else dtype)
        entries = A.T if is_transpose(A) else A
        self.pattern = known(entries) if has_entries(entries) else None
        self.tags = frozenset(tags if isinstance(tags, (tuple, list, set, frozenset)) else [tags])
        if jnp.promote_types(A.dtype, self.dtype) != self.dtype:
            raise ValueError(f"vectors of {self.dtype} cannot hold products with A of {A.dtype}; use A.astype first")

    def mv(self, vector: Array) -> Array:
        return self.matrix @ vector

    def as_matrix(self) -> Array:
        """The matrix as a dense array, for lineax's direct solvers.

        Raises:
          ValueError: the array would take more than 2 GiB.
        """
        A = self.matrix
        cure = "choose an iterative solver: lineax.linear_solve(..., solver=solvers.lineax.Krylov(...)), or lineax.CG"
        check_dense(A.shape, self.dtype, cure)
        dense = A.todense() if hasattr(A, "todense") else A @ jnp.eye(A.shape[1], dtype=self.dtype)
        return dense.astype(self.dtype)

    def transpose(self) -> "SparseOperator":
        """The transpose; the operator itself if it is tagged symmetric, as with lineax's own operators."""
        return self if lx.is_symmetric(self) else self._with(self.matrix.T, lx.transpose_tags(self.tags))

    def _with(self, matrix: Any, tags: Any) -> "SparseOperator":
        """The operator of a matrix whose entries have the pattern of this one's."""
        other = SparseOperator(matrix, tags, dtype=self.dtype)
        object.__setattr__(other, "pattern", self.pattern)
        return other

    def in_structure(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.matrix.shape[1:], self.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.matrix.shape[:1], self.dtype)


class Krylov(lx.AbstractLinearSolver):
    """A method of this package as a solver of lineax, for square operators over pytrees of vectors.

    It stops when ‖b − A·x‖₂ ≤ max(rtol·‖b‖₂, atol), by the true residual, over all leaves of b together. `linear_solve`
    takes as `options`, like lineax's CG,

    - "preconditioner": an approximation of the inverse, as an operator of lineax or as anything with `@` and `T`, such
      as `precond.jacobi(A)`; positive definite where the method needs that.
    - "y0": where to start.

    `direct` takes neither, nor `max_steps`, and needs a SparseOperator, whose entries it factors.

    An operator may be negative definite, with a preconditioner of either sign. Krylov needs no tag; the status reports
    a matrix that does not suit the method.

    The solution's `stats` hold "num_steps", "max_steps", "residual_norm" (true), "history" if requested, and in
    "status" the `Status` as a number, more detailed than lineax's result.
    """

    method: Callable[..., Solution] = eqx.field(static=True)
    settings: dict[str, Any]

    def __init__(self, method: Callable[..., Solution] = cg, /, *, max_steps: int | None = None, **settings: Any):
        """Chooses a method.

        Args:
          method: `cg`, `fcg`, `minres`, `gmres`, `bicgstab`, `idrs`, `refine`, `solve`, `direct`, or a function like
            them.
          max_steps: most iterations, the method's `maxiter`; None: 10·n.
          settings: keywords of the method, such as `rtol`, `atol`, and `restart` of `gmres`; but not `callback`
            and `adjoint`.

        Raises:
          TypeError: a keyword that the method does not have, or that lineax takes elsewhere.
        """
        if not callable(method):
            near = nearest(str(method).lower(), (*METHODS, "refine", "solve", "direct")) or "cg"
            raise TypeError(f"Krylov takes the function of a method, and no {method!r}: use Krylov({near})")
        if method is not lsmr and callable(settings.get("method")):  # refine has a keyword of that name, a string
            method = settings.pop("method")
        self.method, self.settings = method, settings if max_steps is None else settings | {"maxiter": max_steps}
        known = [name for name in inspect.signature(method).parameters if name not in NOT_SETTINGS]
        if unknown := [name for name in self.settings if name not in known]:
            raise TypeError(
                f"{getattr(method, '__name__', method)} has no setting {unknown[0]!r} here; it has {', '.join(known)}. "
                "M and x0 go to lineax.linear_solve, as options={'preconditioner': M, 'y0': x0}"
            )

    def init(self, operator: Operator, options: dict[str, Any]) -> Operator:
        if self.method is not lsmr:
            what = "b, unless Krylov gives way to LeastSquares(),"
            _check_alike(operator.out_structure(), operator.in_structure(), what)
        return lx.linearise(operator)

    def compute(self, state: Operator, vector: Any, options: dict[str, Any]) -> tuple[Any, lx.RESULTS, dict[str, Any]]:
        like = state.in_structure()
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
        (b, unravel_b), (zero, unravel) = map(ravel_pytree, (vector, zeros))
        A = _flat(state, unravel, zero.dtype, self.method in (direct, solve))
        if self.method is direct and is_function(A):
            raise TypeError("Krylov(direct) needs a SparseOperator, whose entries it factors")
        if self.method is lsmr and is_function(A):
            A = A, _flat(lx.conj(state).transpose(), unravel_b, b.dtype)
        given = {}  # what is not given is left to the method, which has its own defaults
        if (M := options.get("preconditioner")) is not None:
            if isinstance(M, Operator):
                for structure in (M.in_structure(), M.out_structure()):
                    _check_alike(structure, like, "what the preconditioner takes and returns")
                M = _flat(lx.linearise(M), unravel, zero.dtype)
            elif not hasattr(M, "__matmul__"):
                raise TypeError(f"the preconditioner must be an operator of lineax or have @; got {type(M).__name__}")
            given["M"] = M
        if (y0 := options.get("y0")) is not None:
            y0 = jax.tree.map(owned, y0)
            _check_alike(y0, like, "y0")
            given["x0"] = ravel_pytree(y0)[0]
        if refused := given.keys() - inspect.signature(self.method).parameters:
            option = "preconditioner" if "M" in refused else "y0"
            raise TypeError(
                f"{getattr(self.method, '__name__', self.method)} takes no {option}: leave it out of the options"
            )
        sol = self.method(A, b, **given, **self.settings)
        stats: dict[str, Any] = {"num_steps": sol.n_iterations, "residual_norm": sol.residual_norm, "status": sol.code}
        stats["max_steps"] = self.settings.get("maxiter")  # as lineax's own solvers do
        if isinstance(sol, LeastSquaresSolution):
            stats["normal_residual_norm"] = sol.normal_residual_norm
        if sol.norms is not None:
            stats["history"] = sol.history
        result = lx.RESULTS.breakdown
        for status, meaning in RESULTS.items():
            result = lx.RESULTS.where(sol.code == status, meaning, result)
        return unravel(sol.x.astype(zero.dtype)), result, stats

    def transpose(self, state: Operator, options: dict[str, Any]) -> tuple[Operator, dict[str, Any]]:
        """The transposed system; the conjugate one, with the faster product, if the method assumes a Hermitian A."""
        if self.method is lsmr:
            return state.transpose(), {}
        inner = self.settings.get("method", "cg") if self.method is refine else ""
        if METHODS[inner].self_adjoint if inner else self.method in SELF_ADJOINT:
            return self.conj(state, options)
        return state.transpose(), _of_preconditioner(lambda M: M.T, options)

    def conj(self, state: Operator, options: dict[str, Any]) -> tuple[Operator, dict[str, Any]]:
        return lx.conj(state), _of_preconditioner(_conj, options)

    def assume_full_rank(self) -> bool:
        return self.method is not lsmr


class LeastSquares(Krylov):
    """`lsmr` as a solver of lineax, for operators of any shape and rank: the shortest least-squares solution.

    It stops as `lsmr` does, and takes the options of `Krylov`, of which the preconditioner is a positive definite
    approximation of (AᴴA)⁻¹. lineax computes derivatives by solves with A and Aᴴ; the solves with A use the
    preconditioner. Derivatives hold at every rank, for changes that keep the rank.

    The solution's `stats` are those of `Krylov`, and "normal_residual_norm".
    """

    def __init__(self, *, max_steps: int | None = None, **settings: Any):
        """Takes `lsmr`'s keywords except `callback`, `adjoint`, and `damp`, whose derivatives lineax does not compute:
        stack λ·I below the operator instead.

        Raises:
          TypeError: another keyword.
        """
        super().__init__(lsmr, max_steps=max_steps, **settings)


def _flat(operator: Operator, unravel: Callable[[Array], Any], dtype: Any, by_entries: bool = False) -> Any:
    """The operator on raveled vectors: its matrix if it has one, whose basis the methods enter; else a function.

    Args:
      by_entries: the matrix has indices that are not traced, if its pattern is known.
    """
    while isinstance(operator, lx.TaggedLinearOperator):
        operator = operator.operator
    if isinstance(operator, SparseOperator):
        A, pattern = operator.matrix, operator.pattern
        if pattern is None or not by_entries:
            return A
        return pattern.matrix(A.T.data).T if is_transpose(A) else pattern.matrix(A.data)
    return lambda v: ravel_pytree(operator.mv(unravel(v.astype(dtype))))[0]  # refine has narrower vectors for M


def _of_preconditioner(f: Callable[[Any], Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options for the system with f(A) instead of A, without y0, which is a start for A's system alone."""
    return {name: f(M) for name, M in options.items() if name == "preconditioner" and M is not None}


def _conj(A: Any) -> Any:
    """The conjugate of an operator of lineax or of a matrix."""
    if isinstance(A, lx.AbstractLinearOperator):
        return lx.conj(A)
    return jax.tree.map(lambda a: jnp.conj(a) if jnp.iscomplexobj(a) else a, A)


def _check_alike(got: Any, wanted: Any, what: str) -> None:
    """Raises ValueError: two pytrees do not have the same structure, shapes and dtypes."""
    shown, like = (jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}", v) for v in (got, wanted))
    if jax.tree.flatten(shown) != jax.tree.flatten(like):
        raise ValueError(f"{what} must have the structure, shapes and dtypes of the unknowns, {like}; got {shown}")


# ----------------------------------------------------- what lineax asks of an operator, where a dense array differs


@lx.conj.register(SparseOperator)
def _(operator: SparseOperator) -> SparseOperator:
    return operator._with(_conj(operator.matrix), operator.tags)


@lx.diagonal.register(SparseOperator)
def _(operator: SparseOperator) -> Array:
    return _diagonals(operator, 0)[0]


@lx.tridiagonal.register(SparseOperator)
def _(operator: SparseOperator) -> tuple[Array, ...]:
    return _diagonals(operator, 0, -1, 1)


def _diagonals(operator: SparseOperator, *offsets: int) -> tuple[Array, ...]:
    A = operator.matrix
    A = A if has_entries(A) or is_transpose(A) else operator.as_matrix()
    return tuple([A.diagonal(k).astype(operator.dtype) for k in offsets])
