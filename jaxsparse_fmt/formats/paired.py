"""A matrix that carries its transpose: Aᵀ·y is the product of a second storage, with its kernel and without atomics.

         ⎡ 1 . 2 . ⎤      values             [1 2 3 4 5 6]      of A's storage, here CSR: the only values
         ⎢ . 3 . . ⎥      storage_T.col_idx  [0 2 1 0 2 2]      Aᵀ in CSR, its index arrays alone
         ⎣ 4 . 5 6 ⎦      storage_T.row_ptr  [0 2 3 5 6]
                          source             [0 3 2 1 4 5]      [Aᵀ's n_stored] int32, int64 from 2³¹ places of A

`source` maps each place of the transpose to the place of its value in `values`, and padding to A's n_stored. Bytes in
addition to A's storage: the index arrays of the transpose, and 4 for each of its places. A transposed product first
gathers the values, at scattered addresses, and then takes the time of a product. Off the CPU, values that are not
traced are gathered once, and kept as long as they live; traced ones where they were made, outside the loops whose
bodies multiply, so once a program. The gathered values are no leaf of a user's matrix, since a caller who changes each
leaf of a pytree by itself would make A and Aᵀ differ.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete, is_on_cpu
from jaxsparse_fmt._types import Array, Csr
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.origin import Origin
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.backends import jax_versions


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Paired(SparseMatrix):
    """A matrix whose transposed product is a product too; `from_scipy(..., transpose=True)` makes it.

    `asformat`, `from_scipy` and `shard` make an ordinary matrix of it.

    Attributes:
      values: [n_stored], those of `storage`.
      storage: of A, without values.
      storage_T: of Aᵀ, without values.
      source: [n_stored of `storage_T`], the place in `values` of each; n_stored in padding.
      gathered: `values` in the places of `storage_T`, if gathered before a product (`_with_gathered`).
    """

    storage: SparseMatrix
    storage_T: SparseMatrix
    source: Array
    gathered: Array | None = None

    name = "paired"
    _transposes = True

    @classmethod
    def from_csr(cls, csr: Csr, *, A: SparseMatrix, store: Callable[[Csr], SparseMatrix]) -> Self:
        """`A`, which stores `csr`, paired with the storage `store(csr.T)` of its transpose.

        TooLarge: as `store` raises it; the message names the transpose.
        """
        A, xp = _unshared(A), building.namespace(csr.data)
        # The values are built only because a format checks them for zero entries; then they are dropped.
        csr_T, number = (_transposed_by_scipy if xp is np else entry_index.transposed)(csr)
        try:
            B = _unshared(store(csr_T))
        except building.TooLarge as error:
            raise building.TooLarge(f"for the transpose, which transpose=True stores too: {error}") from None
        with concrete():
            entries, entries_T = (xp.asarray(a) for a in _entries(A, B))
            source = building.on_device(_source(xp, entries, entries_T, number))
        storage, storage_T = (dataclasses.replace(a, values=None) for a in (A, B))
        return cls(A.values, A.shape, A.nnz, A.backend, storage, storage_T, source)

    @property
    def _stored(self) -> SparseMatrix:
        return dataclasses.replace(self.storage, values=self.values)

    @property
    def _stored_transpose(self) -> SparseMatrix:
        """`storage_T` with an array in place of its values, of their length."""
        return dataclasses.replace(self.storage_T, values=self.source)

    @property
    def _with_gathered(self) -> Self:
        """The matrix with the values of its transpose; those of traced ones are gathered where these were made."""
        values, source = self.values, self.source
        if self.gathered is not None or 0 in (self.n_stored, *source.shape):
            return self
        if isinstance(values, Tracer):
            with jax_versions.where_made(values, source):
                gathered = _gathered(untied_p.bind(values), source)
        else:
            gathered = _kept.get("gathered", [values, source], lambda: _gathered(values, source))
        return dataclasses.replace(self, gathered=gathered)

    @property
    def _for_other_values(self) -> Self:
        return self if self.gathered is None else dataclasses.replace(self, gathered=None)

    def _with_values(self, values: Array) -> Self:
        return super()._with_values(values)._for_other_values

    def _times_vector(self, x: Any) -> Array:
        gathers = isinstance(self.values, Tracer)  # for the transpose of this product; XLA drops what nobody reads
        return super(Paired, self._with_gathered if gathers else self)._times_vector(x)

    def _transposed(self, y: Any) -> Array:
        gathers = isinstance(self.values, Tracer) or not is_on_cpu(self.values)  # a CPU's kernel needs none
        return super(Paired, self._with_gathered if gathers else self)._transposed(y)

    @property
    def _without_values(self) -> Self:
        storage, storage_T = self._stored._without_values, self._stored_transpose._without_values
        return dataclasses.replace(super()._without_values, storage=storage, storage_T=storage_T)

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        return self._stored._product_face(values, x, backend)

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        if self.source.shape[0] == 0:  # a matrix without entries, whose own storage has padding only
            return jnp.zeros((y.shape[0], self.shape[1], y.shape[2]), jnp.result_type(values, y))
        gathered = _gathered(values, self.source) if self.gathered is None else self.gathered[None]
        return self._stored_transpose._product_face(gathered, y, backend)

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        return self._stored._native_face(face, a, b)  # its transposed product needs no gather of the values

    def _outer_face(self, y: Array, x: Array, backend: str) -> Array:
        return self._stored._outer_face(y, x, backend)

    def _wants_shared_memory(self, face: str, p: int) -> bool:
        if face == "transposed":
            return self._stored_transpose._wants_shared_memory("product", p)
        return self._stored._wants_shared_memory(face, p)

    def entries(self) -> tuple[Array, Array, Array, Array]:
        return self._stored.entries()

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        return self._stored._places_on_host()

    @property
    def nbytes_read(self) -> int:
        return self._stored.nbytes_read

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options of A's storage."""
        return self.storage.layout

    @property
    def _described(self) -> tuple[str, ...]:
        return self.storage.name, f"transpose in {self.storage_T.name}"


pytree(Paired, ["values", "storage", "storage_T", "source", "gathered"], Origin.of)

_kept = Kept(64, "values of stored transposes")


# Values without derivatives, as by `lax.stop_gradient`, which has no transpose.
untied_p = Primitive("untied_values")
untied_p.def_impl(lambda values: values)
untied_p.def_abstract_eval(lambda values: values)
ad.primitive_jvps[untied_p] = lambda primals, _: (untied_p.bind(*primals), ad.Zero(jax.typeof(primals[0])))
ad.primitive_transposes[untied_p] = lambda cotangent, values: [None]
batching.defvectorized(untied_p)
mlir.register_lowering(untied_p, lambda ctx, values: [values])


@jax.jit
def _gathered(values: Array, source: Array) -> Array:
    return values.at[..., source].get(mode="fill", fill_value=0, wrap_negative_indices=False)


@jax.jit
def _entries(*matrices: SparseMatrix) -> list[Array]:
    """The index in `data` of every stored place, for each matrix."""
    return [A.entries()[2] for A in matrices]


def _transposed_by_scipy(csr: Csr) -> tuple[Csr, np.ndarray]:
    """The transpose, and the index in `csr` of each of its entries."""
    entries = entry_index.by_column(csr.indices, csr.indptr, csr.shape)
    arrays = csr.data[entries.data], entries.indices, entries.indptr
    return scipy.sparse.csr_array(arrays, csr.shape[::-1]), entries.data


@building.on_either()
def _source(xp: Any, entries: Any, entries_T: Any, number: Any) -> Any:
    """The place in A's storage of each place of Aᵀ's, by the index in `data` of each place of the two storages and the
    index in A's `data` of each entry of Aᵀ, `number`.
    """
    n_stored = entries.shape[0]
    places = xp.arange(n_stored, dtype=index_dtype(n_stored))
    if xp is np:
        place = np.empty(number.shape[0] + 1, places.dtype)  # of each entry; padding writes to the last
        place[entries] = places
    else:
        place = jnp.zeros(number.shape[0], places.dtype).at[entries].set(places, mode="drop", unique_indices=True)
    return xp.append(place[number], xp.full(1, n_stored, places.dtype))[entries_T]


def _unshared(A: SparseMatrix) -> SparseMatrix:
    """A with every entry in a place of its own."""
    return A._refilled(A.entries()[3]) if A._shares_places else A
