"""Arrays of numbers in one uncompressed `.npz` file, written whole or not at all; each has a checksum (CRC-32)."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from jaxsparse_fmt._types import replacing


def write_arrays(path: Path, **arrays: Any) -> None:
    """Writes arrays by name."""
    with replacing(path) as file:
        np.savez(file, **arrays)


def content_of(**arrays: Any) -> bytes:
    """The content of a file of arrays; the same arrays give the same bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays with these names, [n] each. Nothing in the file is trusted.

    Raises:
      FileNotFoundError: no such file. ValueError: the file is damaged, or has no such arrays.
    """
    with open(path, "rb") as content:
        try:
            with zipfile.ZipFile(content) as file:
                return {name: _array(path, file, name) for name in names}
        # Damaged bytes may look like an encrypted file, another version of zip or an offset before the file.
        except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, OSError, RuntimeError) as error:
            raise broken(path, f"it is not a whole file of this library ({error})") from None


def broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: {what}; save the matrix anew")


def _array(path: Path, file: zipfile.ZipFile, name: str) -> np.ndarray:
    """A member, [n]; its size is bounded by the file's, since it must be stored without compression."""
    info = file.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise broken(path, f"{name} is compressed, or larger than the file")
    raw = file.read(info)
    stream = io.BytesIO(raw)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, EOFError):
        raise broken(path, f"{name} is no array") from None
    if dtype.hasobject or len(shape) != 1 or len(raw) - stream.tell() != shape[0] * dtype.itemsize or shape[0] < 0:
        raise broken(path, f"{name} is no array of numbers of shape {shape}")
    return np.frombuffer(raw, dtype, shape[0], stream.tell()).copy()  # SciPy sorts in place
