"""Arguments that several commands share, and the checks that refuse bad input before any long work."""

import argparse
import contextlib
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import scipy

from jaxsparse.commands import PICTURES, STDIN
from jaxsparse_fmt import plot, saved
from jaxsparse_fmt._files import regular, replaceable
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.formats.canonical import canonical
from jaxsparse_fmt.io import files
from jaxsparse_fmt.kernels.backends import selection


class BadInput(Exception):
    """The command cannot use the user's input; the text names the cause and the cure."""


@contextlib.contextmanager
def blaming(path: str) -> Iterator[None]:
    """Raises the errors of reading and conversion as `BadInput` that names the file."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, ImportError) as error:
        text = str(error)
        raise BadInput(text if path in text else f"{path}: {text}") from error


def read_matrix(args: argparse.Namespace, progress: Progress) -> Csr:
    """The matrix of FILE as canonical CSR, a stage of the command; standard input and pipes are read once."""
    with progress.stage("read", args.file), blaming(args.file):
        if args.file.lower().endswith(".npz"):
            return canonical(_read_npz(args.file))
        if args.file.lower().endswith(".mat"):
            return canonical(_read_mat(args.file))
        if args.file != STDIN:
            return canonical(files.read_scipy(args.file))
        if sys.stdin is None:
            raise BadInput(f"{STDIN} is closed; name a file")
        return canonical(files.read_scipy(sys.stdin.buffer))


def _read_npz(path: str) -> Any:
    """A matrix of `save` or of `scipy.sparse.save_npz`."""
    file, is_scipys = regular(path), False
    with contextlib.suppress(Exception), zipfile.ZipFile(file) as members:  # `load` refuses what is damaged
        is_scipys = "format.npy" in members.namelist()
    if is_scipys:
        return _numeric(path, _loaded(scipy.sparse.load_npz, path, "file of scipy.sparse.save_npz"))
    with jax.enable_x64(True):
        return saved.load(path).to_scipy()


def _read_mat(path: str) -> Any:
    """The one sparse matrix of a file of MATLAB's, up to version 7.2."""
    import scipy.io

    with warnings.catch_warnings():  # SciPy 1.18 announces that it will return arrays, which suit as well
        warnings.filterwarnings("ignore", message=".*spmatrix", category=DeprecationWarning)
        found = _loaded(scipy.io.loadmat, str(regular(path)), ".mat file")
    sparse = {name: S for name, S in found.items() if scipy.sparse.issparse(S)}
    if len(sparse) != 1:
        raise ValueError(f"a .mat file with one sparse matrix is needed; this one has {', '.join(sparse) or 'none'}")
    return _numeric(path, *sparse.values())


def _loaded(load: Callable[[str], Any], path: str, kind: str) -> Any:
    try:
        return load(path)
    except OSError:
        raise
    except NotImplementedError:
        raise ValueError("a file of MATLAB 7.3, which is HDF5; write it in MATLAB by save -v7") from None
    except Exception as error:  # of whatever kind: SciPy checks little of a damaged file
        raise ValueError(f"no whole {kind} ({str(error)[:200]})") from error


def _numeric(path: str, S: Any) -> Any:
    if S.dtype.kind not in "biufc" or S.ndim != 2:
        raise ValueError(f"{path}: a matrix of numbers is needed; this one has dtype {S.dtype}, shape {S.shape}")
    return S.astype(np.float64) if S.dtype.kind in "iub" else S  # as integers of Matrix Market are read


def check_picture(out: str, *inputs: str) -> None:
    """Raises BadInput for a picture that cannot be drawn or written."""
    with blaming(out):
        plot.check_available()
    check_output(out, PICTURES, *inputs)


def check_output(
    out: str, suffixes: tuple[str, ...], *inputs: str, kind: str | None = None, piped: str | None = None
) -> str:
    """The suffix of the kind of file to write: `kind`, of --out-format, or that of the name; `piped` for "-".

    Raises BadInput for a name without one, a file that cannot be written, or one of the inputs.
    """
    if out == "-" and piped:
        if kind not in (None, piped):
            raise BadInput(f"--out-format {kind}: standard output takes {piped}; name a file")
        return f".{piped}"
    with blaming(out):
        target, _ = replaceable(out)
    if str(target) in map(os.path.realpath, inputs):
        raise BadInput(f"{out}: would overwrite the input; give it another name")
    found = f".{kind}" if kind else next((suffix for suffix in suffixes if out.lower().endswith(suffix)), None)
    if found is None:
        cure = "the name decides the kind of file; end it in"
        raise BadInput(f"{out}: {cure} {', '.join(suffixes)}{', or name a kind by --out-format' if piped else ''}")
    return found


def check_backend(args: argparse.Namespace) -> None:
    with blaming("--backend"):
        selection.resolve(args.backend, "cuda" if jax.default_backend() == "gpu" else None)


def dtype_of(args: argparse.Namespace, given: np.dtype) -> np.dtype:
    """The dtype that the user names, or else that of the files."""
    dtype = np.dtype(args.dtype or given)
    if given.kind == "c" and dtype.kind != "c":
        raise BadInput(
            f"{args.file}: --dtype {dtype} would drop the imaginary parts of the matrix or of the "
            "right-hand side; use complex64 or complex128"
        )
    return dtype


def word_length(dtype: np.dtype) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX has 64-bit numbers if `dtype` has, else 32-bit ones."""
    return jax.enable_x64(np.finfo(dtype).bits == 64)
