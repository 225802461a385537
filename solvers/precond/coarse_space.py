"""Deflation by a coarse space: M + θ·W·(Wᴴ·A·W)⁻¹·Wᴴ, which treats the slow modes in the span of W exactly.

The coarse space of Nicolaides (1987, Deflation of conjugate gradients with applications to boundary value problems),
added to a preconditioner (Tang, Nabben, Vuik and Erlangga 2009, Comparison of two-level preconditioners, the method
AD of §2.3.1). The sum is Hermitian positive definite if M is, for any start and any rounding of the coarse inverse. The
balancing form (BNN, §2.3.3) takes 8% fewer steps on elasticity, but reads W four times instead of twice, or A·W in
place of two of them.

θ is a Rayleigh quotient of M·A; with it the steps do not depend on the scale of A or M.

Bytes of an application, besides those of M: W twice, and vectors of n. With separate modes for each subdomain
(`subdomains`), a row of W has k entries, however many subdomains there are.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._dtypes import floating_dtype
from jaxsparse_fmt._pytrees import brief, exportable, pytree
from jaxsparse_fmt._tracing import concrete, is_traced, standard_promotion
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core.basis import IDENTITY, Basis, Operator, within
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.core import arguments
from solvers.core.operators import operand, refuse_scipy
from solvers.core.space import outside
from solvers.core.vectors import dot, matmul, ratio, times
from solvers.precond import _checks as checks
from solvers.precond._inverse import LARGEST, generalized_inverse
from solvers.precond.jacobi import jacobi

TOGETHER = 8  # columns of W that A multiplies at once in the set-up, which needs two such blocks of vectors


@exportable
@brief
@pytree
class CoarseSpace(checks.Refreshed):
    """M + W·C·Wᴴ as an operator: `@ r` for r of [n] or [n, k].

    Attributes:
      W: [n, m], dense or a matrix of jaxsparse_fmt.
      R: [m, n], Wᴴ; stored apart where W is sparse, whose transposed product would add by atomics.
      coarse: [m, m], C = θ·(Wᴴ·A·W)⁻¹.
      M: the preconditioner without the coarse space.
      order: between W and R, if A is sharded: that of A, in which each device has its rows of W.
    """

    W: Any
    R: Any
    coarse: Array
    M: Any
    order: Basis = IDENTITY

    @property
    def shape(self) -> tuple[int, int]:
        return self.M.shape

    @property
    def dtype(self) -> np.dtype:
        return self.coarse.dtype

    @property
    def T(self) -> Self:
        W, R, coarse = jax.tree.map(jnp.conj, (self.W, self.R, self.coarse))
        return dataclasses.replace(self, W=W, R=R, coarse=coarse, M=self.M.T)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = operand(self, r, self.coarse, 2, self.order)
        slow = times(self.W, matmul(self.coarse, times(self.R, self.order.enter(r))))
        return self.M @ r + self.order.leave(slow)

    def _entered(self, basis: Basis) -> Any:
        M = self.M._entered(basis) if basis.same(self.order) else None
        return None if M is None else dataclasses.replace(self, M=M, order=IDENTITY)

    def _partition(self, axis: Any) -> Self | None:
        maps = self.W, self.R, self.M
        W, R, M = (a._partition(axis) if isinstance(a, Operator) else None for a in maps)
        if None in (W, R, M) or not self.order.is_identity:
            return None
        same: Any = PartitionSpec()
        return dataclasses.replace(self, W=W, R=R, M=M, coarse=same)

    def _anew(self, A: Any) -> "CoarseSpace":
        checks.renewing(self, A)
        M = checks.renewed(self.M, A)
        return dataclasses.replace(self, coarse=_coarse(A, self.W, self.R, M, self.order), M=M)


@arguments.door
def coarse_space(A: Any, W: Any, M: Any = None) -> CoarseSpace:
    """M with a coarse space, so that a solver need not find the modes in the span of W step by step.

    A is symmetric (Hermitian) and positive definite or semidefinite. The set-up takes a product of A with each
    column of W. It works inside jit where W is dense.

    Args:
      A: [n, n], a pytree with a shape and `@`: a jaxsparse_fmt format, or a dense array. If it is sharded, each device
        has its rows of W.
      W: [n, m], columns that A makes small: a near-null space, that of each subdomain (`subdomains`), or, in a
        sequence of systems, Ritz vectors of an earlier one (`eigsh(A, m, which="SA", tol=0.1).eigenvectors`). A dense
        array, or a matrix of scipy.sparse or jaxsparse_fmt.
      M: a positive definite preconditioner, a pytree with `@` or the [n] numbers of a diagonal; None takes `jacobi(A)`.

    Raises:
      ValueError: A is a function or not square; W has another shape or, outside jit, a NaN, an infinity or dependent
        columns. Inside jit a column that others span changes nothing, and a NaN makes M @ r NaN. TypeError: M is a
        function, or W is complex where A is not.

    Examples:
      >>> W = js.precond.subdomains(np.ones(16), np.arange(16) // 4)
      >>> js.cg(A, b, M=js.precond.coarse_space(A, W)).success
      True
    """
    n = checks.square(A, "coarse_space")
    refuse_scipy(A, "A")
    is_sparse, is_sharded = scipy.sparse.issparse(W) or isinstance(W, ScipyNames), checks.is_sharded(A)
    given = W
    W = W if is_sparse else as_floating(W, "W")
    if len(W.shape) != 2 or W.shape[0] != n or not 1 <= W.shape[1] <= n:
        raise ValueError(f"W must hold one row an unknown, shape ({n}, m) with m from 1 to {n}; got {tuple(W.shape)}")
    if W.shape[1] > LARGEST:
        fewer = f"at most {LARGEST}: those of fewer, larger subdomains, as in subdomains(B, parts // 2)"
        raise ValueError(f"W has {W.shape[1]} columns, and Wᴴ·A·W is inverted densely; use {fewer}")
    kind, dtype = floating_dtype(W.dtype, "W"), jnp.result_type(A.dtype, jnp.float32)
    if kind.kind == "c" and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"W is complex and A is not; pass real columns, or A.astype({kind})")
    if is_sparse:
        S = scipy.sparse.csr_array(W.to_scipy() if isinstance(W, ScipyNames) else W)
        with concrete():
            _check_columns(S.data, lambda: (S.conj().T @ S).toarray())
        if not is_sharded:
            W, R = (from_scipy(scipy.sparse.csr_array(matrix), dtype=dtype) for matrix in (S, S.conj().T))
    else:
        W = S = W.astype(dtype)
        R: Any = W.conj().T
        if not is_traced(W):
            with concrete():
                _check_columns(W, lambda: matmul(R, W))
    M = None if M is None else checks.storable(M, n, "M")
    if is_sharded:
        from solvers.precond._sharded import crossings

        A._check_users_order("coarse space")
        A._agree(W=given, M=M)
        W, R = crossings(A, S, dtype)
    M = jacobi(A) if M is None else M
    order = A.domain if is_sharded else IDENTITY
    return CoarseSpace(W, R, _coarse(A, W, R, M, order), M, order)


def subdomains(B: Any, parts: Any) -> Any:
    """The near-null space of each subdomain by itself, as a sparse matrix W for `coarse_space`.

    Args:
      B: [n, k], the near-null space, such as `gallery.rigid_body_modes(points)`; [n] is one column.
      parts: [points], the subdomain of each point, a whole number; -1 leaves a point out. The n / points unknowns of a
        point have consecutive rows.

    Returns:
      scipy.sparse [n, k·subdomains], whose columns are orthonormal. Columns that the others of their subdomain span are
      left out.

    Raises:
      ValueError: shapes that do not fit, no point in any subdomain, a NaN or an infinity. TypeError: parts are not
        whole numbers.

    Examples:
      >>> js.precond.subdomains(np.ones(16), np.arange(16) // 4).shape
      (16, 4)
    """
    B, parts = np.asarray(B), np.asarray(parts)
    B = B[:, None] if B.ndim == 1 else B
    if B.ndim != 2 or B.size == 0 or parts.ndim != 1 or parts.size == 0 or B.shape[0] % parts.size:
        raise ValueError(
            f"B must hold one row an unknown and parts one number a point, shapes (b·points, k) and (points,); got "
            f"{B.shape} and {parts.shape}"
        )
    if parts.dtype.kind not in "iu":
        raise TypeError(f"parts must be whole numbers; got {parts.dtype}")
    checks.finite(B, "B")
    known, agg = np.unique(parts, return_inverse=True)
    outside = int(np.count_nonzero(known < 0))
    if outside == len(known):
        raise ValueError("parts are all negative, so that no point is in a subdomain")
    agg, count = np.maximum(agg - outside, -1).astype(np.int32), len(known) - outside
    Q, _ = aggregation.tentative(agg, count, np.ascontiguousarray(B, np.result_type(B, np.float64)))
    W = aggregation.placed(agg, count, Q.reshape(parts.size, -1, B.shape[1])).tocsr()
    W = W[:, np.bincount(W.indices, np.abs(W.data), minlength=W.shape[1]) > 0]
    W.eliminate_zeros()
    return W


def _check_columns(data: Any, products: Any) -> None:
    """Refuses the columns of W with these entries, and these products [m, m] with one another."""
    if not bool(jnp.all(jnp.isfinite(data))):
        raise ValueError("W has a NaN or an infinity among its entries")
    G: Any = np.asarray(products())
    lengths: Any = np.sqrt(np.abs(np.diag(G)))
    lengths[lengths == 0] = 1
    eigenvalues = np.linalg.eigvalsh(G / lengths[:, None] / lengths)
    rank = int(np.sum(eigenvalues > 10 * len(G) * np.finfo(G.dtype).eps))
    if rank < len(G):
        raise ValueError(
            f"W has {len(G)} columns of rank {rank}; leave out those that others span, which "
            "scipy.linalg.qr(W, pivoting=True) names"
        )


@jax.jit
def _coarse(A: Any, W: Any, R: Any, M: Any, order: Basis) -> Array:
    """θ·(Wᴴ·A·W)⁻¹, [m, m]; directions in which W·x, or A·W·x, is only rounding, have the inverse 0."""
    if not order.is_identity:
        A, M = A.in_basis, within(M, order)
    space, n, m, dtype = outside(order), A.shape[0], W.shape[1], R.dtype
    count = -(-m // TOGETHER)

    def block(start: Array) -> Array:
        columns = start + jnp.arange(TOGETHER)
        unit = (jnp.arange(m)[:, None] == columns).astype(dtype)
        return times(R, A @ times(W, unit))

    E = lax.map(block, TOGETHER * jnp.arange(count))  # [count, m, TOGETHER]
    E = jnp.moveaxis(E, 0, 1).reshape(m, -1)[:, :m]
    v = space.probe(jnp.zeros(n, dtype))
    z = M @ v
    theta = ratio(dot(z, A @ z), dot(z, v))
    diagonal = jnp.abs(A.diagonal()) if hasattr(A, "diagonal") else ratio(dot(v, A @ v), dot(v, v))
    squares = jnp.abs(R) ** 2 if isinstance(R, jax.Array) else R._each(lambda a: jnp.abs(a) ** 2)
    summed = times(squares, jnp.broadcast_to(diagonal, n).astype(E.real.dtype))  # into the diagonal of E
    return (theta * generalized_inverse(E, summed)).astype(dtype)
