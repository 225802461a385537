"""The opponent: cuSPARSE's generic product in each of its formats, set up once, with int32 indices.

CuPy holds the arrays. Its binding lacks sliced ELL, blocks, SpMVOp, and the preprocessing that makes ALG2 fast, so this
module calls the C functions of the newest library that the process has loaded; `LD_PRELOAD` loads another than CuPy's.
`Absent` is raised for what a library does not offer.
"""

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats import bsr, building

# cusparseSpMVAlg_t.
COO_ALG1, CSR_ALG1, CSR_ALG2, COO_ALG2, SELL_ALG1, BSR_ALG1 = 1, 2, 3, 4, 5, 6
SPMV_OP = 0  # cusparseSpMVOpAlg_t, the default
INT32, BASE_ZERO, ROW_MAJOR, NO_TRANSPOSE = 2, 0, 2, 0
_TYPES = {"float32": 0, "float64": 1}  # cudaDataType: CUDA_R_32F, CUDA_R_64F
SORT_WINDOW = 4096  # rows that sorted sliced ELL sorts by length, which keeps neighbouring rows near each other
MOST_PADDING = 4  # places an entry, above which sliced ELL is not tried


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


class Stored(NamedTuple):
    """A matrix on the host in a format of cuSPARSE: the function that describes it, its sizes, dtypes and arrays."""

    create: str
    sizes: tuple[int, ...]
    types: tuple[int, ...]  # before that of the values
    index: list[np.ndarray]
    values: np.ndarray
    order: tuple[int, ...] = ()  # of a block, behind the dtype of the values
    perm: np.ndarray | None = None


class Opponent:
    """One matrix in the formats of cuSPARSE, converted on the host; arrays go to the GPU for the first product."""

    def __init__(self, S: Any):
        """S: canonical SciPy CSR."""
        self.S = S
        self._on_device: dict[tuple[str, str], Any] = {}
        row, (r, c) = np.repeat(np.arange(S.shape[0], dtype=np.int32), np.diff(S.indptr)), bsr.best_block(S, 8)
        sizes, pointers = (*S.shape, S.nnz), (INT32, INT32, BASE_ZERO)
        self._host: dict[str, Stored | Absent] = {
            "csr": Stored("cusparseCreateCsr", sizes, pointers, [S.indptr, S.indices], S.data),
            "coo": Stored("cusparseCreateCoo", sizes, (INT32, BASE_ZERO), [row, S.indices], S.data),
        }
        self.methods: dict[str, Callable[[Any], Product]] = {
            "CSR ALG1": functools.partial(self._product, "csr", CSR_ALG1),
            "CSR ALG2": functools.partial(self._product, "csr", CSR_ALG2),
            "CSR SpMVOp": functools.partial(self._product, "csr", SPMV_OP, kind=Planned),
            "COO ALG1": functools.partial(self._product, "coo", COO_ALG1),
            "COO ALG2": functools.partial(self._product, "coo", COO_ALG2),
        }
        for slice_size, is_sorted in ((32, False), (128, False), (32, True)):
            name = f"sliced ELL {slice_size}" + is_sorted * ", rows sorted"
            self._host[name] = self._sliced_ell(slice_size, is_sorted)
            self.methods[name] = functools.partial(self._product, name, SELL_ALG1)
        if r * c > 1:
            self._host["bsr"] = blocks(S, (r, c))
            self.methods[f"BSR {r} × {c}"] = functools.partial(self._product, "bsr", BSR_ALG1)

    def _product(self, name: str, algorithm: int, dtype: Any, kind: type[Product] = Product) -> Product:
        stored, dtype = self._host[name], np.dtype(dtype)
        if isinstance(stored, Absent):
            raise stored
        of_values = "csr" if name == "coo" else name  # they list the same values
        arrays = [self._kept(name, str(k), a.astype(np.int32, copy=False)) for k, a in enumerate(stored.index)]
        arrays.append(self._kept(of_values, dtype.name, stored.values.astype(dtype, copy=False)))
        types = (*stored.types, _TYPES[dtype.name], *stored.order)
        product = kind(stored.create, stored.sizes, arrays, types, self.S.shape, algorithm)
        product.perm = stored.perm
        return product

    def _kept(self, name: str, kind: str, a: np.ndarray) -> Any:
        """The array on the device, kept for the next algorithm or dtype."""
        if (name, kind) not in self._on_device:
            self._on_device[name, kind] = library().cupy.asarray(np.ascontiguousarray(a))
        return self._on_device[name, kind]

    def _sliced_ell(self, slice_size: int, is_sorted: bool) -> Stored | Absent:
        """Slice offsets and columns, and values: our HLL with column −1 in padding."""
        S, lengths, perm = self.S, np.diff(self.S.indptr), None
        places = slice_size * building.longest_by_slice(lengths, slice_size).sum()
        if is_sorted:
            perm, unsorted = np.lexsort((-lengths, np.arange(S.shape[0]) // SORT_WINDOW)), places
            places = slice_size * building.longest_by_slice(lengths[perm], slice_size).sum()
            if places > 0.98 * unsorted:
                return Absent("sorting saves less than 2% of the places")
        if places > MOST_PADDING * S.nnz:
            return Absent(f"{places / S.nnz:.0f} places an entry")
        S = S if perm is None else S[perm]
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            hll: Any = jsf.from_scipy(S, "hll", slice_size=slice_size, max_bytes=2**36)
        col_idx, values = np.array(hll.col_idx), np.asarray(hll.values)
        col_idx[col_idx == S.shape[1]] = -1
        sizes, pointers = (*S.shape, S.nnz, values.size, slice_size), (INT32, INT32, BASE_ZERO)
        index = [np.asarray(hll.slice_ptr), col_idx]
        return Stored("cusparseCreateSlicedEll", sizes, pointers, index, values, perm=perm)


def blocks(S: Any, block_shape: tuple[int, int]) -> Stored | Absent:
    """Pointers and columns of the rows of blocks, and the blocks row by row, flat."""
    (r, c), (n_rows, n_cols) = block_shape, S.shape
    if n_rows % r or n_cols % c:
        return Absent(f"no multiple of {r} × {c}")
    B = S.tobsr(block_shape)
    B.sort_indices()
    sizes, pointers = (n_rows // r, n_cols // c, B.indices.size, r, c), (INT32, INT32, BASE_ZERO)
    return Stored("cusparseCreateBsr", sizes, pointers, [B.indptr, B.indices], B.data.reshape(-1), (ROW_MAJOR,))
