"""The largest or smallest singular values of a matrix and their vectors.

The largest are by the eigenpairs of Aᴴ·A or A·Aᴴ, the smaller one. Squares of the smallest would be rounding. With a
tall A, G = [[δ, A], [Aᴴ, 0]] has for each σ an eigenvalue λ ≤ 0 with λ² − δ·λ = σ² and the vector (−A·v/(δ − λ), v),
and δ for each left null vector. So the eigenpairs of G nearest to 0 are those of the smallest σ, as long as σ < √2·δ.
Their vectors are as exact as the dtype allows where σ is about δ: a search begins with δ = ‖A‖, and goes on with twice
the largest σ whose residuals are larger than rounding.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt._tracing import is_traced
from jaxsparse_fmt.core.basis import Basis, Operator
from solvers import factors
from solvers.core import arguments
from solvers.core.operators import UserFunction, promoted, traced, wrapped
from solvers.core.space import HERE, exponent, length
from solvers.core.vectors import adjoint_product, matmul, ratio, scaled
from solvers.eigenpairs import MESSAGES
from solvers.eigsh import TRUE, eigsh
from solvers.precond import _checks as checks
from solvers.solution import Outcome, Status

SEARCHES = 6  # for the smallest values, of which each divides those that are left by 1/√eps or so
DELTA = 1e3  # times eps·‖A‖: the least δ


@exportable
@pytree
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
class Functions(Operator):
    """v -> A·v and u -> Aᴴ·u, traced."""

    forth: Any
    back: Any
    shape: tuple[int, int] = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def T(self) -> "Functions":
        return dataclasses.replace(self, shape=self.shape[::-1], is_transposed=not self.is_transposed)

    def __matmul__(self, v: Array) -> Array:
        v = v.astype(self.dtype)
        return jnp.conj(self.back @ jnp.conj(v)) if self.is_transposed else self.forth @ v


def functions(pair: Any, shape: Any, v0: Any) -> Functions:
    """ValueError: the functions do not take vectors of this shape, [m, n], to each other."""
    m, n = (arguments.int_at_least(size, "shape", 1) for size in shape)
    v = jax.ShapeDtypeStruct((n,), jnp.result_type(float if v0 is None else v0, jnp.float32))
    needs = f"of shape {(m, n)} the functions take {(n,)} to {(m,)} and back"
    try:
        u = jax.eval_shape(pair[0], v)
        back = jax.eval_shape(pair[1], jax.ShapeDtypeStruct((m,), u.dtype))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{needs}; got {error}") from error
    if (u.shape, back.shape) != ((m,), (n,)):
        raise ValueError(f"{needs}; got {u.shape}, {back.shape}")
    dtype = promoted(v.dtype, u.dtype, back.dtype)
    forth, back = (traced(f, jax.ShapeDtypeStruct((size,), dtype)) for f, size in zip(pair, (n, m), strict=True))
    return Functions(forth, back, (m, n), dtype)


@pytree
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
    which: str = "LM",
    shape: tuple[int, int] | None = None,
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    progress: Any = None,
) -> SingularSolution:
    """The k largest or smallest singular values of A and their vectors; as SciPy's function of this name.

    The largest also inside jit.

    s descends, as in NumPy's `svd`; that of SciPy's `svds` ascends.

    The triples are those of A on the space of the eigenvectors, so that s and both residuals are exact to about eps·s₁
    for the largest, s₁; the space may miss an s below √eps·s₁. Of the smallest, s and both residuals are exact to about
    100·eps·‖A‖, or the status is STAGNATION; the singular vectors of s = 0 are null vectors. Derivatives as of `eigsh`.

    Args:
      A: [m, n], a jaxsparse matrix or a dense array; or, for the largest, a pair of functions (v -> A·v, u -> Aᴴ·u).
      k: below m and n.
      which: "LM" the largest; "SM" the smallest, by one to some five factorizations of a matrix [m + n, m + n] on the
        host, outside jit: A is on one device, and its values are known.
      shape: (m, n), of functions.
      v0: start vector, of the shorter side; v0, ncv, maxiter, tol and progress as in `eigsh`, for the
        eigenvalues s²; of the smallest, for vectors of length m + n.

    Raises:
      ValueError, TypeError: as `eigsh`, or A has no shape.

    Examples:
      >>> js.svds(A, 2).s.round(3).tolist()  # the largest, in descending order
      [7.236, 6.236]
      >>> js.svds(A, 2, which="SM").s.round(3).tolist()
      [1.764, 0.764]
      >>> js.svds((lambda v: A @ v, lambda u: A.T @ u), 2, shape=A.shape).s.round(3).tolist()
      [7.236, 6.236]
    """
    check_choice("which", which, ("LM", "SM"), "")
    if isinstance(A, tuple | list) and len(A) == 2 and all(map(callable, A)):
        if shape is None or len(shape) != 2:
            raise ValueError(f"svds of functions (v -> A·v, u -> Aᴴ·u) needs shape=(m, n); got {shape}")
        A = functions(A, shape, v0)
    elif shape is not None:
        raise ValueError(f"shape= is for a pair of functions; this A has one of its own: leave {shape} out")
    size: tuple[int, ...] = getattr(A, "shape", ())
    if len(size) != 2:
        got = f"shape {size}" if size else type(A).__name__
        raise TypeError(f"svds needs a matrix [m, n] with a shape and @; got {got}")
    given, A = A, wrapped(A, "A")
    if isinstance(A, UserFunction):
        raise TypeError(f"svds needs a matrix that is a pytree, for its products with Aᵀ; got {type(given).__name__}")
    if (k := arguments.int_at_least(k, "k", 1)) >= min(size):
        raise ValueError(
            f"k must be below {min(size)}, the shorter side of A; got {k}. For all singular values use "
            "jnp.linalg.svd of a dense array"
        )
    A._in_bases()[1].agree(lambda: {"k": k, "which": which})
    tall = size[0] >= size[1]
    limiting = {"ncv": ncv, "maxiter": maxiter, "tol": tol, "progress": progress}
    if which == "SM":
        return _smallest(tall, given, k, {"v0": v0, **limiting})
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


def _smallest(tall: bool, A: Any, k: int, options: dict[str, Any]) -> SingularSolution:
    A = factors.of_dense(A) if isinstance(A, np.ndarray | Array) else A
    if not (checks.has_entries(A) or checks.is_transpose(A)) or is_traced(arguments.still(A)):
        raise TypeError(
            "svds(which='SM') factors a matrix on the host, outside jit, and needs its entries; got "
            f"{type(A).__name__}{' of traced values' if is_traced(arguments.still(A)) else ''}"
        )
    i, j, a = factors.entries(A, "svds")
    i, j, a = (i, j, a) if tall else (j, i, jnp.conj(a))
    a, m, n = a.astype(jnp.promote_types(a.dtype, jnp.float32)), max(A.shape), min(A.shape)
    sums = (np.bincount(np.asarray(at), np.abs(np.asarray(arguments.still(a)))).max(initial=0) for at in (i, j))
    norm, eps = float(np.prod(np.sqrt([*sums]))), float(jnp.finfo(a.dtype).eps)  # ‖A‖ from above
    e = int(np.frexp(norm)[1])  # 2⁻ᵉ·A is about 1
    a, norm = scaled(a, -e), float(np.ldexp(norm, -e))
    if options["v0"] is not None:
        v0 = arguments.vectors(options["v0"], "v0")
        if v0.shape != (n,):
            raise ValueError(f"v0 has shape {v0.shape}; A of shape {A.shape} needs ({n},)")
        dtype = jnp.promote_types(a.dtype, jnp.complex64) if jnp.iscomplexobj(v0) else a.dtype
        options["v0"] = jnp.concatenate([jnp.zeros(m), v0]).astype(dtype)
    delta, left, least, steps, parts = norm or 1.0, k, TRUE * eps * norm, jnp.int32(0), []
    for search in range(SEARCHES):
        G = factors.augmented(i, j, a, delta, (m, n))
        found = eigsh(G, left, sigma=0.0, **options)
        u, v = (ratio(x, length(x)) for x in (-found.eigenvectors[:m], found.eigenvectors[m:]))
        images = scaled(image(tall, A, v), -e)
        if np.any(null := np.asarray(arguments.still(length(images))) <= least):
            u0 = eigsh(G, int(np.sum(null)), sigma=delta).eigenvectors[:m]
            u = u.at[:, np.flatnonzero(null)].set(ratio(u0, length(u0)).astype(u.dtype))
        s = jnp.abs(jnp.sum(jnp.conj(u) * images, axis=0).real)
        residuals = jnp.maximum(length(images - s * u), length(scaled(image(not tall, A, u), -e) - s * v))
        # One of a size that λ does not resolve may stand in the place of a smaller one.
        sizes, is_last = np.asarray(arguments.still(s)), search == SEARCHES - 1 or delta <= DELTA * eps * norm
        resolved = (sizes > 10 * (eps * norm * delta) ** 0.5) | null | is_last
        exact = resolved & (np.asarray(arguments.still(residuals)) <= least)
        done = left if exact.all() or is_last or not found.success else int(np.argmin(exact))
        parts.append([b[..., :done] for b in (u, s, v, lax.stop_gradient(residuals))])
        left, steps = left - done, steps + found.n_iterations
        if not left:
            break
        delta = max(2 * float(sizes[done]), DELTA * eps * norm)
    u, s, v, residuals = (jnp.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    code = jnp.where(found.success & (jnp.max(residuals) > least), jnp.int32(Status.STAGNATION), found.code)
    u, v = (a + lax.stop_gradient(_orthonormal(a) - a) for a in (u, v))
    u, v = (u, v) if tall else (v, u)
    return SingularSolution(u, scaled(s, e), jnp.conj(v.T), code, steps, scaled(residuals, e))


def _orthonormal(a: Array) -> Array:
    """Nearly orthonormal columns, each without what it has of those before, which have larger singular values."""
    Q, R = jnp.linalg.qr(a)
    return Q * jnp.where(jnp.diagonal(R).real < 0, -1, 1)
