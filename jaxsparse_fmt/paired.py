"""A matrix that carries its transpose: Aᵀ·y is the product of a second storage, with its kernel and without atomics.

         ⎡ 1 . 2 . ⎤      values          [1 2 3 4 5 6]      of A's own storage, here CSR: the only numbers
         ⎢ . 3 . . ⎥      across.col_idx  [0 2 1 0 2 2]      Aᵀ in CSR, its index arrays alone
         ⎣ 4 . 5 6 ⎦      across.row_ptr  [0 2 3 5 6]
                          source          [0 3 2 1 4 5]      [across' n_stored] int32, int64 from 2³¹ places of A

`source` says where in `values` each place of the second storage finds its number; A's n_stored in padding, which reads
nothing. So there is one set of values to replace and to differentiate by, and the form's primitives stay what they are.

Bytes beside A's own storage: the index arrays of the second, and 4 for each of its places. A transposed product takes
the time of a product, and that of gathering the values first: 4 bytes and a value read for each place, the values in
the order of Aᵀ, that is anywhere, and a value written. A symmetric matrix pays as others do.
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
from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.matrix import SparseMatrix, concrete

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Paired(SparseMatrix):
    """A matrix whose transposed product is a product too; `from_scipy(..., transpose=True)` makes it.

    What is made of its entries, by `asformat`, `from_scipy` or `shard`, is an ordinary matrix.

    Attributes:
      values: [n_stored], those of `own`.
      own: the storage of A, without values.
      across: the storage of Aᵀ, without values.
      source: [n_stored of `across`], the place in `values` of each; n_stored in padding.
    """

    own: SparseMatrix
    across: SparseMatrix
    source: Array

    name = "paired"
    transposes = True

    @classmethod
    def from_csr(cls, csr: Csr, *, A: SparseMatrix, across: Callable[[Csr], SparseMatrix]) -> Self:
        """A, in which `csr` is stored, and beside it the transpose.

        Args:
          across: what stores that.

        Raises:
          TooLarge: as `across` does; says that it is the transpose which is.
        """
        A, csr = A.unshared, storing.on_host(csr)
        numbers = np.arange(csr.nnz, dtype=index_dtype(csr.nnz))
        entries = scipy.sparse.csr_array((numbers, csr.indices, csr.indptr), csr.shape).tocsc()
        # Its values tell a format which entries are zero; they are dropped again.
        turned = csr.data[entries.data], entries.indices, entries.indptr
        try:
            B = across(scipy.sparse.csr_array(turned, csr.shape[::-1])).unshared
        except storing.TooLarge as error:
            raise storing.TooLarge(f"for the transpose, which transpose=True stores too: {error}") from None
        with concrete():
            source = jnp.asarray(_source(np.asarray(_entry(A)), entries.data, np.asarray(_entry(B)), csr.nnz))
        pattern, other = (dataclasses.replace(a, values=None) for a in (A, B))
        return cls(A.values, A.shape, A.nnz, A.backend, pattern, other, source)

    @property
    def _forward(self) -> SparseMatrix:
        return dataclasses.replace(self.own, values=self.values)

    @property
    def _backward(self) -> SparseMatrix:
        """`across` with an array that has the length of its values."""
        return dataclasses.replace(self.across, values=self.source)

    @property
    def faces(self) -> PairedFaces:
        forward, backward = self._forward, self._backward
        return PairedFaces(forward.faces, backward.faces, len(forward.structure))

    @property
    def structure(self) -> tuple[Array, ...]:
        return *self._forward.structure, *self._backward.structure, self.source

    def coordinates(self) -> tuple[Array, Array, Array]:
        return self._forward.coordinates()

    @property
    def nbytes_read(self) -> int:
        return self._forward.nbytes_read

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options of A's own storage."""
        return self.own.layout

    def __repr__(self) -> str:
        text = super().__repr__().removeprefix(f"<{self.name}").removesuffix(">")
        return f"<{self.own.name}{text}, transpose in {self.across.name}>"


jax.tree_util.register_dataclass(Paired, ["values", "own", "across", "source"], ["shape", "nnz", "backend"])


@jax.jit
def _entry(A: SparseMatrix) -> Array:
    """The index in `A.data` of every stored place."""
    return A.coordinates()[2]


def _source(
    own: np.ndarray,  # [n_stored], the entry of A in each place, nnz in padding
    entry: np.ndarray,  # [nnz], the entry of A that each of Aᵀ is
    across: np.ndarray,  # [n_stored of Aᵀ], the entry of Aᵀ in each place, nnz in padding
    nnz: int,
) -> np.ndarray:
    n_stored = own.shape[0]
    place = np.empty(nnz + 1, index_dtype(n_stored))
    place[own] = np.arange(n_stored, dtype=place.dtype)
    place[nnz] = n_stored  # padding has written here too
    return place[np.append(entry, nnz)][across]


@dataclasses.dataclass(frozen=True)
class PairedFaces:
    """The faces of A's own storage, but for the transposed product; the first `count` arrays of `structure` are its."""

    forward: form.Faces
    backward: form.Faces
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.forward.shape

    @property
    def n_stored(self) -> int:
        return self.forward.n_stored

    def product(self, values, x, structure, backend):
        return self.forward.product(values, x, structure[: self.count], backend)

    def wants_shared_memory(self, face: str, p: int) -> bool:
        own = (self.backward, "product") if face == "transposed" else (self.forward, face)
        return form.wants_shared_memory(*own, p)

    @property
    def dots(self) -> bool:
        return getattr(self.forward, "dots", False)

    @property
    def sums(self) -> int:
        return self.forward.sums  # pyright: ignore[reportAttributeAccessIssue]

    def product_dot(self, values, x, w, structure, backend):
        own = structure[: self.count]
        return self.forward.product_dot(values, x, w, own, backend)  # pyright: ignore[reportAttributeAccessIssue]

    def transposed(self, values, y, structure, backend):
        *across, source = structure[self.count :]
        if source.shape[0] == 0:  # a matrix without entries, whose own storage pads
            return jnp.zeros((y.shape[0], self.shape[1], y.shape[2]), jnp.result_type(values, y))
        given = values.at[:, source].get(mode="fill", fill_value=0, wrap_negative_indices=False)
        return self.backward.product(given, y, tuple(across), backend)

    def outer(self, y, x, structure, backend):
        return self.forward.outer(y, x, structure[: self.count], backend)
