"""Machine code kept on disk: linked without Numba, of the same sources, never damaged, and never another user's."""

import ctypes
import importlib
import os
import signal
import threading

import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt import _files
from jaxsparse_fmt.kernels.cpu import machine_code
from tests.oracle import wide
from tests.process import printed

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
    first, imported, last = printed("-W", "error", "-c", SUM, NUMBA_CACHE_DIR=str(folder)).split()
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


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import jaxsparse as js
A = js.from_scipy(js.gallery.poisson(4, dim=2).astype("float32"), "csr", backend="xla")
for make in (js.precond.multigrid, js.precond.ilu, js.precond.incomplete_lu, js.factorized):
    try:
        make(A)
    except ImportError as error:
        assert "pip install numba" in str(error) and type(error) is ImportError, error
        print(make.__name__)
print(js.cg(A, [1.0] * 16, M=js.precond.jacobi(A)).success)
"""


def test_without_numba_what_needs_it_says_what_to_install_and_the_rest_works(tmp_path):
    told = printed("-W", "ignore", "-c", WITHOUT_NUMBA, NUMBA_CACHE_DIR=str(tmp_path)).split()
    assert told[-1] == "True" and {"ilu", "incomplete_lu"} <= set(told)


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
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(machine_code.address(make))() == 1
        assert len([*(tmp_path / "kept").glob("*.o")]) == files


def test_numba_compiles_where_no_interrupt_is_raised_and_the_caller_can_be_interrupted(tmp_path, monkeypatch):
    """An interrupt in llvmlite's callbacks would leave LLVM without a result."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    threads, goes_on = [], threading.Event()

    def make():
        threads.append(threading.current_thread())
        if len(threads) == 1:
            os.kill(os.getpid(), signal.SIGINT)  # to the process, as Ctrl-C: its first thread takes it
            goes_on.wait(60)
        return (lambda: 1), "int64()"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            machine_code.address(make)
    finally:
        signal.signal(signal.SIGINT, before)
    goes_on.set()
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(machine_code.address(make))() == 1
    assert threading.main_thread() not in threads


# What follows forges a file by compiling another function under the same name: whoever can write a file can do that.
MAKE = "def make():\n    n = number\n    return (lambda: n), 'int64()'\n"
GOOD, FORGED = 1, 666


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Runs a function as a new process would: the kept one, else one compiled to return the number."""
    (tmp_path / "sources").mkdir()
    source = tmp_path / "sources" / "numbered.py"
    source.write_text(MAKE)
    scope = {}
    exec(compile(MAKE, source, "exec"), scope)

    def run(number, folder, *key):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        scope["number"] = number
        return ctypes.CFUNCTYPE(ctypes.c_int64)(machine_code.address(scope["make"], *key))()

    machine_code._warn.cache_clear()
    yield run
    machine_code._warn.cache_clear()


def give_away(path, monkeypatch):
    """Makes a file another user's: root can, and others become another user themselves."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def set_mode(path, mode):
    os.chmod(path, mode)  # unlike mkdir and open without regard to the umask


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.parametrize("weak", ["kept", ""])
def test_a_forged_file_where_others_can_write_does_not_run(answer, tmp_path, weak, mode):
    """In a folder of such a mode, or below one; sticky folders keep others from renaming what lies below them."""
    kept = tmp_path / "parent" / "kept"
    assert answer(FORGED, kept) == answer(GOOD, kept) == FORGED  # as is right in a folder of the user
    (file,) = kept.iterdir()
    forged = file.read_bytes()
    set_mode(kept.parent / weak, mode)
    if mode == 0o1777 and not weak:
        assert answer(GOOD, kept) == FORGED
        return
    with pytest.warns(UserWarning, match=r"kernels are not kept.*others can write to .+NUMBA_CACHE_DIR") as caught:
        assert answer(GOOD, kept) == GOOD and answer(GOOD, kept, "another") == GOOD
    assert len(caught) == 1 and ("chmod go-w" in str(caught[0].message)) == (mode != 0o1777)
    assert [*kept.iterdir()] == [file] and file.read_bytes() == forged  # nothing is kept there


@pytest.mark.parametrize("weakness", ["group", "all", "link", "owner"])
def test_a_forged_file_in_a_good_folder_does_not_run_and_is_replaced(answer, tmp_path, monkeypatch, weakness):
    kept = tmp_path / "kept"
    assert answer(FORGED, kept) == FORGED
    (file,) = kept.iterdir()
    if weakness == "link":
        os.rename(file, tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif weakness == "owner":
        with monkeypatch.context() as patched:
            give_away(file, patched)
            assert answer(GOOD, kept) == GOOD
    else:
        set_mode(file, {"group": 0o664, "all": 0o646}[weakness])
    if weakness == "owner" and os.geteuid() != 0:
        return  # the whole folder was another's
    assert answer(GOOD, kept) == GOOD
    assert answer(2, kept) == GOOD and not file.is_symlink()
    if weakness == "link":
        assert (tmp_path / "elsewhere").exists()  # a file to which others led is not written


def test_a_kernel_under_the_name_of_another_does_not_run(answer, tmp_path):
    assert answer(1, tmp_path / "one", "a") == 1
    assert answer(2, tmp_path / "two", "b") == 2
    (one,), (two,) = (tmp_path / "one").iterdir(), (tmp_path / "two").iterdir()
    os.replace(one, two)
    assert answer(3, tmp_path / "two", "b") == 3


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_what_is_kept_under_any_umask_is_read_again(answer, tmp_path, umask):
    before = os.umask(umask)
    try:
        assert answer(1, tmp_path / "new" / "kept") == answer(2, tmp_path / "new" / "kept") == 1
    finally:
        os.umask(before)


def test_links_on_the_way_to_a_folder_are_followed_part_by_part(tmp_path):
    good, shared = tmp_path / "good", tmp_path / "shared"
    for folder in (good, shared, shared / "below"):
        folder.mkdir()
    (good / "link").symlink_to("../shared/below")
    (good / "here").symlink_to(good)
    (shared / "link").symlink_to(good)
    assert not any(map(_files.exposed, (good, good / "link", good / "here" / "here", shared / "link" / "link" / "..")))
    set_mode(shared, 0o777)
    told = f"others can write to {shared} (chmod go-w '{shared}' ends that)"
    assert _files.exposed(good / "link").replace("good/../", "") == told
    assert _files.exposed(shared / "link") == told  # others choose where it leads
    assert _files.exposed(good / "here" / "here") == ""
    set_mode(shared, 0o1777)
    assert _files.exposed(shared / "below") == _files.exposed(good / "link") == "" != _files.exposed(shared)


def test_a_folder_of_pythons_own_files_stays_readable_for_all(tmp_path, monkeypatch):
    cache = tmp_path / "__pycache__"
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([cache]))
    monkeypatch.setattr(machine_code, "exposed", lambda folder: "")
    old = os.umask(0o022)
    try:
        machine_code._keep("kernel.o", b"code")
    finally:
        os.umask(old)
    assert cache.stat().st_mode & 0o777 == 0o755 and (cache / "kernel.o").read_bytes() == b"code"
