"""Another order of the unknowns: what a matrix is stored in, and what its basis hides from the user.

             ⎡ 4 . . 1 ⎤               ⎡ 6 3 . . ⎤      perm   [2 1 3 0]               row k of `own` is unknown perm[k]
         A = ⎢ . 5 3 2 ⎥   P·A·Pᵀ  =   ⎢ 3 5 2 . ⎥      rank   [1 0|1 0 2|1 2 0|1 0]   of an entry of `own` in its row
             ⎢ . 3 6 . ⎥     (own)     ⎢ . 2 7 1 ⎥                                     of A, from which `data` follows
             ⎣ 1 2 . 7 ⎦               ⎣ . . 1 4 ⎦

Reverse Cuthill-McKee (Cuthill and McKee, 1969; George, 1971) numbers a graph breadth first from a node of low degree,
and then backwards: neighbours get near numbers. So the columns of a row lie together, and those of its neighbours with
them: what a product reads of x stays in the L1 cache, differences of columns fit 16 bits, and diagonals may appear.

Bytes beside `own`: 4·n of `perm`, and 1 an entry of `rank` (2 where a row has more than 256 entries, 4 from 65,537 on),
which products do not read. A product in the user's order gathers x and scatters y: 8·n bytes of `perm` and five vectors
more, of which two lie anywhere, a sector of 32 bytes for a number. A solver pays that once, by `basis` and `in_basis`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt import form
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.basis import Basis
from jaxsparse_fmt.formats.by_rule import index_in_data
from jaxsparse_fmt.matrix import SparseMatrix, concrete
from jaxsparse_fmt.paired import Paired

Array = jax.Array


def order_of(csr: Csr, reorder: Any) -> np.ndarray:
    """The permutation that a user asks for: place k gets unknown perm[k].

    Args:
      csr: canonical CSR on the host.
      reorder: "rcm", or the permutation [n].

    Returns:
      [n] int64.

    Raises:
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
    """The reverse Cuthill-McKee order of the pattern of S + Sᵀ, [n] int64. A part of a graph follows the other."""
    if csr.nnz == 0:
        return np.arange(csr.shape[0])
    from scipy.sparse import csgraph  # slow to import

    # Of ones, since values of S and Sᵀ may cancel.
    S = scipy.sparse.csr_array((np.ones(csr.nnz, np.int8), csr.indices, csr.indptr), shape=csr.shape)
    return csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(S + S.T), symmetric_mode=True).astype(np.int64)


def permuted(csr: Csr, perm: np.ndarray | None) -> tuple[Csr, np.ndarray | None]:
    """P·S·Pᵀ, row and column i of which are perm[i] of S, and where in S's data its entries are (None: there)."""
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
    """Where the entries of rows in another order are, [nnz], and where those rows then begin, [n + 1]."""
    lengths = np.diff(indptr)[perm]
    start = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return np.repeat(indptr[:-1][perm] - start[:-1], lengths) + np.arange(start[-1]), start


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Reordered(SparseMatrix):
    """A square matrix stored in another order of its unknowns; `from_scipy(..., reorder=...)` makes it.

    All that it takes and gives is in the user's order; only `in_basis` is not. Where `own` would sort its rows, that
    order is part of `perm`, and `own` is `in_basis` of it. What is made of its entries, by `asformat`, `from_scipy` or
    `shard`, is an ordinary matrix.

    Attributes:
      values: [n_stored], those of `own`.
      own: the storage of P·A·Pᵀ, without values.
      perm: [n] int32, place k of `own` holds unknown perm[k].
      rank: [nnz], for each entry of `own`, row by row, how many of that row come before it in the user's order.
    """

    own: SparseMatrix
    perm: Array
    rank: Array

    name = "reordered"

    @classmethod
    def from_csr(cls, csr: Csr, *, perm: np.ndarray, store: Callable[[Csr], SparseMatrix]) -> Self:
        """The canonical `csr` on the host, its unknowns in the order `perm`.

        Args:
          perm: [n] int64, a permutation.
          store: what stores the reordered matrix.
        """
        moved, entry = permuted(csr, perm)
        A = store(moved)
        longest = np.diff(csr.indptr).max(initial=1)
        rank = (entry - np.repeat(csr.indptr[:-1][perm], np.diff(moved.indptr))).astype(np.min_scalar_type(longest - 1))
        with concrete():
            if A.basis.perm is not None:
                rows = np.asarray(A.basis.perm)
                rank, perm, A = rank[_by_rows(moved.indptr, rows)[0]], perm[rows], A.in_basis
            order = jnp.asarray(perm, jnp.int32), jnp.asarray(rank)
        return cls(A.values, A.shape, A.nnz, A.backend, _pattern(A), *order)

    @property
    def in_basis(self) -> SparseMatrix:
        """`own` with its values: the matrix between vectors in its own order."""
        return dataclasses.replace(self.own, values=self.values)

    @property
    def basis(self) -> Basis:
        """The order of `own`."""
        return Basis(self.perm)

    @property
    def faces(self) -> ReorderedFaces:
        return ReorderedFaces(self.in_basis.faces)

    @property
    def structure(self) -> tuple[Array, ...]:
        return *self.in_basis.structure, self.perm

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

    @property
    def nbytes_read(self) -> int:
        return self.in_basis.nbytes_read + self.perm.nbytes

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options of `own`."""
        return self.own.layout

    def __repr__(self) -> str:
        text = super().__repr__().removeprefix(f"<{self.name}").removesuffix(">")
        own, across = self.own, ""
        if isinstance(own, Paired):
            own, across = own.own, f", transpose in {own.across.name}"
        return f"<{own.name}{text}{across}, reordered>"


def _pattern(A: SparseMatrix) -> SparseMatrix:
    return dataclasses.replace(A, values=None)


jax.tree_util.register_dataclass(Reordered, ["values", "own", "perm", "rank"], ["shape", "nnz", "backend"])


@dataclasses.dataclass(frozen=True)
class ReorderedFaces:
    """The faces of a storage in another order, between vectors in the user's: the last of `structure` is the order."""

    own: form.Faces

    @property
    def shape(self) -> tuple[int, int]:
        return self.own.shape

    @property
    def n_stored(self) -> int:
        return self.own.n_stored

    def wants_shared_memory(self, face: str, p: int) -> bool:
        return form.wants_shared_memory(self.own, face, p)

    def product(self, values, x, structure, backend):
        *own, perm = structure
        return _left(self.own.product(values, _entered(x, perm), tuple(own), backend), perm)

    def transposed(self, values, y, structure, backend):
        *own, perm = structure
        return _left(self.own.transposed(values, _entered(y, perm), tuple(own), backend), perm)

    def outer(self, y, x, structure, backend):
        *own, perm = structure
        return self.own.outer(_entered(y, perm), _entered(x, perm), tuple(own), backend)


def _entered(x: Array, perm: Array) -> Array:
    """`Basis.enter` of vectors [b, n, p]."""
    return x.at[:, perm].get(mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)


def _left(y: Array, perm: Array) -> Array:
    return (
        jnp.zeros_like(y).at[:, perm].set(y, mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)
    )
