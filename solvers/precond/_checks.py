"""Checks of the matrices from which preconditioners are made, and their conversion for multigrid's set-up."""

import sys
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._dtypes import check_keeps_imaginary, floating_dtype
from jaxsparse_fmt._tracing import is_traced, standard_promotion
from jaxsparse_fmt.core.basis import Operator
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.core.transposed import Transposed
from solvers.core.operators import UserFunction, operator


def square(A: Any, maker: str, least: int = 0) -> int:
    """The number of unknowns of a square matrix. ValueError, which names the maker: not square, or too small."""
    shape = getattr(A, "shape", None)
    if isinstance(A, UserFunction) or (shape is None and callable(A)):
        given = A.user if isinstance(A, UserFunction) else A
        raise ValueError(
            f"{maker} needs a square matrix; got {type(given).__name__}, which has no entries to read. A Krylov method "
            "takes a function v -> A·v, and M=1/d if you know its diagonal d"
        )
    if shape is None or len(shape) != 2 or shape[0] != shape[1]:
        cure = f". Pass M={maker}(A), not M={maker}" if shape is not None and len(shape) == 1 else ""
        raise ValueError(f"{maker} needs a square matrix; got {type(A).__name__ if shape is None else shape}{cure}")
    if shape[0] < least:
        raise ValueError(f"{maker} needs a matrix with at least one row; got shape (0, 0)")
    return shape[0]


def is_sharded(A: Any) -> bool:
    module = sys.modules.get("jaxsparse_fmt.distributed.matrix")  # whoever has such a matrix has imported it
    return module is not None and isinstance(A, module.ShardedMatrix)


def has_entries(A: Any) -> bool:
    """Whether A is a jaxsparse matrix, and not the transpose of one."""
    return isinstance(A, SparseMatrix) or is_sharded(A)


def on_one_device(A: Any, maker: str) -> None:
    """Refuses what is not a matrix of jaxsparse_fmt by TypeError, and a sharded one by ValueError."""
    if not has_entries(A):
        raise TypeError(
            f"{maker} takes a jaxsparse matrix, got {type(A).__name__}; convert it with from_scipy, "
            "from_bcoo or from_dense"
        )
    if is_sharded(A):
        raise ValueError(
            f"{maker} works on one device, and A is sharded; gather it by from_scipy(A.to_scipy()), or use a "
            "Krylov method with precond.multigrid, precond.schwarz, which has a factorization or an incomplete one for "
            "each device, or precond.block_jacobi"
        )


def is_transpose(A: Any) -> bool:
    """Whether A is the transpose of a jaxsparse matrix, and not such a matrix itself."""
    return isinstance(A, Transposed) and has_entries(A.T)


def renewing(M: Any, A: Any) -> None:
    """Raises ValueError unless A has the shape of M, TypeError if A is complex and M is not."""
    if tuple(A.shape) != M.shape:
        raise ValueError(f"M.refreshed(A) takes a matrix of M's shape {M.shape}; got {tuple(A.shape)}")
    check_keeps_imaginary(A.dtype, M.dtype)


BLOCKS = (6, 5, 4, 3, 2)  # unknowns of a point that are looked for


class Refreshed(Operator):
    """A preconditioner that is made anew with its own settings, by `_anew`."""

    _anew: Any  # A -> the preconditioner

    @standard_promotion
    def refreshed(self, A: Any) -> Self:
        """The same preconditioner for other values; inside jit too. A scan can carry it if A has kept its format.

        Bounds and spaces that were given stay; what was estimated is estimated anew. A preconditioner inside becomes
        its `refreshed(A)`, and stays the same if it has none. It compiles nothing that the maker has not compiled.

        Raises:
          ValueError, TypeError: as the maker, or A is of another size, or complex where M is not.
        """
        new = self._anew(A)
        renewing(self, new)
        alike = jax.tree.structure(new) == jax.tree.structure(self)
        return jax.tree.map(lambda a, b: a.astype(b.dtype), new, self) if alike else new


def renewed(M: Any, A: Any) -> Any:
    """The preconditioner M for a new A; the same if it has no `refreshed`."""
    return M.refreshed(A) if isinstance(M, Refreshed) else M


def storable(A: Any, n: int, name: str) -> Any:
    """A as an operator. TypeError: A is a function."""
    A = operator(A, n, name)
    if isinstance(A, UserFunction):
        raise TypeError(f"{name} must be a pytree with a shape and @, which a preconditioner can hold; got a function")
    return A


def refuse_traced(A: Any, maker: str = "multigrid") -> None:
    """Raises TypeError if A is traced, which decides the sizes of the arrays that the maker makes."""
    if is_traced(A):
        raise TypeError(
            f"{maker}'s set-up takes its sizes from A, which is traced; build M outside jit and pass it as an argument"
        )


def near_null(B: Any, n: int, dtype: Any) -> Any:
    """The near-null space as [n, k], whose entries `finite` checks."""
    B = B[:, None] if B.ndim == 1 else B
    if B.ndim != 2 or B.shape[0] != n or B.shape[1] == 0:
        raise ValueError(f"B must hold one row an unknown, shape ({n}, k); got {B.shape}")
    if B.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise TypeError(f"B is complex and A is not; pass real columns, or A.astype({B.dtype})")
    return B


def finite(a: np.ndarray, name: str) -> None:
    if not np.all(np.isfinite(a)):
        raise ValueError(f"{name} has a NaN or an infinity among its entries")


def fits(largest: float, dtype: Any, what: str) -> None:
    """Refuses numbers up to `largest` that are not finite in this dtype."""
    limit = float(jnp.finfo(dtype).max)
    if not largest <= limit:
        raise ValueError(
            f"{what} has numbers up to {largest:.3g}, and dtype {jnp.dtype(dtype).name} holds none above {limit:.3g}; "
            "scale A, or use a wider dtype"
        )


def host(A: Any) -> Any:
    """A as a canonical CSR array of float64 or complex128, after all checks."""
    square(A, "multigrid", 1)
    ours = isinstance(A, ScipyNames)
    if ours:
        refuse_traced(A)
    if not ours and not scipy.sparse.issparse(A):
        raise TypeError(f"multigrid needs a matrix of jaxsparse_fmt or scipy.sparse; got {type(A).__name__}")
    kind = np.complex128 if floating_dtype(A.dtype, "A").kind == "c" else np.float64
    S = scipy.sparse.csr_array(A.to_scipy() if ours else A)
    S = S.astype(kind, copy=not S.has_canonical_format)
    S.check_format(full_check=True)
    S.sum_duplicates()
    entries(S)
    return S


def entries(S: Any, first: int = 0, is_users: bool = True) -> None:
    """Refuses rows from `first` on that multigrid cannot treat."""
    finite(S.data, "A")
    if np.any(zeros := S.diagonal(first) == 0):
        row = f"{first + np.argmax(zeros)}{'' if is_users else ' of its inner order'}"
        raise ValueError(
            f"A has a zero on its diagonal, first in row {row}, and multigrid's smoothers divide by the "
            "diagonal; eliminate such unknowns (constraints, empty rows), or use another preconditioner"
        )


def block_size(A: Any, S: Any) -> int:
    """Unknowns of a point: the blocks of a BSR matrix, ours or SciPy's, or the largest dense ones of at most 6."""
    rows, columns = getattr(A, "block_shape", getattr(A, "blocksize", (None, None)))
    n = S.shape[0]
    if rows and rows == columns and n % rows == 0:
        return rows
    return next((b for b in BLOCKS if n % b == 0 and _in_blocks(S, b, 0)), 1)


def block_sizes(S: Any, first: int, unknowns: np.ndarray, given: tuple[int, int] | None) -> list[int]:
    """Which numbers of unknowns a point of the rows from `first` on may have; of a BSR matrix that `given` alone.

    Args:
      unknowns: the user's number of each row, whose points must not be parted.
    """

    def together(b: int) -> bool:
        u = unknowns[-first % b :]
        u = u[: len(u) // b * b].reshape(-1, b)
        return bool(np.all(u[:, :1] % b == 0) and np.all(u == u[:, :1] + np.arange(b)))

    sizes = [b for b in BLOCKS if given is None or given == (b, b)]
    return [b for b in sizes if together(b) and (given is not None or _in_blocks(S, b, first))]


def _in_blocks(S: Any, b: int, first: int) -> bool:
    """Whether the rows of whole points, among those from `first` on, consist of dense blocks b×b."""
    rows = slice(-first % b, S.shape[0] - (S.shape[0] + first) % b)
    lengths = np.diff(S.indptr)[rows]
    if len(lengths) <= 0:
        return True
    if np.any(lengths % b) or np.any(lengths.reshape(-1, b) != lengths[::b, None]):
        return False
    begin, end = S.indptr[rows.start], S.indptr[rows.stop]
    col = S.indices[begin:end]
    above = np.arange(col.size) - np.repeat(lengths * np.tile(np.arange(b), len(lengths) // b), lengths)
    by_block = col.reshape(-1, b)
    return bool(
        np.all(by_block[:, 0] % b == 0)
        and np.all(by_block == by_block[:, :1] + np.arange(b))
        and np.all(col == col[above])
    )
