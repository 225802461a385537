"""A matrix stored in another order of its unknowns, which the user does not see.

             ⎡ 4 . . 1 ⎤               ⎡ 6 3 . . ⎤      perm   [2 1 3 0]               row k of `own` is unknown perm[k]
         A = ⎢ . 5 3 2 ⎥   P·A·Pᵀ  =   ⎢ 3 5 2 . ⎥      rank   [1 0|1 0 2|1 2 0|1 0]   of an entry of `own` in its row
             ⎢ . 3 6 . ⎥     (own)     ⎢ . 2 7 1 ⎥                                     of A, from which `data` follows
             ⎣ 1 2 . 7 ⎦               ⎣ . . 1 4 ⎦

In reverse Cuthill-McKee order (Cuthill and McKee, 1969; George, 1971) the columns of neighbouring rows lie together:
the part of x that a product reads stays in the L1 cache, differences of columns fit 16 bits, and diagonals may appear.

Bytes beside `own`: 4·n of `perm`, and 1 an entry of `rank` (2 where a row has more than 256 entries, 4 from 65,537 on),
which products do not read. A product in the user's order gathers x and scatters y; a solver does so once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Array, Csr, concrete, pytree
from jaxsparse_fmt.core.basis import Basis
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import index_in_data


def order_of(csr: Csr, reorder: Any) -> np.ndarray:
    """The permutation [n] int64 of the user's `reorder`, "rcm" or a permutation: place k gets unknown perm[k].

    ValueError: a matrix that is not square, another word, or numbers that are no permutation. TypeError: no integers.
    """
    rows, cols = csr.shape
    if isinstance(reorder, str) and reorder != "rcm":
        raise ValueError(f"reorder must be 'rcm', a permutation or None; got {reorder!r}")
    if rows != cols:
        raise ValueError(
            f"reorder renumbers rows and columns alike, which a {rows} × {cols} matrix does not allow; leave it out"
        )
    if isinstance(reorder, str):
        return cuthill_mckee(csr)
    perm = np.asarray(reorder)
    if perm.shape != (rows,):
        raise ValueError(f"reorder must hold {rows} numbers, one for each unknown; got shape {perm.shape}")
    if perm.dtype.kind not in "iu" and rows:
        raise TypeError(f"reorder must be 'rcm', or a permutation in integers; got dtype {perm.dtype}")
    if rows and not 0 <= perm.min() <= perm.max() < rows:
        bad = perm.min() if perm.min() < 0 else perm.max()
        raise ValueError(f"reorder must be a permutation of the numbers 0 to {rows - 1}; it holds {bad}")
    counts = np.bincount(perm.astype(np.int64), minlength=rows)
    if np.any(counts != 1):
        twice, never = int(counts.argmax()), int(counts.argmin())
        raise ValueError(f"reorder must be a permutation; it holds {twice} {counts[twice]} times and {never} never")
    return perm.astype(np.int64)


def cuthill_mckee(csr: Csr) -> np.ndarray:
    """The reverse Cuthill-McKee order of the pattern of S + Sᵀ, [n] int64, component by component of the graph."""
    if csr.nnz == 0:
        return np.arange(csr.shape[0])
    from scipy.sparse import csgraph  # slow to import

    # The graph holds ones, since values of S and Sᵀ may cancel.
    S = scipy.sparse.csr_array((np.ones(csr.nnz, np.int8), csr.indices, csr.indptr), shape=csr.shape)
    return csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(S + S.T), symmetric_mode=True).astype(np.int64)


def permuted(csr: Csr, perm: np.ndarray | None) -> tuple[Csr, np.ndarray | None]:
    """P·S·Pᵀ, whose row and column i are perm[i] of S, and the index in S's data of its entries (None: unchanged)."""
    if perm is None:
        return csr, None
    place = np.empty(len(perm), csr.indices.dtype)
    place[perm] = np.arange(len(perm))
    entry, indptr = _by_rows(csr.indptr, perm)
    moved = scipy.sparse.csr_array((entry, place[csr.indices[entry]], indptr), shape=csr.shape)
    moved.sort_indices()
    entry = moved.data
    out = scipy.sparse.csr_array((csr.data[entry], moved.indices, moved.indptr), shape=csr.shape)
    out.has_canonical_format = True
    return out, entry


def _by_rows(indptr: np.ndarray, perm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The index of each entry with rows in the order `perm`, [nnz], and the pointers of those rows, [n + 1]."""
    lengths = np.diff(indptr)[perm]
    start = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return np.repeat(indptr[:-1][perm] - start[:-1], lengths) + np.arange(start[-1]), start


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Reordered(SparseMatrix):
    """A square matrix stored in another order of its unknowns; `from_scipy(..., reorder=...)` makes it.

    It takes and gives everything but `in_basis` in the user's order. Where `own` would sort its rows, `perm` includes
    that order, and `own` is the `in_basis` of its format. `asformat`, `from_scipy` and `shard` make an ordinary matrix.

    Attributes:
      values: [n_stored], those of `own`.
      own: the storage of P·A·Pᵀ, without values.
      perm: [n] int32, place k of `own` holds unknown perm[k].
      rank: [nnz], for each entry of `own`, row by row, the number of that row's entries before it in the user's order.
    """

    own: SparseMatrix
    perm: Array
    rank: Array

    name = "reordered"
    unread = ("rank",)

    @classmethod
    def from_csr(cls, csr: Csr, *, perm: np.ndarray, store: Callable[[Csr], SparseMatrix]) -> Self:
        """The canonical `csr` with its unknowns in the order `perm` [n]; `store` stores the reordered CSR."""
        moved, entry = permuted(csr, perm)
        A = store(moved)
        longest = np.diff(csr.indptr).max(initial=1)
        rank = (entry - np.repeat(csr.indptr[:-1][perm], np.diff(moved.indptr))).astype(np.min_scalar_type(longest - 1))
        with concrete():
            if A.basis.perm is not None:
                rows = np.asarray(A.basis.perm)
                rank, perm, A = rank[_by_rows(moved.indptr, rows)[0]], perm[rows], A.in_basis
            order = building.on_device(perm.astype(np.int32)), building.on_device(rank)
        return cls(A.values, A.shape, A.nnz, A.backend, _pattern(A), *order)

    @property
    def in_basis(self) -> SparseMatrix:
        """`own` with its values: the same matrix for vectors in the order of `own`."""
        return dataclasses.replace(self.own, values=self.values)

    @property
    def basis(self) -> Basis:
        """The order of `own`."""
        self.check_single()
        return Basis(self.perm)

    @property
    def without_values(self) -> Self:
        return dataclasses.replace(super().without_values, own=self.in_basis.without_values)

    def product_face(self, values: Array, x: Array, backend: str) -> Array:
        return _left(self.in_basis.product_face(values, _entered(x, self.perm), backend), self.perm)

    def transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        return _left(self.in_basis.transposed_face(values, _entered(y, self.perm), backend), self.perm)

    def outer_face(self, y: Array, x: Array, backend: str) -> Array:
        return self.in_basis.outer_face(_entered(y, self.perm), _entered(x, self.perm), backend)

    def wants_shared_memory(self, face: str, p: int) -> bool:
        return self.in_basis.wants_shared_memory(face, p)

    def coordinates(self) -> tuple[Array, Array, Array]:
        row, col, entry = self.in_basis.coordinates()
        if self.nnz == 0:
            return row, col, entry
        row, col = self.perm.at[row].get(mode="clip"), self.perm.at[col].get(mode="fill", fill_value=self.shape[1])
        j = self.rank.at[entry].get(mode="clip").astype(jnp.int32)
        return row, col, index_in_data(self, row, j, entry < self.nnz)

    @property
    def unshared(self) -> SparseMatrix:
        shared = self.in_basis
        A = shared.unshared
        return self if A is shared else dataclasses.replace(self, values=A.values, own=_pattern(A))

    def read_at(self, place: Array) -> Array:
        return self.own.read_at(place)

    def shared_out(self, derivatives: Array) -> Array:
        return self.own.shared_out(derivatives)

    def _refilled(self, values: Array) -> Self:
        return dataclasses.replace(self, values=values, own=_pattern(self.in_basis._refilled(values)))

    @property
    def nbytes_read(self) -> int:
        return self.in_basis.nbytes_read + self.perm.nbytes

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options of `own`."""
        return self.own.layout

    @property
    def _described(self) -> tuple[str, ...]:
        return *self.own._described, "reordered"


def _pattern(A: SparseMatrix) -> SparseMatrix:
    return dataclasses.replace(A, values=None)


pytree(Reordered, ["values", "own", "perm", "rank"])


def _entered(x: Array, perm: Array) -> Array:
    """`Basis.enter` of vectors [b, n, p]."""
    return x.at[:, perm].get(mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)


def _left(y: Array, perm: Array) -> Array:
    return (
        jnp.zeros_like(y).at[:, perm].set(y, mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)
    )
