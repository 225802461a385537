"""The results of solvers, their statuses, and the error of a failed solve."""

import contextlib
import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from jaxsparse_fmt import _elsewhere, _html
from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt._tracing import is_concrete, standard_promotion
from solvers.core.operators import is_function
from solvers.core.space import HERE, length
from solvers.core.vectors import ratio, times


class Status(enum.IntEnum):
    """The outcome of a solve as an integer, so that jit can return it; `message` names the cause and the cure."""

    CONVERGED = 0
    MAXITER = 1
    BREAKDOWN = 2
    STAGNATION = 3
    NOT_POSITIVE_DEFINITE = 4
    NON_FINITE = 5
    DIVERGED = 6
    NOT_SYMMETRIC = 7
    PRECISION = 8
    LEAST_SQUARES = 9
    OUT_OF_RANGE = 10
    SINGULAR = 11
    ROUNDED = 12

    def __str__(self) -> str:
        return self.name

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "the true residual meets the tolerance",
    Status.MAXITER: "maxiter reached before the tolerance; raise maxiter, loosen rtol, or use a better M",
    Status.BREAKDOWN: "the method broke down: its next direction vanished before the tolerance was met; the matrix "
    "may be singular, rtol and atol may ask for more than zero residual, or nullspace= is not taken to zero",
    Status.STAGNATION: "the true residual stopped falling above the tolerance: at the limit of the dtype's precision, "
    "where a larger rtol helps, and float64 where x is float32; or the method needs a better M, gmres a larger restart",
    Status.NOT_POSITIVE_DEFINITE: "the matrix or the preconditioner is not definite, or not positive definite where "
    "the method needs that (Cholesky's factors, the M of minres); for an indefinite matrix use minres, gmres or "
    "bicgstab, and for a singular one minres or lsmr, since b may lie outside its range",
    Status.NON_FINITE: "a NaN or infinity appeared; look for them in A, b, x0 and M; or squares of the "
    "numbers of A·M overflow: use an M that fits A, such as precond.jacobi(A), or none",
    Status.DIVERGED: "the residual grew until rounding hid the rest, and x is the best one before; the matrix may be "
    "singular and b outside of its range (use minres or lsmr), or the method does not suit it: scale the "
    "system, use a better M, or gmres, whose residual never grows",
    Status.NOT_SYMMETRIC: "the matrix is not symmetric (Hermitian), which this method needs; for a system use "
    "gmres or bicgstab",
    Status.PRECISION: "corrections in the narrow type no longer help: the condition number times its rounding unit is "
    "too large; use a wider one (float32 for bfloat16), pass a preconditioner M, or "
    "use the method itself in float64, which also reports a matrix that does not suit it",
    Status.LEAST_SQUARES: "the system has no solution: the matrix is singular, and b does not lie in its range; x is a "
    "least-squares solution, where A·(b − A·x) is zero within rounding; lsmr is meant for "
    "such systems",
    Status.OUT_OF_RANGE: "the solution lies outside the range of this dtype: numbers of x over- or underflow; scale b "
    "or the unknowns, or use float64 where x is float32 (with jax_enable_x64)",
    Status.SINGULAR: "the matrix is singular, or nearly (1/eps is below its condition number); look for empty rows and "
    "columns, or for unknowns of which only differences count, or use minres or lsmr for a least-squares solution",
    Status.ROUNDED: "x is as accurate as the dtype allows: its residual misses the tolerance, but is that of a system "
    "whose A and b differ from the given ones by a few rounding errors; a wider dtype gets further",
}


class SolverError(RuntimeError):
    """Raised by `Solution.raise_for_status`; `status` holds the cause. None: another process is gone."""

    def __init__(self, status: Status | None, text: str):
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> Any:
        return type(self), (self.status, str(self))


def raise_lost_process(error: Exception) -> None:
    """Raises a SolverError if the error shows that another process has ended."""
    if getattr(error, "is_of_lost_process", False):
        raise SolverError(None, str(error)) from error
    if jax.process_count() > 1 and re.search(r"\b(Gloo|NCCL)\b", str(error)):
        cure = "start all of them again, from the last checkpoint if there is one (examples/checkpoint.py)"
        raise SolverError(None, f"another process is gone, or out of step: {cure}. XLA: {error}") from error


@contextlib.contextmanager
def noticing_lost_processes() -> Iterator[None]:
    """A context in which `raise_lost_process` sees every error."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise_lost_process(error)
        raise


class Outcome:
    """The status, iterations and error of a result, from its `code`, a `Status` as a number, and `n_iterations`."""

    code: Array
    n_iterations: Array
    _messages: ClassVar[dict[Status, str]] = {}  # of statuses that mean something else here than in `Status`
    _norm: ClassVar[str] = "residual_norm"  # the field whose largest number an error reports
    __iter__: Any = None  # of results that unpack as SciPy's

    def __getitem__(self, index: Any) -> Any:
        """A part of what this result unpacks into, as of SciPy's tuple: `cg(A, b)[0]` is x."""
        return tuple(self)[index]

    @property
    def status(self) -> Status | Array:
        """A `Status`; inside jit, or for several solves at once, the code array."""
        with noticing_lost_processes():
            return Status(int(self.code)) if is_one_number(self.code) else self.code

    @property
    def iterations(self) -> int | Array:
        """Iterations done; an int outside jit."""
        return int(self.n_iterations) if is_one_number(self.n_iterations) else self.n_iterations

    @property
    def success(self) -> bool | Array:
        """Whether x meets the tolerance, or is as accurate as the dtype allows; a bool outside jit."""
        if is_one_number(self.code):
            return self.status in (Status.CONVERGED, Status.ROUNDED)
        return self._failure == 0

    @property
    def _failure(self) -> Any:
        """The code of a failure; 0 after a success."""
        code = _at_hand(self.code)
        return (jnp if isinstance(code, jax.Array) else np).where(code == Status.ROUNDED, 0, code)

    def raise_for_status(self) -> Self:
        """Returns this result if every solve in it succeeded.

        Raises:
          SolverError: a solve failed; the message names the cause and the cure. TypeError: inside jit or vmap.
        """
        try:
            with noticing_lost_processes():
                worst = Status(int(_largest(self._failure)))
        except jax.errors.ConcretizationTypeError:
            cure = "call it on the result that the jitted function returns, or use sol.success inside"
            raise TypeError(f"raise_for_status needs the status as a number, which is traced here: {cure}") from None
        if worst is not Status.CONVERGED:
            norm, steps = self._worst_norm(), int(_largest(self.n_iterations))
            message = self._messages.get(worst, worst.message)
            raise SolverError(worst, f"{worst.name} after {steps} iterations, residual norm {norm:.3g}: {message}")
        return self

    def _content(self) -> str:
        """The result itself for `repr`: the dtype and shape of x."""
        return f"x: {jax.tree.map(lambda a: f'{a.dtype}{list(a.shape)}', vars(self)['x'])}"

    def _worst_norm(self) -> float:
        return float(_largest(vars(self)[self._norm]))

    def _repr_html_(self) -> str | None:
        """For notebooks: status, method, residual and the history as a curve; None, for which `repr` stands, in jit."""
        if not (_is_at_hand(self.code) and self.code.size):
            return None
        one, steps = is_one_number(self.code), np.asarray(self.n_iterations)
        status = Status(int(self.code)) if one else None
        told = self._counts() if status is None else status.name
        told += f": {self._messages.get(status, status.message)}" if status else ""  # not of CONVERGED, which is 0
        rows = [("status", told)]
        rows += [("method", method)] if (method := getattr(self, "method", "")) else []
        rows += [("iterations", f"{int(steps):,}" if one else f"{steps.min():,} to {steps.max():,}")]
        rows += [
            (self._norm.removesuffix("s").replace("_", " "), f"{'' if one else 'at most '}{self._worst_norm():.3g}")
        ]
        rows += [("result", self._content())]
        history = getattr(self, "history", None) if one else None
        return _html.table(type(self).__name__, rows, "" if history is None else _html.sparkline(history))

    def _counts(self) -> str:
        """The statuses of several solves, the most frequent first: `3 CONVERGED, 1 MAXITER`."""
        codes, counts = np.unique(np.asarray(self.code), return_counts=True)
        names = (f"{counts[i]} {Status(int(codes[i])).name}" for i in np.argsort(-counts, kind="stable"))
        return ", ".join(names) or "no systems"

    def __repr__(self) -> str:
        name = type(self).__name__
        if not _is_at_hand(self.code):
            return f"{name}(status: {self.code}, {self._content()})"
        if not is_one_number(self.code):
            return f"{name}({self._counts()}, {self._content()})"
        norm = f"{self._norm.removesuffix('s')}={self._worst_norm():.3g}"
        by = f" by {method}" if (method := getattr(self, "method", "")) else ""
        return f"{name}({Status(int(self.code)).name}{by}, iterations={self.iterations}, {norm}, {self._content()})"


SINGULAR = "A looks singular"  # begins a line of `tried`, which a `repr` shows, too


class Told(tuple[str, ...]):
    """Text attached to a result. All instances are equal, so that solutions of different methods share a pytree
    structure, as `lax.scan` needs. So a program that takes a solution serves all of them, and sees no text.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple)

    def __hash__(self) -> int:
        return 0


@exportable
@pytree
class Solution(Outcome):
    """A solver's result, a pytree. Unpacks as SciPy's, `x, info = cg(A, b)`: info is 0 after a success, else `code`.

    Attributes:
      x: [n], [n, k] or a pytree, like b: the last iterate, or the best one if the solve failed; always finite.
      code: int32, the `Status` as a number; one per system for several systems or under vmap.
      n_iterations: int32, likewise.
      residual_norm: ‖b − A·x‖₂ of the returned x, not the residual norm of the recursion.
      norms: [length] or [length, k], residual norms of the recursion by iteration, −1 after the last; None unless
        requested. The padding is −1, since a NaN would stop a program under `jax_debug_nans`. `history` ends at the
        last iteration; inside jit NaN pads it.
      method, tried: of `solve`, the method, and a line for each that was tried, as when JAX traced it; else empty,
        also in a function that JAX traces with a solution as its argument.
    """

    x: Array
    code: Array
    n_iterations: Array
    residual_norm: Array
    norms: Array | None
    _told: Told = dataclasses.field(default=Told(), kw_only=True, metadata={"static": True})

    if not TYPE_CHECKING:
        __getattr__ = _elsewhere.missing(_elsewhere.OF_SOLUTIONS)

    def _unflattened(self) -> None:
        if isinstance(self.code, Tracer):
            vars(self)["_told"] = Told()

    def __iter__(self) -> Iterator[Array]:
        return iter((self.x, self._failure))

    @standard_promotion
    def backward_error(self, A: Any, b: Any) -> Array:
        """‖b − A·x‖ / (‖A‖·‖x‖ + ‖b‖): the least relative change of A and b that makes x exact (Rigal and Gaches 1967).

        A few units of the dtype's eps are as good as the dtype allows, whatever ‖b − A·x‖ / ‖b‖ is; ROUNDED stands for
        at most 10. One product with A estimates ‖A‖₂ from below. One number, or one for each column of b.

        ValueError: b does not have the shape of A·x.
        """
        v = HERE.noise(self.x)
        Av = A(v) if is_function(A) else times(A, v)
        if jnp.shape(b) != (expected := (*Av.shape, *self.x.shape[1:])):
            raise ValueError(f"b has shape {jnp.shape(b)}; A·x has {expected}")
        return ratio(self.residual_norm, ratio(length(Av), length(v)) * length(self.x) + length(jnp.asarray(b)))

    @property
    def method(self) -> str:
        """The method that `solve` chose, such as "cg with multigrid"; else empty."""
        return "".join(self._told[:1])

    @property
    def tried(self) -> tuple[str, ...]:
        """A line for each method that `solve` tried, with the reason and the outcome."""
        return tuple(self._told[1:])

    def _content(self) -> str:
        return "; ".join([super()._content(), *[line for line in self.tried if line.startswith(SINGULAR)]])

    @property
    def history(self) -> Array | None:
        """Residual norms, index = iteration: [iterations + 1] outside jit, of fixed length and NaN-padded inside."""
        if self.norms is None:
            return None
        if is_one_number(self.n_iterations):
            return self.norms[: int(self.n_iterations) + 1]
        with jax.debug_nans(False):  # to which these are no errors
            return jnp.where(self.norms < 0, jnp.nan, self.norms)


def _is_at_hand(a: Any) -> bool:
    """Whether this process knows all numbers of `a`."""
    return isinstance(a, np.ndarray) or (is_concrete(a) and (a.is_fully_addressable or a.is_fully_replicated))


def _at_hand(a: Any) -> Any:
    """In NumPy, which compiles nothing, if this process knows all of `a`."""
    return np.asarray(a) if _is_at_hand(a) else a


def _largest(a: Any) -> Any:
    return _at_hand(a).max(initial=0)


def is_one_number(a: Array) -> bool:
    """Whether `a` is a concrete array without axes."""
    return _is_at_hand(a) and a.ndim == 0
