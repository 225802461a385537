"""A matrix that carries its transpose: Aᵀ·y is the product of a second storage, with its kernel and without atomics.

         ⎡ 1 . 2 . ⎤      values          [1 2 3 4 5 6]      of A's own storage, here CSR: the only numbers
         ⎢ . 3 . . ⎥      across.col_idx  [0 2 1 0 2 2]      Aᵀ in CSR, its index arrays alone
         ⎣ 4 . 5 6 ⎦      across.row_ptr  [0 2 3 5 6]
                          source          [0 3 2 1 4 5]      [across' n_stored] int32, int64 from 2³¹ places of A

`source` maps each place of the second storage to the place of its value in `values`; in padding, which reads no value,
it is A's n_stored. Bytes beside A's own storage: the index arrays of the second, and 4 for each of its places. A
transposed product first gathers the values, at scattered addresses, and then takes the time of a product. Off the CPU,
values that are not traced are gathered once, and kept as long as they live; a solve gathers traced ones once. A matrix
does not hold them as a leaf, since who changes each leaf of a pytree by itself would make two matrices of it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.core import Tracer

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete, is_on_cpu
from jaxsparse_fmt._types import Array, Csr
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Paired(SparseMatrix):
    """A matrix whose transposed product is a product too; `from_scipy(..., transpose=True)` makes it.

    `asformat`, `from_scipy` and `shard` make an ordinary matrix of it.

    Attributes:
      values: [n_stored], those of `own`.
      own: the storage of A, without values.
      across: the storage of Aᵀ, without values.
      source: [n_stored of `across`], the place in `values` of each; n_stored in padding.
      turned: `values` in the places of `across`, where gathered before a product (`_prepared`).
    """

    own: SparseMatrix
    across: SparseMatrix
    source: Array
    turned: Array | None = None

    name = "paired"
    _transposes = True

    @classmethod
    def from_csr(cls, csr: Csr, *, A: SparseMatrix, across: Callable[[Csr], SparseMatrix]) -> Self:
        """`A`, which stores `csr`, paired with the storage `across(csr.T)` of its transpose.

        TooLarge: as `across` raises it; the message names the transpose.
        """
        A, xp = _unshared(A), building.namespace(csr.data)
        # The values are built only because a format checks them for zero entries; then they are dropped.
        turned, number = (_turned_by_scipy if xp is np else entry_index.transposed)(csr)
        try:
            B = _unshared(across(turned))
        except building.TooLarge as error:
            raise building.TooLarge(f"for the transpose, which transpose=True stores too: {error}") from None
        with concrete():
            own, over = _entries(A, B)
            source = building.on_device(_source(xp, *map(xp.asarray, (own, over)), number))
        pattern, other = (dataclasses.replace(a, values=None) for a in (A, B))
        return cls(A.values, A.shape, A.nnz, A.backend, pattern, other, source)

    @property
    def _forward(self) -> SparseMatrix:
        return dataclasses.replace(self.own, values=self.values)

    @property
    def _backward(self) -> SparseMatrix:
        """`across` with an array in place of its values, of their length."""
        return dataclasses.replace(self.across, values=self.source)

    def _prepared(self, transposed: bool) -> Self:
        if not transposed or self.turned is not None or self.source.shape[0] == 0:
            return self
        turned = _kept.get("turned", [self.values, self.source], lambda: _gathered(self.values, self.source))
        return dataclasses.replace(self, turned=turned)

    @property
    def _for_other_values(self) -> Self:
        return self if self.turned is None else dataclasses.replace(self, turned=None)

    def _with_values(self, values: Array) -> Self:
        return super()._with_values(values)._for_other_values

    def _transposed(self, y: Any) -> Array:
        there = not isinstance(self.values, Tracer) and not is_on_cpu(self.values)  # a CPU's kernel needs none
        return super(Paired, self._prepared(True) if there else self)._transposed(y)

    @property
    def _without_values(self) -> Self:
        own, across = self._forward._without_values, self._backward._without_values
        return dataclasses.replace(super()._without_values, own=own, across=across)

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        return self._forward._product_face(values, x, backend)

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        if self.source.shape[0] == 0:  # a matrix without entries, whose own storage has padding only
            return jnp.zeros((y.shape[0], self.shape[1], y.shape[2]), jnp.result_type(values, y))
        turned = _gathered(values, self.source) if self.turned is None else self.turned[None]
        return self._backward._product_face(turned, y, backend)

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        return self._forward._native_face(face, a, b)  # its transposed product needs no gather of the values

    def _outer_face(self, y: Array, x: Array, backend: str) -> Array:
        return self._forward._outer_face(y, x, backend)

    def _wants_shared_memory(self, face: str, p: int) -> bool:
        if face == "transposed":
            return self._backward._wants_shared_memory("product", p)
        return self._forward._wants_shared_memory(face, p)

    def entries(self) -> tuple[Array, Array, Array, Array]:
        return self._forward.entries()

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        return self._forward._places_on_host()

    @property
    def nbytes_read(self) -> int:
        return self._forward.nbytes_read

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options of A's own storage."""
        return self.own.layout

    @property
    def _described(self) -> tuple[str, ...]:
        return self.own.name, f"transpose in {self.across.name}"


pytree(Paired, ["values", "own", "across", "source", "turned"])

_kept = Kept(64)


@jax.jit
def _gathered(values: Array, source: Array) -> Array:
    return values.at[..., source].get(mode="fill", fill_value=0, wrap_negative_indices=False)


@jax.jit
def _entries(*matrices: SparseMatrix) -> list[Array]:
    """The index in `data` of every stored place, for each matrix."""
    return [A.entries()[2] for A in matrices]


def _turned_by_scipy(csr: Csr) -> tuple[Csr, np.ndarray]:
    """The transpose, and the number in `csr` of each of its entries."""
    numbers = np.arange(csr.nnz, dtype=index_dtype(csr.nnz))
    entries = scipy.sparse.csr_array((numbers, csr.indices, csr.indptr), csr.shape).tocsc()
    turned = csr.data[entries.data], entries.indices, entries.indptr
    return scipy.sparse.csr_array(turned, csr.shape[::-1]), entries.data


@building.on_either()
def _source(xp: Any, own: Any, over: Any, number: Any) -> Any:
    """The place in `own` of each place of `over`, which hold indices of entries; the entries of `over` by number."""
    places = xp.arange(own.shape[0], dtype=index_dtype(own.shape[0]))
    if xp is np:
        place = np.empty(number.shape[0] + 1, places.dtype)  # of each entry; padding writes to the last
        place[own] = places
    else:
        place = jnp.zeros(number.shape[0], places.dtype).at[own].set(places, mode="drop", unique_indices=True)
    return xp.append(place[number], xp.full(1, own.shape[0], places.dtype))[over]


def _unshared(A: SparseMatrix) -> SparseMatrix:
    """A with every entry in a place of its own."""
    return A._refilled(A.entries()[3]) if A._shares_places else A
