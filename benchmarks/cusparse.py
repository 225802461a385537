"""The opponent: cuSPARSE's generic product in each of its formats, set up once, with int32 indices.

CuPy holds the arrays. Its binding lacks sliced ELL, blocks, SpMVOp, and the preprocessing that makes ALG2 fast, so this
module calls the C functions of the newest library that the process has loaded; `LD_PRELOAD` loads another than CuPy's.
`Absent` is raised for what a library does not offer.
"""

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats import bsr
from jaxsparse_fmt.models import traffic

# cusparseSpMVAlg_t.
COO_ALG1, CSR_ALG1, CSR_ALG2, COO_ALG2, SELL_ALG1, BSR_ALG1 = 1, 2, 3, 4, 5, 6
SPMV_OP = 0  # cusparseSpMVOpAlg_t, the default
INT32, BASE_ZERO, ROW_MAJOR, NO_TRANSPOSE = 2, 0, 2, 0
_TYPES = {"float32": 0, "float64": 1}  # cudaDataType: CUDA_R_32F, CUDA_R_64F
SORT_WINDOW = 4096  # rows that sorted sliced ELL sorts by length, which keeps neighbouring rows near each other
MOST_PADDING = 4  # places an entry, above which sliced ELL is not tried

Converted: TypeAlias = tuple[list[np.ndarray], np.ndarray]  # index arrays, and values


class Absent(Exception):
    """This CuPy, this cuSPARSE or this matrix does not allow the method; the text has the reason."""


class Library:
    """The newest cuSPARSE that this process has loaded, and a handle to it."""

    def __init__(self) -> None:
        try:
            import cupy  # pyright: ignore[reportMissingImports]

            cupy.cuda.Device().cusparse_handle  # noqa: B018, loads the library
            with open("/proc/self/maps") as maps:
                paths = sorted(set(re.findall(r"/\S*libcusparse\.so\S*", maps.read())))
        except Exception as error:  # CuPy fails in many ways where there is no GPU
            raise Absent(f"no cuSPARSE: {type(error).__name__}: {error}".splitlines()[0]) from error
        if not paths:
            raise Absent("no cuSPARSE: CuPy has loaded none")
        self.cupy = cupy
        self.version, self._lib, self.handle = max(map(self._open, paths), key=lambda opened: opened[0])

    def _open(self, path: str) -> tuple[int, ctypes.CDLL, ctypes.c_void_p]:
        lib, handle, version = ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_int()
        if lib.cusparseCreate(ctypes.byref(handle)) or lib.cusparseGetVersion(handle, ctypes.byref(version)):
            raise Absent(f"no cuSPARSE: {path} makes no handle")
        return version.value, lib, handle

    def function(self, name: str) -> Callable[..., None]:
        """The C function, which raises `Absent` for any status but success."""
        function = getattr(self._lib, name, None)
        if function is None:
            raise Absent(f"cuSPARSE {self.version} has no {name}")

        def checked(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                self._lib.cusparseGetErrorString.restype = ctypes.c_char_p
                raise Absent(f"{name}: {self._lib.cusparseGetErrorString(status).decode()}")

        return checked

    def has(self, name: str) -> bool:
        return hasattr(self._lib, name)


@functools.cache
def library() -> Library:
    return Library()


class Product:
    """y = A·x by one algorithm; descriptors, workspace and preprocessing are made once.

    `perm`: the row of A behind each number of y; None: y is in the order of the rows.
    """

    perm: np.ndarray | None = None

    def __init__(
        self,
        create: str,
        sizes: tuple[int, ...],
        arrays: list[Any],
        types: tuple[int, ...],
        shape: tuple[int, int],
        algorithm: int,
    ):
        """Describes a matrix by `create`(descriptor, *sizes, *arrays, *types), the arrays on the device."""
        self._lib, self._arrays, self._algorithm = library(), arrays, algorithm
        self.dtype = np.dtype(str(arrays[-1].dtype))
        self._matrix, self._vectors, self._calls = ctypes.c_void_p(), {}, {}
        self._scalars = [np.array(value, self.dtype) for value in (1, 0)]
        pointers = [ctypes.c_void_p(a.data.ptr) for a in arrays]
        described = [*(ctypes.c_int64(n) for n in sizes), *pointers, *(ctypes.c_int(t) for t in types)]
        self._lib.function(create)(ctypes.byref(self._matrix), *described)
        self._spmv, self._workspace = self._lib.function("cusparseSpMV"), None
        self.y = self._lib.cupy.asarray(np.full(shape[0], np.nan, self.dtype))

    def __call__(self, x: Any, y: Any = None) -> Any:
        """Writes the product to y, or `self.y`. CuPy arrays: x [n_cols] and y [n_rows]."""
        y = self.y if y is None else y
        key = x.data.ptr, y.data.ptr
        if key not in self._calls:
            self._calls[key] = self._prepared(x, y)
        self._spmv(*self._calls[key])
        return y

    def _prepared(self, x: Any, y: Any) -> tuple[Any, ...]:
        one, zero = (ctypes.c_void_p(scalar.ctypes.data) for scalar in self._scalars)
        vectors = self._vector(x), self._vector(y)
        types = ctypes.c_int(_TYPES[self.dtype.name]), ctypes.c_int(self._algorithm)
        call = self._lib.handle, ctypes.c_int(NO_TRANSPOSE), one, self._matrix, vectors[0], zero, vectors[1], *types
        if self._workspace is None:
            size = ctypes.c_size_t()
            self._lib.function("cusparseSpMV_bufferSize")(*call, ctypes.byref(size))
            self._workspace = self._lib.cupy.cuda.alloc(max(size.value, 1))
            # Since CUDA 12.4; it serves CSR only.
            if self._algorithm in (CSR_ALG1, CSR_ALG2) and self._lib.has("cusparseSpMV_preprocess"):
                self._lib.function("cusparseSpMV_preprocess")(*call, ctypes.c_void_p(self._workspace.ptr))
        return *call, ctypes.c_void_p(self._workspace.ptr)

    def in_order(self, y: np.ndarray) -> np.ndarray:
        """A result in the order of the matrix's rows."""
        if self.perm is None:
            return y
        out = np.empty_like(y)
        out[self.perm] = y
        return out

    def _vector(self, a: Any) -> ctypes.c_void_p:
        if a.data.ptr not in self._vectors:
            self._vectors[a.data.ptr] = vector = ctypes.c_void_p()
            create = self._lib.function("cusparseCreateDnVec")
            pointer, kind = ctypes.c_void_p(a.data.ptr), ctypes.c_int(_TYPES[self.dtype.name])
            create(ctypes.byref(vector), ctypes.c_int64(a.size), pointer, kind)
        return self._vectors[a.data.ptr]

    def captured(self, x0: Any, pairs: Sequence[tuple[Any, Any]]) -> Callable[[], None]:
        """A function that copies x0 into the first x and runs y = A·x for these pairs in turn, as one CUDA graph.

        In a graph no product waits for Python. In BSR the products are called one by one: capture is untested.
        """

        def one_by_one() -> None:
            pairs[0][0][...] = x0
            for x, y in pairs:
                self(x, y)

        one_by_one()  # loads all kernels before the capture
        self.wait(None)  # no other stream may be busy
        if self._algorithm == BSR_ALG1:
            return one_by_one
        stream, set_stream = self._lib.cupy.cuda.Stream(non_blocking=True), self._lib.function("cusparseSetStream")
        set_stream(self._lib.handle, ctypes.c_void_p(stream.ptr))
        try:
            with stream:
                stream.begin_capture()
                try:
                    one_by_one()
                finally:
                    graph = stream.end_capture()
        finally:
            set_stream(self._lib.handle, ctypes.c_void_p(0))

        def launch(kept: Any = (self, x0, pairs)) -> None:  # keeps the arrays alive, since a graph has only addresses
            graph.launch(stream)

        return launch

    def to_device(self, x: np.ndarray) -> Any:
        return self._lib.cupy.asarray(x)

    def wait(self, _: Any) -> None:
        self._lib.cupy.cuda.Device().synchronize()


class Planned(Product):
    """A·x by SpMVOp, which plans the product of a matrix; cuSPARSE has it since 12.7."""

    def _prepared(self, x: Any, y: Any) -> tuple[Any, ...]:
        handle, of_x, of_y = self._lib.handle, self._vector(x), self._vector(y)
        if self._workspace is None:
            size, descriptor, self._plan = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_void_p()
            types = ctypes.c_int(_TYPES[self.dtype.name]), ctypes.c_int(self._algorithm)
            described = ctypes.c_int(NO_TRANSPOSE), self._matrix, of_x, of_y, of_y, *types
            self._lib.function("cusparseSpMVOp_bufferSize")(handle, *described, ctypes.byref(size))
            self._workspace = self._lib.cupy.cuda.alloc(max(size.value, 1))
            workspace = ctypes.c_void_p(self._workspace.ptr)
            self._lib.function("cusparseSpMVOp_createDescr")(handle, ctypes.byref(descriptor), *described, workspace)
            plan = handle, descriptor, ctypes.byref(self._plan), None, ctypes.c_size_t(0)
            self._lib.function("cusparseSpMVOp_createPlan")(*plan)
            self._spmv = self._lib.function("cusparseSpMVOp")
        one, zero = (ctypes.c_void_p(scalar.ctypes.data) for scalar in self._scalars)
        return handle, self._plan, one, zero, of_x, of_y, of_y


class Opponent:
    """One matrix in the formats of cuSPARSE; index arrays go to the device once for all dtypes."""

    def __init__(self, S: Any, A: jsf.SparseMatrix | None = None):
        """S: canonical SciPy CSR. A: the same matrix in one of our formats, for sliced ELL, converted on the device."""
        self.S, self._A = S, A
        self._index: dict[str, list[Any]] = {}
        self._values: dict[str, np.ndarray] = {}
        self._on_device: dict[tuple[str, str], Any] = {}
        self._block = bsr.best_block(S, 8)
        r, c = self._block
        self.methods: dict[str, Callable[[Any], Product]] = {
            "CSR ALG1": lambda dtype: self._csr(dtype, CSR_ALG1),
            "CSR ALG2": lambda dtype: self._csr(dtype, CSR_ALG2),
            "CSR SpMVOp": lambda dtype: self._csr(dtype, SPMV_OP, kind=Planned),
            "COO ALG1": lambda dtype: self._coo(dtype, COO_ALG1),
            "COO ALG2": lambda dtype: self._coo(dtype, COO_ALG2),
            "sliced ELL 32": lambda dtype: self._sliced(dtype, 32),
            "sliced ELL 128": lambda dtype: self._sliced(dtype, 128),
            "sliced ELL 32, rows sorted": lambda dtype: self._sliced(dtype, 32, is_sorted=True),
        }
        if r * c > 1:
            self.methods[f"BSR {r} × {c}"] = self._bsr

    def _arrays(self, name: str, dtype: Any, make: Callable[[], Converted]) -> list[Any]:
        """Indices and values on the device, kept for the next algorithm or dtype."""
        to_device, dtype = library().cupy.asarray, np.dtype(dtype)
        if name not in self._index:
            index, self._values[name] = make()
            self._index[name] = [to_device(np.ascontiguousarray(a, np.int32)) for a in index]
        key = "csr" if name == "coo" else name, dtype.name  # they list the same values
        if key not in self._on_device:
            self._on_device[key] = to_device(self._values[name].astype(dtype, copy=False))
        return [*self._index[name], self._on_device[key]]

    def _csr(self, dtype: Any, algorithm: int, kind: type[Product] = Product) -> Product:
        S = self.S
        arrays = self._arrays("csr", dtype, lambda: ([S.indptr, S.indices], S.data))
        types = (INT32, INT32, BASE_ZERO, _TYPES[np.dtype(dtype).name])
        return kind("cusparseCreateCsr", (*S.shape, S.nnz), arrays, types, S.shape, algorithm)

    def _coo(self, dtype: Any, algorithm: int) -> Product:
        S = self.S
        row = lambda: np.repeat(np.arange(S.shape[0], dtype=np.int32), np.diff(S.indptr))  # noqa: E731
        arrays = self._arrays("coo", dtype, lambda: ([row(), S.indices], S.data))
        types = (INT32, BASE_ZERO, _TYPES[np.dtype(dtype).name])
        return Product("cusparseCreateCoo", (*S.shape, S.nnz), arrays, types, S.shape, algorithm)

    def _sliced(self, dtype: Any, slice_size: int, is_sorted: bool = False) -> Product:
        S, name, lengths, perm = self.S, f"sliced {slice_size} {is_sorted}", np.diff(self.S.indptr), None
        places = traffic.sliced_places(lengths, slice_size)
        if is_sorted:
            perm = np.lexsort((-lengths, np.arange(S.shape[0]) // SORT_WINDOW))
            unsorted, places = places, traffic.sliced_places(lengths[perm], slice_size)
            if places > 0.98 * unsorted:
                raise Absent("sorting saves less than 2% of the places")
        if places > MOST_PADDING * S.nnz:
            raise Absent(f"{places / S.nnz:.0f} places an entry")
        library().function("cusparseCreateSlicedEll")  # before the conversion
        make = lambda: sliced_ell(self._A, S, slice_size) if perm is None else sliced_ell(None, S[perm], slice_size)  # noqa: E731
        arrays = self._arrays(name, dtype, make)
        sizes = (*S.shape, S.nnz, arrays[-1].size, slice_size)
        types = (INT32, INT32, BASE_ZERO, _TYPES[np.dtype(dtype).name])
        product = Product("cusparseCreateSlicedEll", sizes, arrays, types, S.shape, SELL_ALG1)
        product.perm = perm
        return product

    def _bsr(self, dtype: Any) -> Product:
        (r, c), (n_rows, n_cols) = self._block, self.S.shape
        if n_rows % r or n_cols % c:
            raise Absent(f"{n_rows} × {n_cols} is no multiple of {r} × {c}")
        library().function("cusparseCreateBsr")  # before the conversion
        arrays = self._arrays("bsr", dtype, lambda: blocks(self.S, (r, c)))
        sizes = (n_rows // r, n_cols // c, arrays[1].size, r, c)
        types = (INT32, INT32, BASE_ZERO, _TYPES[np.dtype(dtype).name], ROW_MAJOR)
        return Product("cusparseCreateBsr", sizes, arrays, types, self.S.shape, BSR_ALG1)


def sliced_ell(A: jsf.SparseMatrix | None, S: Any, slice_size: int) -> Converted:
    """Slice offsets and columns, and values: our HLL with column −1 in padding, converted on the device of A."""
    options: dict[str, Any] = {"slice_size": slice_size, "max_bytes": 2**36}
    hll: Any = jsf.from_scipy(S, "hll", **options) if A is None else A.asformat("hll", **options)
    col_idx = np.array(hll.col_idx)
    col_idx[col_idx == S.shape[1]] = -1
    return [np.asarray(hll.slice_ptr), col_idx], np.asarray(hll.values)


def blocks(S: Any, block_shape: tuple[int, int]) -> Converted:
    """Pointers and columns of the rows of blocks, and the blocks row by row, flat."""
    B = S.tobsr(block_shape)
    B.sort_indices()
    return [B.indptr, B.indices], B.data.reshape(-1)
