"""The helpers of all layers: pytrees, CSR on a device, dtypes, checks of arguments, and sizes and times as text."""

import ast
import contextlib
import dataclasses
import difflib
import functools
import math
import numbers
import operator
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeAlias, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import scipy
from jax.core import Tracer

# A canonical CSR matrix: rows sorted, no duplicates, indices in range. A scipy.sparse.csr_array (SciPy ships no types)
# or `CsrArrays`.
Csr: TypeAlias = Any
Array: TypeAlias = jax.Array
# Cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type[Any])

MAX_DENSE_BYTES = 2 * 2**30  # of a dense array made from a matrix
STORABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_FLOATING = frozenset(map(jnp.dtype, STORABLE))


def pytree(cls: Class, leaves: Iterable[str] | None = None) -> Class:
    """Makes a dataclass a pytree.

    In place of `jax.tree_util.register_dataclass`: in JAX 0.10 and 0.11 the trees of two classes that it registered are
    equal if their static fields are (their hashes differ), and about one of a hundred calls with one class then runs a
    program that was compiled for the other. The flattening below costs 0.5 µs more than JAX's own.

    Args:
      leaves: the fields that hold arrays or pytrees; the rest is static, hashed and compared. None: all fields but
        those with the metadata {"static": True}.
    """
    fields = dataclasses.fields(cls)
    names = {f.name for f in fields if not f.metadata.get("static")} if leaves is None else set(leaves)
    data = tuple(f.name for f in fields if f.name in names)
    static = tuple(f.name for f in fields if f.name not in names)
    keys = tuple(map(jax.tree_util.GetAttrKey, data))
    data_of, static_of = _attributes(data), _attributes(static)

    def flatten_with_keys(self: Any) -> Any:
        return zip(keys, data_of(self), strict=True), static_of(self)

    def flatten(self: Any) -> Any:
        return data_of(self), static_of(self)

    def unflatten(static_values: Any, data_values: Any) -> Any:  # without `__init__`: the leaves may be anything
        self = object.__new__(cls)
        self.__dict__.update(zip(data, data_values, strict=True))
        self.__dict__.update(zip(static, static_values, strict=True))
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def _attributes(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def exportable(cls: Class) -> Class:
    """Registers a dataclass pytree as an input and output of programs that `jax.export` serializes.

    Its static fields must be Python literals: numbers, strings, None, and tuples of them. A process that loads such a
    program must have imported the class.
    """
    jax.export.register_pytree_node_serialization(
        cls,
        serialized_name=f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}",
        serialize_auxdata=lambda static: repr(static).encode(),
        deserialize_auxdata=lambda written: ast.literal_eval(written.decode()),
    )
    return cls


def brief(cls: Class) -> Class:
    """Gives a pytree with a shape and a dtype a `repr` of one line, `<jacobi 16×16, float32, 64 B>`."""
    name = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __repr__(self: Any) -> str:
        leaves = jax.tree.leaves(self)
        if not leaves or not all(hasattr(leaf, "nbytes") for leaf in leaves):  # of jax.tree.map
            return f"<{name}, leaves {leaves}>"
        rows, cols = self.shape
        return f"<{name} {rows}×{cols}, {jnp.dtype(self.dtype).name}, {readable_bytes(sum(a.nbytes for a in leaves))}>"

    cls.__repr__ = __repr__  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def is_on_cpu(a: Any) -> bool:
    """Whether a concrete array is NumPy's, or JAX's on CPUs alone."""
    return not isinstance(a, jax.Array) or {d.platform for d in a.devices()} == {"cpu"}


def scipy_dtype(dtype: Any) -> np.dtype:
    """The dtype in which SciPy holds such numbers: float32 for 16-bit floats, which it lacks."""
    return np.promote_types(dtype, np.float32) if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)


@pytree
@dataclasses.dataclass(frozen=True)
class CsrArrays:
    """A canonical CSR matrix whose arrays are on a device; the attributes are SciPy's. It unpacks into its arrays."""

    data: jax.Array
    indices: jax.Array
    indptr: jax.Array
    shape: tuple[int, int] = dataclasses.field(metadata={"static": True})

    @property
    def nnz(self) -> int:
        return self.data.shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter((self.data, self.indices, self.indptr))

    def to_scipy(self) -> Csr:
        """A copy on the host; 16-bit floats, which SciPy lacks, become float32."""
        arrays = map(np.array, self, (scipy_dtype(self.data.dtype), None, None))
        return scipy.sparse.csr_array(tuple(arrays), shape=self.shape)


@dataclasses.dataclass(frozen=True)
class Target:
    """The arguments of a conversion beside the matrix.

    Attributes:
      dtype: of the stored values.
      backend: of the new matrix's products; see `use_backend`.
      max_bytes: the largest padded storage to accept; None refuses what is out of proportion to the matrix.

    Raises:
      ValueError: `max_bytes` is below 0 or NaN. TypeError: it is no number.
    """

    dtype: np.dtype
    backend: str = "auto"
    max_bytes: float | None = None

    def __post_init__(self) -> None:
        check_max_bytes(self.max_bytes)
        object.__setattr__(self, "dtype", np.dtype(self.dtype))


def in_trace() -> bool:
    """Whether operations are traced here, by jit, vmap or a derivative; compiles nothing."""
    return isinstance(jax.device_put(_zero()), Tracer)


@functools.cache
def _zero() -> Array:
    """An array of JAX, which `device_put` takes in a third of the time of a number."""
    with jax.ensure_compile_time_eval():
        return jax.device_put(0.0)


def concrete() -> contextlib.AbstractContextManager[Any]:
    """A context in which arrays are computed at once, also while a jitted function that closes over them is traced.

    Outside a trace it does nothing: otherwise arrays that a conversion computes from sizes alone would become constants
    of its program, as large as a matrix.
    """
    return jax.ensure_compile_time_eval() if in_trace() else contextlib.nullcontext()


def standard_promotion(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`f` under JAX's standard promotion of dtypes and ranks, on which this library relies (bfloat16 · float32).

    The switches `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` still hold in the user's
    code, except in functions that the user passes to `f`. The wrapper costs 2 µs a call, or a trace under `jax.jit`.
    """

    @functools.wraps(f)
    def standard(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return f(*args, **kwargs)

    return standard


def floating_dtype(dtype: Any, what: str) -> np.dtype:
    """The dtype that stores numbers of `dtype`: floats and complex unchanged, integers and booleans as default floats.

    Without `jax_enable_x64` 64-bit input is narrowed to 32 bits, as in `jnp.asarray`. TypeError: not numeric.
    """
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.char in "gG" and dtype not in (np.float64, np.complex128):
        raise TypeError(f"{what} has dtype {dtype}, which JAX cannot hold; convert it to float64 or complex128 first")
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
    raise TypeError(
        f"{what} has dtype {dtype}, which is not numeric; convert it to float32, float64, complex64 or complex128 first"
    )


def requested_dtype(dtype: Any) -> np.dtype:
    """The dtype that the user names. TypeError: not float or complex. ValueError: 64 bits while JAX has 32."""
    dtype = np.dtype(dtype)
    if dtype.name not in STORABLE:
        raise TypeError(f"dtype {dtype} cannot hold matrix values; ask for one of {', '.join(STORABLE)}")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype {dtype} needs 64-bit JAX; call jax.config.update('jax_enable_x64', True) first, "
            f"or ask for {jax.dtypes.canonicalize_dtype(dtype)}"
        )
    return dtype


def owned(a: Any, dtype: Any = None) -> jax.Array:
    """`a` as a JAX array that shares no memory with NumPy. TypeError: a sparse matrix of JAX's.

    `jnp.asarray` may keep reading NumPy's memory, which the caller may overwrite; `jnp.array` copies a large array only
    after it has returned.
    """
    refuse_bcoo(a)
    # In the byte order of this machine, which JAX requires.
    return jnp.asarray(np.array(a, dtype or a.dtype.newbyteorder("=")) if isinstance(a, np.ndarray) else a, dtype)


def of_jax_sparse(a: Any) -> bool:
    """Whether `a` is a matrix of `jax.experimental.sparse`, seen without importing that module."""
    return type(a).__module__.startswith("jax.experimental.sparse")


def refuse_bcoo(a: Any) -> None:
    """Raises TypeError for a sparse matrix of JAX's, over which `jnp.asarray` would iterate for minutes."""
    if of_jax_sparse(a):
        raise TypeError(
            f"got a sparse matrix of jax.experimental.sparse, {type(a).__name__}, where an array is asked for; "
            "jaxsparse_fmt.from_bcoo makes a matrix of it, and its todense() an array"
        )


def check_dense(shape: tuple[int, int], dtype: Any, cure: str, max_bytes: float = MAX_DENSE_BYTES) -> None:
    """Raises ValueError, which ends with `cure`, for a dense array so large that XLA would abort the process."""
    (rows, cols), itemsize = shape, np.dtype(dtype).itemsize
    if rows * cols * itemsize > max_bytes:
        raise ValueError(f"a dense {rows} × {cols} matrix takes {readable_bytes(rows * cols * itemsize)}; {cure}")


def as_floating(x: Any, what: str, dtype: Any = None) -> jax.Array:
    """x as an array of floats or complex numbers; integers become `dtype` or a float. TypeError: not numeric."""
    if isinstance(x, jax.Array) and x.dtype in _FLOATING and jax.dtypes.canonicalize_dtype(x.dtype) == x.dtype:
        return x
    refuse_bcoo(x)
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        x = np.asarray(x)  # before JAX, so that the error can name the fault
    elif not isinstance(x, jax.Array):
        x = jnp.asarray(x)
    floating = floating_dtype(x.dtype, what)
    return owned(x, floating if dtype is None or jnp.issubdtype(x.dtype, jnp.inexact) else dtype)


def check_keeps_imaginary(given: Any, dtype: Any) -> None:
    """Raises TypeError if numbers of the dtype `given`, stored as `dtype`, would lose their imaginary parts."""
    if jnp.issubdtype(given, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"dtype {dtype} would drop the imaginary parts of a {given} matrix; take its real part, or a complex dtype"
        )


def whole_number(name: str, value: Any, least: int | None = 0) -> int:
    """The argument `name` as an int, from an integer of Python, NumPy or JAX, or an array without dimensions.

    TypeError: another value, such as 125.0 or True. ValueError: below `least`.
    """
    try:
        if _is_bool(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number; got {value!r}; pass an int") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    return number


def check_max_bytes(max_bytes: Any) -> None:
    """Raises TypeError if `max_bytes` is no number, ValueError if it is NaN or negative; infinity is allowed."""
    if isinstance(max_bytes, bool | np.bool_) or not isinstance(max_bytes, numbers.Real | None):
        raise TypeError(f"max_bytes must be a number of bytes, say 10**9; got {max_bytes!r}")
    if max_bytes is not None and (math.isnan(max_bytes) or max_bytes < 0):
        raise ValueError(f"max_bytes must be a number of bytes from 0 up, say 10**9; got {max_bytes}")


def real_number(name: str, value: Any) -> float:
    """The argument `name` as a float, from a real number of Python, NumPy or JAX, or an array without dimensions.

    TypeError: another value, such as None, "1e-6", True, 1j or [1e-6].
    """
    try:
        if _is_bool(value) or isinstance(value, (str, bytes)) or np.ndim(value) != 0 or np.iscomplexobj(value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be one real number; got {value!r}") from None


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or getattr(value, "dtype", None) == np.bool_


def user_cache() -> Path | None:
    """The folder of this library in the user's cache folder, by default `~/.cache`; None for a user without a home."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():  # as the XDG specification asks
        folder = Path(os.path.expanduser("~")) / ".cache"
    return folder / "jaxsparse" if folder.is_absolute() else None


def exposed(folder: Path) -> str:
    """How users beside this one and root could change what a folder holds; empty where they could not.

    As sshd's StrictModes asks, every folder on the way belongs to the user or root, and nobody else can write to it. A
    sticky one, such as /tmp, may lie on the way: there only owners rename. The walk begins at the root, so that nobody
    else can change a part once it is checked. OSError: there is no such folder.
    """
    if not hasattr(os, "geteuid"):  # on Windows, where modes do not tell who may write, every folder is trusted
        return ""
    last = folder.stat()  # raises for a circle of links
    for part in _way(folder.absolute()):
        about = part.lstat()
        if about.st_uid not in (0, os.geteuid()):
            return f"{part} belongs to user {about.st_uid}"
        if foreign(about):
            if not about.st_mode & stat.S_ISVTX:
                return f"others can write to {part} (chmod go-w '{part}' ends that)"
            if os.path.samestat(about, last):
                return f"others can write to {part}"
    return ""


def _way(path: Path) -> Iterator[Path]:
    """The folders and links that lead to an absolute path, from the root, and those to which its links lead."""
    for part in (*reversed(path.parents), path):
        yield part
        if part.is_symlink():
            yield from _way(part.parent / os.readlink(part))


def foreign(about: os.stat_result) -> bool:
    """Whether users beside this one and root could write a file; on Windows no."""
    if not hasattr(os, "geteuid"):
        return False
    writable = about.st_mode & 0o022 and not stat.S_ISLNK(about.st_mode)  # the modes of links mean nothing
    return about.st_uid not in (0, os.geteuid()) or bool(writable)


def read_private(path: Path) -> bytes:
    """The content of a file that only the user and root could write. OSError: it is none, or others could write it."""
    if reason := exposed(path.parent):
        raise PermissionError(reason)
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no link, and no wait for a pipe
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
        about = os.fstat(file.fileno())
        if foreign(about) or not stat.S_ISREG(about.st_mode):
            raise PermissionError(f"others can write to {path}")
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Writes a file for `read_private`, whole or not at all, whatever the umask; a link at its place is replaced."""
    with _moved_to(path, 0o644) as file:
        file.write(content)


def make_private(folder: Path) -> None:
    """Makes a folder and its parents where they are missing, for the user alone (`Path.mkdir` opens the parents)."""
    for part in (*reversed(folder.parents), folder):
        part.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file beside `path` that replaces it when the block succeeds, and is removed when the block fails.

    Pipes and devices stay, and get the bytes of a block that succeeds.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file, tempfile.TemporaryFile() as scratch:  # in which the block may seek
            yield scratch
            scratch.seek(0)
            shutil.copyfileobj(scratch, file)
        return
    with _moved_to(Path(os.path.realpath(path)), 0o666) as file:  # a link stays a link
        yield file


@contextlib.contextmanager
def _moved_to(target: Path, mode: int) -> Iterator[BinaryIO]:
    """A file of this mode, less the umask, that becomes `target` when the block succeeds."""
    scratch = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(scratch, "xb", opener=functools.partial(os.open, mode=mode)) as file:
            yield file
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)


def index_dtype(size: int) -> Any:
    """int32 if it can count to `size`, else int64."""
    return np.int32 if size < 2**31 else np.int64


def x64_enabled() -> bool:
    """Whether JAX holds 64-bit numbers at present."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def as_vector(x: Any, A: Any, axis: int, what: str) -> jax.Array:
    """x as an array that the matrix A, or with axis 0 its transpose, can multiply.

    ValueError, which begins with `what`: another shape. TypeError: not a numeric array.
    """
    if hasattr(x, "to_scipy") or scipy.sparse.issparse(x) or of_jax_sparse(x):
        raise TypeError(
            f"the product with a sparse matrix takes one of this library, got {type(x).__name__}; convert it by "
            "from_scipy or from_bcoo"
        )
    x, n = as_floating(x, "the vector", A.dtype), A.shape[axis]
    if x.ndim not in (1, 2) or x.shape[0] != n:
        hint = "; map over further axes with jax.vmap" if x.ndim > 2 else ""
        raise ValueError(f"{what} of shape ({n},) or ({n}, p); got {x.shape}{hint}")
    return x


def check_choice(name: str, value: Any, choices: Iterable[str], more: str = "") -> None:
    """ValueError, which lists the choices and the one that is spelt most like `value`, if `value` is none of them.

    Args:
      more: what else the argument takes, for the text.
    """
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name} must be one of {', '.join(known)}{more}; got {value!r}{did_you_mean(value, known)}")


def nearest(value: Any, choices: Iterable[str]) -> str:
    """The choice that is spelt most like `value`; "" where none is spelt alike."""
    return next(iter(difflib.get_close_matches(str(value), list(choices), 1)), "")


def did_you_mean(value: Any, choices: Iterable[str]) -> str:
    """`; did you mean 'csr'?`, or nothing where no choice is spelt alike."""
    near = nearest(value, choices)
    return f"; did you mean {near!r}?" if near else ""


def readable_bytes(n: float) -> str:
    """A count of bytes for people, in powers of ten: `87.6 MB`."""
    if abs(n) < 999.5:
        return f"{n:.0f} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if abs(n) < 999.5 * scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n / 1e12:.3g} TB"


def readable_seconds(seconds: float) -> str:
    """A time for people: `830 µs`, `12.3 ms`, `4.56 s`."""
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
