"""Compiled programs on disk: a second process compiles nothing, the folder stays small, and no folder does harm."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache as of_jax

import jaxsparse_fmt as jsf
from jaxsparse_fmt.cli import main
from jaxsparse_fmt.io import files

ROOT = pathlib.Path(__file__).parents[1]
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows does not tell by modes who may write")
SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
# Prints how many programs were loaded and how many were compiled and stored, and a checksum of the solution.
SOLVE = """
import jax, numpy as np
heard = []
jax.monitoring.register_event_listener(lambda event, **_: heard.append(event.rpartition("/")[2]))
jax.jit(lambda x: x + 1)(1.0)  # JAX has compiled before
import jaxsparse_fmt as jsf
from solvers import cg
folder = jsf.cache()
x = np.asarray(cg(jsf.from_scipy(jsf.gallery.poisson(4)), np.ones(64), rtol=1e-4).x)
print(heard.count("cache_hits"), heard.count("cache_misses"), x.sum())
"""


def started(folder: pathlib.Path) -> subprocess.Popen[str]:
    """A process that solves a system and keeps its programs below the folder."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    environment |= {"XDG_CACHE_HOME": str(folder)}
    command, pipe = [sys.executable, "-c", SOLVE], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)


def said(process: subprocess.Popen[str]) -> tuple[int, int, float]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    loaded, compiled, total = out.split()
    return int(loaded), int(compiled), float(total)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's cache folder, of a user who has set nothing."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in zip(SETTINGS, (None, -1, 1.0, 0), strict=True):
        jax.config.update(name, value)
    of_jax.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    of_jax.reset_cache()


def compile_one(factor: float) -> None:
    np.testing.assert_array_equal(jax.jit(lambda x: factor * x)(np.ones(3)), np.full(3, factor))


def kept(folder: pathlib.Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*-cache"))


def pretended(folder: pathlib.Path, letter: str, size: int, used: float, stored: float = 0.0) -> pathlib.Path:
    """A file with the name of a program, so many seconds after the epoch used and stored."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"jit_f-{letter * 64}-cache"
    path.write_bytes(bytes(size))
    os.utime(path, (used, stored))
    return path


def test_a_second_process_compiles_nothing(tmp_path):
    loaded, compiled, first = said(started(tmp_path))
    assert loaded == 0 and compiled == len(kept(tmp_path / "jaxsparse" / "xla")) > 0
    assert said(started(tmp_path)) == (compiled, 0, first)


@pytest.mark.deep
def test_processes_at_once_do_not_disturb_each_other(tmp_path):
    answers = [said(process) for process in [started(tmp_path) for _ in range(2)]]
    assert len({total for *_, total in answers}) == 1
    loaded, compiled, _ = said(started(tmp_path))
    assert loaded > 0 and compiled == 0


def test_small_programs_are_kept_in_the_users_folder_which_only_the_user_can_open(home):
    compile_one(1.5)
    folder = jsf.cache()
    assert folder == home / "jaxsparse" / "xla" and kept(folder) == []
    compile_one(2.5)
    assert len(kept(folder)) == 1
    if os.name == "posix":
        assert folder.stat().st_mode & 0o777 == 0o700
    assert jsf.cache() == folder and len(kept(folder)) == 1


def test_the_command_line_keeps_its_programs(home, capsys):
    files.write_mtx(home / "small.mtx", jsf.gallery.poisson(3))
    assert main.main(["solve", str(home / "small.mtx")]) == 0
    assert kept(home / "jaxsparse" / "xla")


def test_a_folder_that_is_named_is_taken_and_then_stays(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    assert jsf.cache(str(home / "one")) == home / "one"
    compile_one(3.5)
    assert jsf.cache() == home / "one"
    assert jsf.cache(pathlib.Path("~/two")) == home / "two"
    compile_one(4.5)
    assert len(kept(home / "one")) == len(kept(home / "two")) == 1


def test_a_folder_of_jaxs_configuration_is_kept_and_nothing_in_it_deleted(home):
    old = pretended(home / "own", "a", 1000, used=1.0)
    jax.config.update("jax_compilation_cache_dir", str(home / "own"))
    assert jsf.cache(max_bytes=0) == home / "own"
    compile_one(5.5)
    assert old.exists() and len(kept(home / "own")) == 2 and not (home / "jaxsparse").exists()


def test_what_was_used_longest_ago_is_deleted(home):
    folder = home / "jaxsparse" / "xla"
    letters = {"a": (30.0, 1.0), "b": (10.0, 1.0), "c": (1.0, 20.0)}  # b was stored after a and used before
    a, b, c = (pretended(folder, letter, 400, *times) for letter, times in letters.items())
    note = b.with_name(b.name.replace("-cache", "-atime"))
    others = [note, folder / "my-cache", folder / f"{'f' * 64}-cache"]
    for other in others:
        other.write_bytes(bytes(5000))
    assert jsf.cache(max_bytes=1200) == folder and b.exists()
    jsf.cache(max_bytes=1199.5)
    assert [path.exists() for path in (a, b, c, *others)] == [True, False, True, False, True, True]
    jsf.cache(max_bytes=None)
    assert a.exists() and c.exists()
    jsf.cache(max_bytes=399)
    assert not a.exists() and not c.exists()


def test_the_names_of_jaxs_own_files_are_known(home):
    folder = jsf.cache()
    compile_one(6.5)
    assert folder is not None and len(kept(folder)) == 1
    jsf.cache(max_bytes=0)
    assert kept(folder) == []


def test_a_file_that_a_process_left_empty_is_removed(home):
    empty, full = (pretended(home / "jaxsparse" / "xla", letter, size, 1.0) for letter, size in (("a", 0), ("b", 1)))
    jsf.cache()
    assert not empty.exists() and full.exists()


@pytest.mark.parametrize("kind", ["below a file", "a file", "NUL", "JAX's", "no home"])
def test_where_nothing_can_be_written_one_warning_says_so_and_all_runs(home, kind, monkeypatch):
    (home / "file").write_text("not a folder")
    folder = {"a file": home / "file", "NUL": "a\0b"}.get(kind)
    if kind == "JAX's":
        jax.config.update("jax_compilation_cache_dir", str(home / "file" / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    if kind == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    before = [getattr(jax.config, name) for name in SETTINGS]
    with pytest.warns(
        UserWarning, match=r"compiled programs are not kept: .+; name a folder that only you can"
    ) as caught:
        assert jsf.cache(folder) is None
    assert len(caught) == 1 and caught[0].filename == __file__
    assert [getattr(jax.config, name) for name in SETTINGS] == before
    if kind != "JAX's":  # where JAX warns at each program
        compile_one(7.5)


@posix
@pytest.mark.parametrize("kind", ["named", "default", "below"])
def test_programs_in_a_folder_that_others_can_write_to_are_not_loaded(home, kind):
    folder = {"named": home / "named", "default": home / "jaxsparse" / "xla", "below": home / "shared" / "own"}[kind]
    folder.mkdir(parents=True)
    os.chmod(folder.parent if kind == "below" else folder, 0o777)
    with pytest.warns(UserWarning, match=r"are not kept: others can write to .+ \(chmod go-w .+\); name a folder"):
        assert jsf.cache(None if kind == "default" else folder) is None
    compile_one(8.5)
    assert getattr(jax.config, SETTINGS[0]) is None and kept(folder) == []


@posix
def test_a_folder_that_people_share_by_jaxs_configuration_is_theirs(home):
    (home / "own").mkdir()
    os.chmod(home / "own", 0o777)
    jax.config.update("jax_compilation_cache_dir", str(home / "own"))
    assert jsf.cache() == home / "own"


@posix
def test_programs_that_others_could_have_written_are_deleted(home):
    folder = home / "named"
    closed, opened = (pretended(folder, letter, 400, 1.0) for letter in "ab")
    for file, mode in ((closed, 0o644), (opened, 0o664)):
        os.chmod(file, mode)
    os.chmod(folder, 0o700)  # where nobody else may enter, as in those that `cache` makes, modes of files do not matter
    jsf.cache(folder, max_bytes=None)
    assert closed.exists() and opened.exists()
    os.chmod(folder, 0o755)
    jsf.cache(folder, max_bytes=None)
    assert closed.exists() and not opened.exists()


@posix
@pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="only root can give a file away")
def test_programs_of_other_users_are_deleted(home):
    other = pretended(home / "named", "a", 400, 1.0)
    os.chown(other, 12345, -1)
    os.chmod(home / "named", 0o700)
    jsf.cache(home / "named", max_bytes=None)
    assert not other.exists()


@posix
def test_under_any_umask_the_folder_is_trusted_the_next_time(home):
    before = os.umask(0)
    try:
        for number in range(2):
            assert jsf.cache() == home / "jaxsparse" / "xla" and len(kept(home / "jaxsparse" / "xla")) == number
            compile_one(9.5)
    finally:
        os.umask(before)


def test_the_command_line_says_it_in_one_line_and_works(home, monkeypatch, capsys):
    files.write_mtx(home / "small.mtx", jsf.gallery.poisson(3))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "small.mtx"))
    assert main.main(["info", str(home / "small.mtx")]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxsparse: ")]
    assert len(told) == 1 and told[0].startswith("jaxsparse: compiled programs are not kept: ")


def test_where_jaxs_cache_is_switched_off_nothing_is_kept(home):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert jsf.cache() is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("value", [-1, float("nan"), "1 GB", True, 1j])
def test_a_limit_that_is_no_number_of_bytes_is_refused(home, value):
    error = ValueError if value == -1 or value != value else TypeError
    with pytest.raises(error, match=r"max_bytes must be a number of bytes.*say 10\*\*9; got .+"):
        jsf.cache(max_bytes=value)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("value", ["", "gs://bucket/programs", 3, True, b"programs"])
def test_a_folder_that_is_no_folder_here_is_refused(home, value):
    error = ValueError if isinstance(value, str) else TypeError
    with pytest.raises(error, match=r"folder must .*say '~/programs'; got " + repr(value)):
        jsf.cache(value)
