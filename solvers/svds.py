"""The largest singular values of a matrix and their vectors, by the eigenpairs of Aᴴ·A or A·Aᴴ, the smaller one."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt.core.basis import Basis, Operator
from solvers.core import arguments
from solvers.core.operators import UserFunction, wrapped
from solvers.core.scaling import scaled
from solvers.core.space import HERE, exponent, length
from solvers.core.vectors import adjoint_product, matmul, ratio
from solvers.eigenpairs import MESSAGES
from solvers.eigsh import eigsh
from solvers.solution import Outcome


@exportable
@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SingularSolution(Outcome):
    """Singular triples, a pytree. Unpacks as `u, s, vh = svds(A)`.

    Attributes:
      u, s, vh: [m, k], [k] from the largest down, and [k, n].
      code: int32, the `Status` as a number; n_iterations: int32, restarts.
      residual_norms: [k], ‖A·v − s·u‖ and ‖Aᴴ·u − s·v‖, the larger of them.
    """

    u: Array
    s: Array
    vh: Array
    code: Array
    n_iterations: Array
    residual_norms: Array

    _norm = "residual_norms"
    _messages = MESSAGES

    def __iter__(self) -> Iterator[Array]:
        return iter((self.u, self.s, self.vh))

    def _content(self) -> str:
        return f"s: {self.s.dtype}{list(self.s.shape)}"


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Square(Operator):
    """4⁻ᵉ·Aᴴ·A of a tall A, 4⁻ᵉ·A·Aᴴ of another, which neither over- nor underflow: 2ᵉ is about the size of A."""

    A: Any
    exponent: Array
    tall: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return (self.A.shape[1 if self.tall else 0],) * 2

    @property
    def in_basis(self) -> "Square":
        return dataclasses.replace(self, A=self.A._in_bases()[0])

    @property
    def basis(self) -> Basis:
        return self.A._in_bases()[1 if self.tall else 2]

    @property
    def dtype(self) -> Any:
        return self.A.dtype

    def __matmul__(self, v: Array) -> Array:
        half = scaled(image(self.tall, self.A, v), -self.exponent)
        return scaled(image(not self.tall, self.A, half), -self.exponent)


def image(tall: bool, A: Any, v: Array) -> Array:
    """A·v of a tall A, Aᴴ·v of another."""
    return A @ v if tall else adjoint_product(A, v)


@functools.partial(jax.jit, static_argnums=0)
def _exponent(tall: bool, A: Any) -> Array:
    """The exponent of A, from one product."""
    v = HERE.noise(jnp.zeros(min(A.shape), jnp.float32))
    return exponent(lax.stop_gradient(image(tall, A, v)))


@arguments.door
def svds(
    A: Any,
    k: int = 6,
    *,
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    progress: Any = None,
) -> SingularSolution:
    """The k largest singular values of A and their vectors; as SciPy's function of this name. Works inside jit.

    s descends, as in NumPy's `svd`; that of SciPy's `svds` ascends.

    The triples are those of A on the space of the eigenvectors, so that s and both residuals are exact to about eps·s₁
    for the largest, s₁; the space may miss an s below √eps·s₁. Derivatives as of `eigsh`.

    Args:
      A: [m, n], a jaxsparse matrix or a dense array.
      k: below m and n.
      v0: start vector, of the shorter side; v0, ncv, maxiter, tol and progress as in `eigsh`, for the
        eigenvalues s².

    Raises:
      ValueError, TypeError: as `eigsh`, or A has no shape.

    Examples:
      >>> js.svds(A, 2).s.round(3).tolist()  # the largest, in descending order
      [7.236, 6.236]
    """
    shape = getattr(A, "shape", ())
    if len(shape) != 2:
        got = f"shape {shape}" if shape else type(A).__name__
        raise TypeError(f"svds needs a matrix [m, n] with a shape and @; got {got}")
    given, A = A, wrapped(A, "A")
    if isinstance(A, UserFunction):
        raise TypeError(f"svds needs a matrix that is a pytree, for its products with Aᵀ; got {type(given).__name__}")
    if (k := arguments.int_at_least(k, "k", 1)) >= min(shape):
        raise ValueError(
            f"k must be below {min(shape)}, the shorter side of A; got {k}. For all singular values use "
            "jnp.linalg.svd of a dense array"
        )
    A._in_bases()[1].agree(lambda: {"k": k})
    tall = shape[0] >= shape[1]
    limiting = {"ncv": ncv, "maxiter": maxiter, "tol": tol, "progress": progress}
    found = eigsh(Square(A, _exponent(tall, A), tall), k, which="LA", v0=v0, **limiting)
    return _triples(tall, A, found)


@functools.partial(jax.jit, static_argnums=0)
def _triples(tall: bool, A: Any, found: Any) -> SingularSolution:
    short = found.eigenvectors[:, ::-1]  # of the shorter side
    long = image(tall, A, short)
    # The singular vectors of A in the space that was found are as exact for a small s, whose images are rounding.
    U, S, Zh = jnp.linalg.svd(lax.stop_gradient(long), full_matrices=False)
    short, long = (matmul(a, jnp.conj(Zh.T)) for a in (short, long))
    s = length(long)
    long = ratio(long, s)
    s, long = (a + lax.stop_gradient(exact - a) for a, exact in ((s, S), (long, U)))
    u, v = (long, short) if tall else (short, long)
    residuals = lax.stop_gradient(jnp.maximum(length(A @ v - s * u), length(adjoint_product(A, u) - s * v)))
    return SingularSolution(u, s, jnp.conj(v.T), found.code, found.n_iterations, residuals)
