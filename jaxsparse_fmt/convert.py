"""Conversion from SciPy, coordinates, dense arrays and files into a format, with all validation of user input."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy

from jaxsparse_fmt._arguments import as_floating, is_sparse, of_jax_sparse, real_number, whole_number
from jaxsparse_fmt._dtypes import check_keeps_imaginary, floating_dtype, requested_dtype
from jaxsparse_fmt._progress import staged
from jaxsparse_fmt._tracing import concrete, device_of, is_traced
from jaxsparse_fmt._types import Csr, CsrArrays, Target
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.algebra.assembly import assembly, coordinates, grouped, summed
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.core.matrix import CHOOSERS, SparseMatrix, build
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.bsr import MAX_COLUMNS
from jaxsparse_fmt.formats.canonical import canonical
from jaxsparse_fmt.formats.order import order_of
from jaxsparse_fmt.formats.paired import Paired
from jaxsparse_fmt.kernels.backends import selection


@staged
def from_scipy(
    S: Any,
    format: str = "auto",
    dtype: Any = None,
    *,
    backend: str = "auto",
    max_bytes: int | None = None,
    transpose: bool = False,
    progress: bool = False,
    **layout: Any,
) -> SparseMatrix:
    """A JAX sparse matrix from any scipy.sparse matrix or array.

    Duplicates are summed; an explicit zero stays an entry. `S` is not changed.

    Args:
      S: scipy.sparse matrix or array of any format and numeric dtype, or one of this library. Integers become floats.
      format: a name in `FORMATS`; "auto" for the first of `choose.rank` that fits the free memory; or "tune" for the
        fastest of its first few, measured here (`tune.py`).
      dtype: of the stored values; None keeps S's (narrowed to 32 bits unless `jax_enable_x64` is on).
      backend: "auto", "triton", "mosaic", "numba", "xla" or "interpret"; see `use_backend`.
      max_bytes: the largest padded storage to accept, in bytes; None refuses a size out of proportion to the matrix.
        The free memory is always a limit, and with infinity the only one.
      transpose: whether the matrix carries its transpose, so that `A.T @ y` is a product and not a scatter-add: as fast
        as `A @ x` except for a gather of the values, and bit-reproducible on a GPU. It costs the index arrays of a
        second storage, of the same format and options, and 4 bytes for each of its places (`paired.py`); "auto" and
        "tune" choose for each of the two. Matrices in "csc" and "dia" do not change.
      progress: True shows a bar on standard error after a second.
      **layout: the format's options, for example slice_size and sigma of "hll".

    Raises:
      TypeError: S is not a SciPy sparse matrix, its dtype is not numeric, or `max_bytes` is not a number.
      ValueError: an index out of range, a broken row pointer, an unknown format, backend or layout option, a dtype that
        JAX cannot hold at present, a format that would take far more memory than the matrix, or with "auto" and "tune"
        a matrix that fits the memory in no format; the message names a cure.

    Examples:
      >>> js.from_scipy(S, "ell")
      <ell 16×16, nnz=64, float64, fill=0.800, 960 B>
    """
    csr, target = checked(S, dtype, backend, max_bytes)
    return (_with_transpose if transpose else build)(csr, format, target, **layout)


def _with_transpose(csr: Csr, name: str, target: Target, **layout: Any) -> SparseMatrix:
    """The canonical `csr` in the format named or chosen, with its transpose."""
    A = build(csr, name, target, **layout)
    if A._transposes:
        return A
    building.check_pointers(csr.shape[1], "columns", csr.nnz, target)
    if layout.get("block_shape") is not None:
        r, c = A.layout["block_shape"]
        if r > MAX_COLUMNS:
            raise ValueError(
                f"block_shape[0] must be at most {MAX_COLUMNS} rows with transpose=True, which turns the blocks: a "
                f"kernel unrolls their columns; got {r}"
            )
        layout = layout | {"block_shape": (c, r)}
    return Paired.from_csr(csr, A=A, store=lambda transpose: build(transpose, name, target, **layout))


def _chooser(choose: Callable[[Csr, Target], SparseMatrix]) -> Callable[[Any, Target], SparseMatrix]:
    """Of a matrix in CSR, or of one of ours; what it has made itself it returns."""
    made = Kept(8, "chosen formats")

    def chosen(A: Any, target: Target) -> SparseMatrix:
        where = selection.active_backend(target.backend), device_of(), jax.sharding.get_abstract_mesh()

        def identity(A: Any) -> tuple[Any, list[Any]]:
            leaves, tree = jax.tree.flatten(A)  # layouts that differ in static fields alone may share all arrays
            return (target, where, tree), leaves

        if isinstance(A, SparseMatrix) and made.find(*identity(A)):
            return A
        A = choose(building.where_it_converts(A, target), target)
        made.keep(*identity(A), True)
        return A

    return chosen


def _ranked(csr: Csr, target: Target) -> SparseMatrix:
    return ranking.store(ranking.rank(csr, target.dtype, backend=target.backend), csr, target)[0]


def _tuned(csr: Csr, target: Target) -> SparseMatrix:
    from jaxsparse_fmt.choose import tune

    return tune.fastest(csr, target)[0]


CHOOSERS |= {"auto": _chooser(_ranked), "tune": _chooser(_tuned)}


def checked(S: Any, dtype: Any, backend: str, max_bytes: float | None = None) -> tuple[Csr, Target]:
    """The user's matrix in canonical CSR, and the target of its conversion. See `from_scipy`."""
    given = S
    _refuse_traced(S)
    if isinstance(S, ScipyNames):
        S = S.to_scipy()
    if not scipy.sparse.issparse(S):
        raise TypeError(
            f"from_scipy takes a scipy.sparse matrix or array, got {type(S).__name__}; use from_dense for a dense "
            "array, from_coo for rows, columns and values, from_bcoo for a BCOO or BCSR of JAX's"
        )
    if S.ndim != 2:
        raise ValueError(f"from_scipy takes a two-dimensional matrix, got shape {S.shape}")
    # SciPy knows no 16-bit floats, which a matrix of ours may have.
    stored = floating_dtype(given.dtype, "the matrix") if dtype is None else requested_dtype(dtype)
    if dtype is None and S.dtype.kind in "fc" and S.dtype.itemsize > stored.itemsize >= 4:
        _warn_once(str(stored))
    check_keeps_imaginary(S.dtype, stored)
    selection.check_backend(backend)
    target = Target(stored, backend, max_bytes)
    building.check_bound("rows", S.shape[0])
    building.check_pointers(S.shape[0], "rows", S.nnz, target)
    return canonical(S), target


def _refuse_traced(a: Any) -> None:
    if is_traced(a):
        raise ValueError(
            "the entries of a new matrix must be known, and its values are traced here; make it outside jit, and give "
            "it other values inside, by A.with_data(data)"
        )


@functools.cache
def _warn_once(stored: str) -> None:
    """Warns once in a process that digits are lost, and names the user's line that made the matrix."""
    frame, level = sys._getframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("jaxsparse_fmt", "solvers"):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"a matrix of 64-bit numbers is stored as {stored}: call jax.config.update('jax_enable_x64', True) first to "
        f"keep its digits, or pass dtype='{stored}' if this is meant; said once",
        stacklevel=level,
    )


def from_coo(
    row: Any,
    col: Any = None,
    data: Any = None,
    shape: Any = None,
    format: str = "auto",
    dtype: Any = None,
    **options: Any,
) -> SparseMatrix:
    """A matrix from coordinates; duplicates are summed.

    Inside jit, `data` may be traced, as for `assembly`, which keeps what the indices decide.

    Args:
      row, col, data: [k] arrays of indices and values.
      shape: (rows, columns); or SciPy's spelling, from_coo((data, (row, col)), shape).
      format, dtype, **options: as in `from_scipy`.

    Raises:
      ValueError: lengths differ, or an index lies outside `shape`. TypeError: indices that are not integers, or a whole
        matrix.

    Examples:
      >>> js.from_coo([0, 1, 1], [0, 0, 1], [1.0, 2.0, 3.0], (2, 2)).todense().tolist()
      [[1.0, 0.0], [2.0, 3.0]]
    """
    if isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], tuple | list):
        shape = col if shape is None else shape
        data, (row, col) = row
    refuse_sparse(row, "from_coo takes rows, columns and values")
    if is_traced(data):
        if dtype is not None:
            check_keeps_imaginary(data.dtype, requested_dtype(dtype))
            data = data.astype(dtype)
        if not options.get("transpose"):
            options.pop("transpose", None)
            return assembly(row, col, shape, format, **options)(data)
        sums = assembly(row, col, shape, "csr")(data).data
        return from_coo(row, col, np.ones(np.shape(row)), shape, format, sums.dtype, **options).with_data(sums)
    if not np.shape(row) == np.shape(col) == np.shape(data) or np.ndim(row) != 1:
        shapes = ", ".join(str(np.shape(a)) for a in (row, col, data))
        raise ValueError(f"row, col and data must be one-dimensional and of one length; got {shapes}")
    with concrete():
        row, col, shape = coordinates(row, col, shape)
    if building.namespace(row) is np:
        data, dtype = _for_scipy(np.asarray(data), dtype, "data")
        return from_scipy(scipy.sparse.coo_array((data, (row, col)), shape=shape), format, dtype, **options)
    with concrete():
        S, duplicates = grouped(row, col, shape, "auto")
        data = data if isinstance(data, jax.Array) else np.asarray(data)
        whole = np.dtype(data.dtype).kind in "iub"
        with jax.enable_x64(True) if whole else contextlib.nullcontext():  # float32 would round their sums
            values = summed(duplicates, as_floating(data, "data"))
        csr = patterns.with_data(S, values.astype(floating_dtype(data.dtype, "data")))
        return from_arrays(csr, format, dtype, **options)


@staged
def from_arrays(
    csr: CsrArrays,
    format: str,
    dtype: Any,
    backend: str = "auto",
    max_bytes: Any = None,
    transpose: bool = False,
    progress: bool = False,
    **layout,
) -> SparseMatrix:
    """A matrix from canonical CSR arrays on a device; arguments as in `from_scipy`."""
    stored = floating_dtype(csr.data.dtype, "the matrix") if dtype is None else requested_dtype(dtype)
    check_keeps_imaginary(csr.data.dtype, stored)
    target = Target(stored, selection.check_backend(backend), max_bytes)
    return (_with_transpose if transpose else build)(csr, format, target, **layout)


def from_dense(a: Any, format: str = "auto", dtype: Any = None, **options: Any) -> SparseMatrix:
    """A matrix from the non-zeros of a dense two-dimensional array.

    Args:
      a: [m, n], of numbers that are not traced.
      format, dtype, **options: as in `from_scipy`.

    Raises:
      ValueError: not two-dimensional. TypeError: not numeric, or sparse; the message names the function that takes it.
        And as in `from_scipy`.

    Examples:
      >>> js.from_dense(np.diag([1.0, 2.0])).nnz
      2
    """
    refuse_sparse(a, "from_dense takes a dense array")
    _refuse_traced(a)
    a = np.asarray(a)
    if a.ndim != 2:
        raise ValueError(f"from_dense takes a two-dimensional array, got shape {a.shape}")
    a, dtype = _for_scipy(a, dtype, "the array")
    return from_scipy(scipy.sparse.csr_array(a), format, dtype, **options)


def refuse_sparse(a: Any, takes: str) -> None:
    """Raises TypeError if `a` is a sparse matrix, of any library, with the function that converts it."""
    if is_sparse(a) or of_jax_sparse(a):
        cure = "from_bcoo" if of_jax_sparse(a) else "from_scipy"
        raise TypeError(f"{takes}, got {type(a).__name__}; use {cure} for a sparse matrix")


def random(
    m: int, n: int, density: float = 0.01, format: str = "csr", dtype: Any = None, rng: Any = None, **options: Any
) -> SparseMatrix:
    """A matrix [m, n] of numbers drawn uniformly from [0, 1), at places drawn uniformly without repetition.

    Args:
      density: the part of all places that get an entry, from 0 to 1.
      format, dtype, **options: as in `from_scipy`.
      rng: a seed, or a generator of NumPy; None draws another matrix at each call.

    Raises:
      ValueError: a size below 0, or another density.

    Examples:
      >>> js.random(10, 20, density=0.1, rng=0).nnz
      20
    """
    shape = whole_number("m", m), whole_number("n", n)
    if not 0 <= real_number("density", density) <= 1:
        raise ValueError(f"density must be a number from 0 to 1; got {density}")
    S = scipy.sparse.random_array(shape, density=density, random_state=np.random.default_rng(rng))
    return from_scipy(S, format, jax.dtypes.canonicalize_dtype(float) if dtype is None else dtype, **options)


def read_mtx(path: Any, format: str = "auto", dtype: Any = None, **options: Any) -> SparseMatrix:
    """A matrix from a Matrix Market file, plain, gzip or bzip2.

    Args:
      path: of the file, or a binary file open for reading.
      format, dtype, **options: as in `from_scipy`.

    Raises:
      ValueError: the file is malformed; the message names file and line. FileNotFoundError. And as in `from_scipy`.

    Examples:
      >>> js.io.write_mtx(folder / "A.mtx", S)
      >>> js.read_mtx(folder / "A.mtx").nnz
      64
    """
    from jaxsparse_fmt.io import files  # which few programs need

    return from_scipy(files.read_scipy(path), format, dtype, **options)


def _for_scipy(a: np.ndarray, dtype: Any, what: str) -> tuple[np.ndarray, Any]:
    """The array for SciPy, and the final dtype: narrow types, which SciPy lacks, pass through it as float32."""
    stored = floating_dtype(a.dtype, what)
    if stored.itemsize <= 2 or a.dtype.kind == "V":
        return a.astype(np.float32), stored if dtype is None else dtype
    return a.astype(a.dtype.newbyteorder("="), copy=False), dtype


def order(S: Any, how: str = "rcm") -> np.ndarray:
    """A permutation [n] int64 of the unknowns of a square matrix: `S[perm][:, perm]` has its entries near the diagonal.

    Args:
      S: as in `from_scipy`.
      how: "rcm", reverse Cuthill-McKee.

    Raises:
      ValueError: a matrix that is not square, or another word. TypeError: as in `from_scipy`.

    Examples:
      >>> p = js.order(S, "rcm")
      >>> S[p][:, p].nnz == S.nnz  # the entries move towards the diagonal
      True
    """
    if how != "rcm":
        raise ValueError(f"how must be 'rcm'; got {how!r}")
    csr, _ = checked(S, None, "auto")
    return order_of(csr, how)
