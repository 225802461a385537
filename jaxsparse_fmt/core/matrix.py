"""SparseMatrix: the base class of every format, with its products, values, conversions and basis."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt._arguments import MAX_DENSE_BYTES, as_vector, check_choice, check_dense, whole_number
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import by_size, concrete, in_trace, is_concrete, is_on_cpu, is_traced, standard_promotion
from jaxsparse_fmt._types import Array, Csr, CsrArrays, Target
from jaxsparse_fmt.core import conversions, entry_index, form, vector_passes
from jaxsparse_fmt.core.faces import Faces
from jaxsparse_fmt.core.scipy_names import OnOneDevice
from jaxsparse_fmt.core.transposed import Transposed
from jaxsparse_fmt.kernels.backends import selection

# Every storage scheme by name; `formats/__init__.py` fills it.
FORMATS: dict[str, type[SparseMatrix]] = {}
# What chooses one of them for a matrix, canonical CSR or of this class, by name; `convert.py` fills it.
CHOOSERS: dict[str, Callable[[Any, Target], SparseMatrix]] = {}
KERNEL_OPTIONS = ("threads_per_row", "tile_shape")  # which only kernels of GPUs read


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SparseMatrix(OnOneDevice, Faces):
    """A sparse matrix: a pytree whose leaves are its arrays, and a linear map.

    A format subclasses this with its index arrays and defines how it is built (`from_csr`), the three faces of the
    trilinear form (`Faces`), and the `entries` of its storage. The rest follows.

    A stack of matrices, whose arrays have one more axis in front (`jax.vmap(A.with_data)(D)`, or `jax.tree.map` of
    `jnp.stack`), is of this type too. It may pass through jit, scan and solvers' arguments and be multiplied by a
    number, and inside `jax.vmap` it is one matrix; all other uses are refused.
    """

    name: ClassVar[str]
    layout_options: ClassVar[tuple[str, ...]] = ()
    _sized_by_nnz: ClassVar[bool] = False  # the size of every array follows from nnz
    _in_order: ClassVar[bool] = False  # `values` are `data`
    _shares_places: ClassVar[bool] = False  # several entries may lie in one place
    _rises: ClassVar[bool] = True  # the places of a row's entries rise in the order of `data`
    _transposes: ClassVar[bool] = False  # a kernel computes its transposed product, without scatter-adds

    # -------------------------------------------------------------------------------------- what a format defines

    @classmethod
    @abc.abstractmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        """Builds the format from a canonical CSR matrix (sorted, no duplicates), with the layout's own keywords."""

    @classmethod
    def _footprints(cls, pattern: Any) -> Iterator[Any]:
        """A `footprint.Storage` for each layout that "auto" weighs, from a `footprint.PatternCounts`; here none."""
        del pattern
        return iter(())

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        """Row, column and value of all stored places, as `entries`, in NumPy.

        Formats compute them by NumPy where that is easy: XLA takes a second to compile a program for new sizes.
        """
        return tuple(map(np.asarray, entry_index.places(self)))

    def _native_index(self) -> entry_index.Index | None:
        """The index of the entries by a Numba kernel, if there is one, for a pattern that is traced."""
        return None

    @property
    def _stored(self) -> Self:
        return self

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum([leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self)])

    @property
    def nbytes_read(self) -> int:
        """Bytes of the arrays that `A @ x` reads."""
        pattern = vars(self).get("pattern")
        return self.nbytes if pattern is None or vars(self)["reads_pattern"] else self.nbytes - pattern.nbytes

    @property
    def _n_main(self) -> int:
        """Stored places before those of a tail, whose number is one more size on which shards agree."""
        return self.n_stored

    def with_arrays(self, names: set[str]) -> Self:
        """The same storage with those of its optional arrays that other shards have."""
        del names
        return self

    @property
    def fill(self) -> float:
        """nnz / n_stored: 1.0 without padding."""
        return self.nnz / self.n_stored if self.n_stored else 1.0

    @property
    def layout(self) -> dict[str, Any]:
        """The layout options with which `from_scipy` builds the same storage."""
        return {option: vars(self)[option] for option in self.layout_options}

    def __repr__(self) -> str:
        name, *remarks = self._described
        title = f"{name} {self.shape[0]}×{self.shape[1]}"
        leaves = jax.tree.leaves(self)
        if not all(isinstance(a, (jax.Array, np.ndarray)) for a in (self.values, *leaves)):
            return f"<{title}, nnz={self.nnz}, leaves {leaves}>"
        facts = f"nnz={self.nnz}, {jnp.dtype(self.dtype).name}"
        size = readable_bytes(self.nbytes)
        if self.values.ndim != 1:
            return f"<{self.values.shape[:-1]} {title} stacked, {facts}, {size}>"
        if not self._has_pattern:
            return f"<{title} without its pattern, {facts}>"
        unread = () if is_traced(self.values) or not is_on_cpu(self.values) else KERNEL_OPTIONS
        options = (f"{k}={v}" for k, v in self.layout.items() if k not in unread)
        return f"<{', '.join((title, facts, f'fill={self.fill:.3f}', size, *options, *remarks))}>"

    @property
    def _described(self) -> tuple[str, ...]:
        """The name of the format in the repr, and remarks at its end."""
        return (self.name,)

    # --------------------------------------------------------------------------------------------------- products

    def _times_vector(self, x: Any) -> Array:
        return _applied("product", _not_folded(self), x if isinstance(x, jax.Array) else self._vector(x, 1))

    def matvec_dot(self, x: Array, w: Array) -> tuple[Array, vector_passes.Number]:
        """A·x, and Re wᴴ·A·x from the same pass if a kernel computes it. It has no derivative.

        Inside shard_map x, w and A·x of a sharded matrix are pieces, and the number is this device's summand.

        Args:
          x, w: [n_cols] and [n_rows], or with p columns each.
        """
        y, (dot,) = self._matvec_sums(x, vector_passes.DOT, w)
        return y, dot

    _fuses_sums = True

    def _matvec_sums(self, x: Array, what: vector_passes.Pass, *others: Array) -> tuple[Array, Any]:
        """A·x, and the sums of a pass over A·x and `others`."""
        by_kernel = vector_passes.by_kernel(x, *others) and selection.is_pallas(self.backend)
        if by_kernel and jnp.result_type(self.values, x) == x.dtype and self._sums:
            return form.product_sums(self, x, what, *others)
        y = self @ x
        return y, vector_passes.sweep(what, (), (y, *others))[2]

    def _transposed(self, y: Any) -> Array:
        return _applied("transposed", _not_folded(self), y if isinstance(y, jax.Array) else self._vector(y, 0))

    def _vector(self, x: Any, axis: int) -> Array:
        """x as an array of as many rows as the matrix has along this axis; errors as of `matvec`."""
        self._check_single()  # before x, which may have the stack's axis too
        return as_vector(x, self, axis)

    @property
    def T(self) -> Transposed:
        """The transpose, a view: no array is copied."""
        return Transposed(self)

    # ----------------------------------------------------------------------------------------------------- values

    def _with_values(self, values: Array) -> Self:
        if self._is_changed:
            self._check_single()
        return dataclasses.replace(self, values=values)

    def _each(self, f: Callable[[Array], Array]) -> Self:
        """The same matrix with f applied to all of its values."""
        return self._with_values(f(self.values))

    def _refilled(self, values: Array) -> Self:
        """The same pattern with the values of `entries` [n_stored], one place for each."""
        return self._with_values(values)

    @property
    def data(self) -> Array:
        """The entries [nnz] in canonical order: by row, then by column.

        In "csr" and "coo" they are `values`. In other formats an index gathers them (`entry_index.py`). It is kept for
        the pattern, in 8 bytes an entry or a little more; for a traced pattern the program computes it.
        """
        self._check_single()
        if self._in_order:
            return self.values
        return entry_index.data(self)

    @property
    def row_ids(self) -> Array:
        """The row of each entry of `data`, [nnz] int32; constant inside jit where only the values are traced."""
        return entry_index.ids(self)[0]

    @property
    def col_ids(self) -> Array:
        """The column of each entry of `data`, [nnz] int32; as `row_ids`."""
        return entry_index.ids(self)[1]

    def with_data(self, data: Any) -> Self:
        """The same pattern with other entries, in the same format. Traceable and differentiable.

        It costs as much as `data`. The result has the same tree structure, shapes and, except for the dtype of `data`,
        dtypes: a loop may carry it.

        Args:
          data: [nnz] in canonical order.

        Raises:
          ValueError: another shape.
        """
        self._check_single()
        data = entry_index.checked(data, self.nnz)
        if self._in_order:
            return self._with_values(data)
        return self._refilled(entry_index.stored(self, data))

    def data_of(self, gradient: Self) -> Array:
        """The entries [nnz] of a gradient with respect to this whole matrix, in the order of `data`.

        `jax.grad(f, allow_int=True)(A)` and `equinox.filter_grad(f)(A)` give a matrix of derivatives in `values`, whose
        index arrays are float0 or None; the pattern comes from A. If two entries share a place ("dia"), each gets half
        of its derivative. Elsewhere `jax.grad(lambda data: f(A.with_data(data)))(A.data)` gives the same.

        Args:
          gradient: a matrix of the same format and shape, of which the method reads only `values`.
        """
        return entry_index.shared_out(self._with_values(gradient.values)).data

    # ------------------------------------------------------------------------------------------------- conversions

    def diagonal(self, k: int = 0) -> Array:
        """The diagonal k, positive above the main one, zero where nothing is stored; empty outside the matrix."""
        return entry_index.diagonal(self, whole_number("k", k, None))

    def _diagonal_on_host(self, k: int) -> np.ndarray:
        """`diagonal`, by NumPy."""
        row, col, values = self._places_on_host()
        found = np.zeros(entry_index.length_of_diagonal(self.shape, k), self.dtype)
        place = row + min(k, 0)
        on = np.flatnonzero((col.astype(np.int64) - row == k) & (place < found.size))  # padding lies in column n_cols
        found[place[on]] = values[on]
        return found

    @functools.partial(jax.jit, static_argnames="max_bytes")
    def todense(self, *, max_bytes: float = MAX_DENSE_BYTES) -> Array:
        """The matrix as a dense array [rows, columns].

        Raises:
          ValueError: it would take more than `max_bytes`, by default 2 GiB.
        """
        check_dense(self.shape, self.dtype, "pass todense(max_bytes=...) to insist, or use A @ x", max_bytes)
        row, col, _, value = self.entries()
        return jnp.zeros(self.shape, self.dtype).at[row, col].add(value, mode="drop")

    def to_scipy(self) -> Csr:
        """The matrix on the host as a canonical CSR array; 16-bit floats become float32. ValueError: it is traced."""
        return entry_index.to_scipy(self)

    def _read_only(self) -> Csr:
        """As `to_scipy`, but perhaps in the matrix's own arrays: JAX's, which nobody may change."""
        return self.to_scipy()

    def csr_arrays(self) -> CsrArrays:
        """`data` [nnz], `indices` [nnz] and `indptr` [n_rows + 1] in canonical order, on the device."""
        return entry_index.csr_arrays(self)

    def asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> SparseMatrix:
        """The same matrix in another format, through CSR.

        Of a matrix on an accelerator the host makes the first conversions of a size, which compiles nothing there, and
        those of "auto" and "tune"; the device makes later ones, and all of many entries. A matrix that "auto" or "tune"
        has made is returned as it is. The result lies on the device to which
        `jax.device_put` has committed the matrix. Inside jit, if only the values are traced, the matrix converts as
        outside, and the choice assumes that all values are 1. A matrix that is traced whole converts to "coo", "csr"
        and "csc", whose sizes are known.

        Args:
          name, max_bytes, layout: as in `from_scipy`, "auto" and "tune" too.

        Raises:
          ValueError: unknown format, layout options that the format does not have, far more memory than the matrix
            needs, or inside jit a format whose size depends on a traced pattern.
        """
        traced = is_traced(self._without_values)
        if is_traced(self.values) and not traced:
            with concrete():
                ones = jnp.ones(self.values.shape, self.dtype)
            converted = dataclasses.replace(self, values=ones).asformat(name, max_bytes=max_bytes, **layout)
            return converted.with_data(self.data)
        if traced and (name in CHOOSERS or (name in FORMATS and not FORMATS[name]._sized_by_nnz)):
            raise ValueError(
                f"format {name!r} cannot be made of a traced pattern: its size is unknown; convert before, or to "
                f"one of {', '.join(n for n, cls in FORMATS.items() if cls._sized_by_nnz)}"
            )
        device = _committed(self.values)
        with concrete(self), contextlib.nullcontext() if device is None else jax.default_device(device):
            A = build(self, name, Target(self.dtype, self.backend, max_bytes), **layout)
        return A if device is None else jax.device_put(A, device)

    def _transpose_asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> SparseMatrix:
        if is_traced(self):
            raise ValueError(f"A.T.asformat({name!r}) needs a matrix that is not traced; convert outside jit")
        with concrete():
            return build(self.T, name, Target(self.dtype, self.backend, max_bytes), **layout)


@standard_promotion
def build(csr: Any, name: str, target: Target, **layout: Any) -> SparseMatrix:
    """A matrix, canonical CSR or ours, in the format `name`, or in the one that "auto" or "tune" chooses.

    It checks name and layout.
    """
    check_format(name, layout)
    if name in CHOOSERS:
        return CHOOSERS[name](csr, target)
    if hasattr(csr, "csr_arrays"):
        is_ours = isinstance(getattr(csr, "_stored", None), SparseMatrix)  # a sharded one gathers its own
        on_host = is_ours and conversions.by_host(csr, name, **layout)
        # Arrays that CSR would share stay JAX's, unless a mesh is set, on whose devices new matrices lie.
        shares = on_host and name == "csr" and jax.sharding.get_abstract_mesh().empty
        shares = shares and (type(csr) is FORMATS[name] or is_on_cpu(jax.tree.leaves(csr)[0]))
        csr = csr._read_only() if on_host and not shares else csr.csr_arrays()
    with concrete(csr.data):
        return FORMATS[name].from_csr(csr, target, **layout)


def check_format(name: str, layout: dict[str, Any]) -> None:
    """Refuses an unknown format, and options that it does not have.

    Raises:
      ValueError: such a format or option. TypeError: an option of no format.
    """
    for option in layout:
        options = {option for cls in FORMATS.values() for option in cls.layout_options}
        if option not in options:
            raise TypeError(
                f"there is no keyword or layout option {option!r}; formats have {', '.join(sorted(options))}"
                + "; jax.default_device(...) tells where a matrix is made" * (option == "device")
            )
    if name in CHOOSERS and layout:
        raise ValueError(f"format={name!r} chooses the layout itself; name a format to set {', '.join(layout)}")
    check_choice("format", name, (*FORMATS, *CHOOSERS))
    for option in layout:
        if option not in FORMATS[name].layout_options:
            known = ", ".join(FORMATS[name].layout_options) or "none"
            raise ValueError(f"format {name!r} has no layout option {option!r}; it has: {known}")


def _committed(a: Any) -> Any:
    """The one device to which `a` is committed, by `jax.device_put` for instance; else None."""
    if not is_concrete(a) or not a.committed or len(a.devices()) != 1:
        return None
    return next(iter(a.devices()))


def _not_folded(A: SparseMatrix) -> SparseMatrix:
    """A; if jit traces only its values, XLA cannot see that the other arrays are constants.

    XLA would compute for seconds what follows from constants: with constant vectors the whole derivative by the values.
    """
    if not isinstance(A.values, Tracer):
        return A
    others = A._for_other_values
    for name, a in vars(others).items():
        if isinstance(a, Tracer) and name != "values":
            return A
    if sum([isinstance(a, Tracer) for a in jax.tree.leaves(others)]) > 1 or not in_trace():
        return A
    leaves, tree = jax.tree.flatten(A)
    return tree.unflatten([a if isinstance(a, Tracer) else lax.optimization_barrier(a) for a in leaves])


# Each product is one compiled call, whose trace checks the arguments: a product outside jit costs only the call. Inside
# jit it stays a call, and JAX lowers its kernel once for all products with one matrix: 50 ms per kernel.
@functools.partial(by_size, key=lambda face, A, x: (A.values.shape, x.shape), static_argnums=0)
@standard_promotion
def _applied(face: str, A: SparseMatrix, x: Array) -> Array:
    return form.apply(face, A, A._vector(x, int(face == "product")))
