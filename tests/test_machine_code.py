"""Machine code that is kept on disk: linked without Numba, of the same sources, and never damaged or incomplete."""

import ctypes
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt import machine_code
from tests.oracle import wide

pytest.importorskip("numba")

SUM = """
import sys, numpy as np, jaxsparse_fmt as jsf
A = jsf.from_scipy(jsf.gallery.poisson(4).astype("float32"), "csr", backend="numba")
print(float((A @ np.ones(64, "float32")).sum()), "numba" in sys.modules)
import numba
assert numba.njit(lambda x: x + 1)(1) == 2
print(float((A.T @ np.ones(64, "float32")).sum()))
"""


def sums(folder) -> tuple[float, str, float]:
    """Of a product, and of one after the import of Numba; and whether the first imported Numba."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    run = subprocess.run([sys.executable, "-W", "error", "-c", SUM], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    first, imported, last = run.stdout.split()
    return float(first), imported, float(last)


@pytest.mark.deep
def test_a_kept_kernel_needs_no_numba_and_a_damaged_one_is_compiled_anew(tmp_path):
    total = float(wide(jsf.gallery.poisson(4).sum()))
    for imported in ("True", "False"):
        assert sums(tmp_path) == (total, imported, total)
    kept = [*tmp_path.glob("*.o")]
    assert len(kept) == 2  # the product and the transposed one
    for file in kept:
        file.write_bytes(file.read_bytes()[:-100])
    assert sums(tmp_path) == (total, "True", total)


@pytest.mark.deep
def test_kernels_compile_where_no_folder_can_be_written(tmp_path):
    """And XLA's call is answered: a process of its own, in which nothing is compiled yet."""
    (tmp_path / "file").touch()
    total = float(wide(jsf.gallery.poisson(4).sum()))
    assert sums(tmp_path / "file" / "folder") == (total, "True", total)


def test_what_is_kept_on_disk_is_of_the_same_sources(tmp_path, monkeypatch):
    """The name of a file has the hash of every module from which Numba compiles."""
    (tmp_path / "kernels.py").write_text("def make():\n    return (lambda: 1), 'int64()'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    make = importlib.import_module("kernels").make
    for change, files in (("", 1), ("", 1), ("# another", 2)):
        (tmp_path / "beside.py").write_text(change)
        machine_code._machine.cache_clear()
        machine_code._addresses.clear()
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(machine_code.address(make))() == 1
        assert len([*(tmp_path / "kept").glob("*.o")]) == files


def test_code_that_refers_to_unknown_names_is_not_kept():
    """LLVM ends the process where it cannot resolve a name."""
    import numba

    made = numba.cfunc("float64(float64)")(lambda x: np.cosh(x))
    with pytest.raises(ValueError, match="unknown names"):
        machine_code._content(made, set())
