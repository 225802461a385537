"""The block Jacobi preconditioner: inverses of the blocks on the diagonal (Saad, Iterative Methods, §4.1.1 and §12.2).

         ⎡ ▓ ▓ . . . ⎤      block_size b = 2: rows 0-1, 2-3 and the rest. What lies outside the blocks is not read.
         ⎢ ▓ ▓ . . . ⎥
         ⎢ . . ▓ ▓ . ⎥      inverse_blocks  [n_blocks, b, b], the last block padded with the identity
         ⎢ . . ▓ ▓ . ⎥
         ⎣ . . . . ▓ ⎦

Bytes: n·b values, read once by every application, which is one batched product of b × b matrices.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._pytrees import brief, exportable, pytree
from jaxsparse_fmt._tracing import is_traced, standard_promotion
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.distributed.halo import Exchange
from solvers.core import arguments
from solvers.core.operators import operand
from solvers.core.vectors import matmul
from solvers.precond import _checks as checks

if TYPE_CHECKING:
    from solvers.precond.schwarz import Schwarz


@exportable
@brief
@pytree
class BlockJacobi(checks.Refreshed):
    """M = (block diagonal of A)⁻¹ as an operator: `M @ r` for r of [n] or [n, k].

    Attributes:
      inverse_blocks: [n_blocks, b, b].
      n: rows and columns.
      skip: the rows of the first block that are not among them; None: 0. Of a device whose rows begin inside a block.
    """

    inverse_blocks: Array
    n: int = dataclasses.field(metadata={"static": True})
    skip: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n

    @property
    def dtype(self) -> np.dtype:
        return self.inverse_blocks.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, inverse_blocks=jnp.swapaxes(self.inverse_blocks, -1, -2))

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = operand(self, r, self.inverse_blocks, 3)
        n_blocks, b, _ = self.inverse_blocks.shape
        columns = r.reshape(self.n, -1)
        columns = jnp.pad(columns, ((0, n_blocks * b - self.n), (0, 0)))
        columns = columns if self.skip is None else jnp.roll(columns, self.skip, 0)
        # By default a GPU would round float32 to TF32, 10 bits, which makes a symmetric M unsymmetric to 1e-3.
        columns = columns.reshape(n_blocks, b, -1)
        z = jnp.einsum("bij,bjk->bik", self.inverse_blocks, columns, precision=lax.Precision.HIGHEST)
        z = z.reshape(n_blocks * b, -1)
        return (z if self.skip is None else jnp.roll(z, -self.skip, 0))[: self.n].reshape(r.shape)

    def _anew(self, A: Any) -> Any:
        return block_jacobi(A, self.inverse_blocks.shape[-1])


@arguments.door
def block_jacobi(A: Any, block_size: int) -> "BlockJacobi | Schwarz":
    """The inverse of A's block diagonal; works inside jit too.

    The result is positive definite (Hermitian) if A is, and nonsingular for any A: the diagonal of a block that is
    singular to working precision replaces the block, with a zero on it taken as 1. Blocks are first scaled to a
    diagonal of 1, so that unknowns of different units do not make a block singular. Inside jit, a block that holds a
    NaN or an infinity makes its rows of `M @ r` NaN, which a solver reports as NON_FINITE.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, or a dense array.
      block_size: b, rows of a block; unknowns that belong together should follow one another, as the displacements of
        a node do. Of a sharded matrix each device has the blocks of its own rows, in the order of the shards, and its
        first and its last one may be smaller.

    Raises:
      ValueError: A is not square or, outside jit, holds a NaN or an infinity in a block; a block size below 1.
      TypeError: A is neither of the two, or the block size is not an integer.

    Examples:
      >>> js.cg(A, b, M=js.precond.block_jacobi(A, 4)).success
      True
    """
    n = checks.square(A, "block_jacobi", 1)
    b = min(arguments.int_at_least(block_size, "block_size", 1), n)
    if checks.is_transpose(A):
        return block_jacobi(A.T, b).T
    if not isinstance(A, (ScipyNames, jax.Array, np.ndarray)):
        raise TypeError(
            f"block_jacobi takes a jaxsparse matrix or a dense array, got {type(A).__name__}; convert a SciPy "
            "matrix with from_scipy"
        )
    if checks.is_sharded(A):
        return _of_shards(A, b)
    inverses, bad = _inverses(_diagonal_blocks(A, b))
    if not is_traced(bad) and bad < len(inverses):
        rows = f"{bad * b} to {min(bad * b + b, n) - 1}"
        raise ValueError(f"the diagonal block of rows {rows} holds a NaN or an infinity")
    return BlockJacobi(inverses, n)


@functools.partial(jax.jit, static_argnums=1)
def _diagonal_blocks(A: Any, b: int) -> Array:
    """[n_blocks, b, b], of at least 32 bits; the identity where the last block reaches beyond the matrix."""
    n = A.shape[0]
    n_blocks = -(-n // b)
    index = jnp.arange(n_blocks * b).reshape(n_blocks, b)
    if isinstance(A, (jax.Array, np.ndarray)):
        blocks = as_floating(A, "A").at[index[:, :, None], index[:, None, :]].get(mode="fill", fill_value=0)
    else:
        row, col, _, value = A.entries()
        blocks = _gathered(row, col, value, col < n, n_blocks, b)
    return _filled(blocks, index < n)


def _gathered(row: Array, col: Array, value: Array, live: Array, n_blocks: int, b: int) -> Array:
    """The blocks [n_blocks, b, b] of the entries that are live, with zeros elsewhere."""
    inside = live & (row // b == col // b)
    place = jnp.where(inside, row // b, n_blocks), row % b, col % b
    return jnp.zeros((n_blocks, b, b), value.dtype).at[place].add(value, mode="drop")


def _filled(blocks: Array, is_row: Array) -> Array:
    """The blocks, of at least 32 bits, with the identity outside of the rows [n_blocks, b]."""
    blocks = blocks.astype(jnp.result_type(blocks, jnp.float32))
    return blocks + jnp.eye(blocks.shape[1], dtype=blocks.dtype) * ~is_row[:, :, None]


def _of_shards(A: Any, b: int) -> "Schwarz":
    """The inverses of the blocks of every device's rows and columns, on that device.

    Blocks begin at multiples of b of the rows of all devices, so that those of one node stay together.
    """
    A._check_users_order("block Jacobi preconditioner")
    A._agree(block_size=b)
    from solvers.precond.schwarz import Schwarz

    over = A.range.over
    inverses, finite, skip = _inverses_of_shards(A, b)
    if not is_traced(finite) and not finite:
        raise ValueError("a diagonal block holds a NaN or an infinity")
    local = BlockJacobi(inverses, over.size, skip if np.any(over.starts[:-1] % b) else None)
    return Schwarz(local, Exchange(), A.domain, over, (block_jacobi, b))


@functools.partial(jax.jit, static_argnums=1)
def _inverses_of_shards(A: Any, b: int) -> tuple[Array, Array, Array]:
    """[devices, n_blocks, b, b], whether all blocks are finite, and `BlockJacobi.skip` [devices]."""
    over, size = A.range.over, A.range.over.size
    n_blocks = -(-(size + b - 1) // b)

    def of_shard(shards: Any) -> tuple[Array, Array, Array]:
        row, col, _, value = shards.entries()[0]
        k = lax.axis_index(over.axis)
        skip, live = jnp.asarray(over.starts[:-1] % b, row.dtype)[k], (row < size) & (col < size)
        blocks = _gathered(row + skip, col + skip, value, live, n_blocks, b)
        index = jnp.arange(n_blocks * b).reshape(n_blocks, b) - skip
        blocks = _filled(blocks, (index >= 0) & (index < jnp.array(over.counts)[k]))
        inverses, bad = _inverses(blocks)
        return inverses[None], (bad == n_blocks)[None], skip[None]

    inverses, finite, skip = over.each(of_shard, A.shards)
    return inverses, jnp.all(finite), skip


@jax.custom_jvp
def _inverse(
    blocks: Array,  # [n_blocks, b, b]
) -> Array:
    """Gauss-Jordan elimination of all blocks at once, the largest of a column as pivot; not finite where a block is
    singular. It reads the blocks b times, and JAX's `inv` calls LAPACK, whose batches wait on a CPU for threads that
    wait for them where as many devices as threads ask for one.
    """
    b = blocks.shape[1]

    def eliminate(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        X, pivots, is_free = state
        column = lax.dynamic_index_in_dim(X, j, 2)
        p = jnp.argmax(jnp.where(is_free, jnp.abs(column[:, :, 0]), -1), axis=1)[:, None]
        is_pivot = jnp.arange(b)[None, :] == p
        pivot = jnp.take_along_axis(column, p[:, :, None], 1)
        # Column j of the block is done: its place takes column p of the inverse, so far one of the identity.
        X = lax.dynamic_update_slice_in_dim(X, is_pivot[:, :, None].astype(X.dtype), j, 2)
        row = jnp.take_along_axis(X, p[:, :, None], 1) / pivot
        X = jnp.where(is_pivot[:, :, None], row, X - column * row)
        return X, lax.dynamic_update_slice_in_dim(pivots, p, j, 1), is_free & ~is_pivot

    pivots, is_free = jnp.zeros_like(blocks[:, 0], int), jnp.ones_like(blocks[:, 0], bool)
    X, pivots, _ = lax.fori_loop(0, b, eliminate, (blocks, pivots, is_free))
    X = jnp.take_along_axis(X, pivots[:, :, None], 1)
    return jnp.take_along_axis(X, jnp.argsort(pivots, axis=1)[:, None, :], 2)


@_inverse.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    X = _inverse(*primals)
    return X, -matmul(X, matmul(*tangents, X))


@jax.jit
def _inverses(blocks: Array) -> tuple[Array, Array]:
    """The inverse of every block, or of its diagonal where the condition number of the scaled block exceeds 1/eps; and
    the number of the first block with a NaN or an infinity, or the number of blocks.
    """
    diagonal = jnp.diagonal(blocks, axis1=1, axis2=2)
    nonzero = jnp.where(diagonal == 0, 1, diagonal)
    scale = lax.rsqrt(jnp.abs(nonzero))
    scale = scale[:, :, None] * scale[:, None, :]
    scaled = scale * blocks
    inverse = _inverse(scaled)
    condition = jnp.linalg.norm(scaled, 1, axis=(1, 2)) * jnp.linalg.norm(inverse, 1, axis=(1, 2))
    regular = condition < 1 / jnp.finfo(blocks.dtype).eps  # false for NaN
    finite = jnp.all(jnp.isfinite(blocks), axis=(1, 2))
    instead = jnp.eye(blocks.shape[1], dtype=blocks.dtype) / nonzero[:, :, None]
    instead = jnp.where(finite[:, None, None], instead, jnp.nan)
    bad = jnp.where(jnp.all(finite), len(finite), jnp.argmin(finite))
    return jnp.where(regular[:, None, None], scale * inverse, instead), bad
