"""`import jaxsparse`: the public names of both packages under one name, each imported at its first use."""

import functools
import pathlib
import re
import subprocess
import sys

import pytest

import jaxsparse
import jaxsparse_fmt
import solvers
from jaxsparse_fmt import _elsewhere
from tests.process import ROOT, printed

MODULES = {path.stem for path in (ROOT / "jaxsparse").glob("[a-z]*.py")} - {"commands", "process"}


def test_every_public_name_of_both_packages_is_the_same_object_under_the_one_name():
    both = {package: package.__all__ for package in (jaxsparse_fmt, solvers)}
    assert not set(both[jaxsparse_fmt]) & set(both[solvers])
    for package, names in both.items():
        assert not [name for name in names if getattr(jaxsparse, name) is not getattr(package, name)]
    assert set(dir(jaxsparse)) == {*both[jaxsparse_fmt], *both[solvers], "__version__", "lineax"}


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'jaxsparse' has no attribute 'bicg'"):
        _ = jaxsparse.bicg


def test_every_public_module_can_be_imported_by_its_path():
    public = {name for name in dir(jaxsparse) if isinstance(getattr(jaxsparse, name), type(sys))}
    assert public == MODULES
    code = "".join(f"import jaxsparse.{name} as m; print(m.__name__)\n" for name in sorted(MODULES))
    assert {name.rpartition(".")[2] for name in printed("-c", code).split()} == MODULES


def test_the_import_itself_imports_no_library():
    told = printed("-c", "import sys, jaxsparse; print(*sys.modules)").split()
    assert not {"jax", "numpy", "scipy", "jaxsparse_fmt", "solvers"} & set(told)


def in_a_folder_with_solvers(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python, run where a user keeps a `solvers.py`; the path leads to the repository after that folder."""
    (folder / "solvers.py").write_text("mine = 1\n")
    path = f"import sys; sys.path.append({str(ROOT)!r}); "
    arguments = ("-c", path + arguments[1]) if arguments[0] == "-c" else arguments
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_solvers_file_of_the_user_does_not_hide_ours(tmp_path):
    done = in_a_folder_with_solvers(tmp_path, "-c", "import jaxsparse as js; print(js.cg, js.precond.jacobi)")
    assert done.returncode == 0 and "cg" in done.stdout, done.stderr


def test_a_solvers_file_of_the_user_that_is_imported_first_is_named_in_the_error(tmp_path):
    done = in_a_folder_with_solvers(tmp_path, "-c", "import solvers, jaxsparse as js; js.gallery; js.cg")
    assert str(tmp_path / "solvers.py") in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("ImportError")


def test_the_command_runs_in_a_folder_with_a_solvers_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = in_a_folder_with_solvers(tmp_path, "-m", "jaxsparse", "doctor")
    assert done.returncode == 0, done.stderr
    assert "solve on" in done.stdout


@pytest.mark.parametrize("line", ["--version", "solve --help", "sovle A.mtx", "solve A.mtx --rtoll 1", ""])
def test_a_command_line_that_runs_nothing_imports_no_library(line):
    code = "import sys; from jaxsparse import commands\ntry: commands.parse(sys.argv[1:])\nexcept SystemExit: pass\n"
    told = printed("-c", code + "print(*sys.modules)", *line.split()).splitlines()[-1].split()
    assert not {"jax", "numpy", "scipy", "jaxsparse_fmt", "solvers", "rich"} & set(told)


def test_are_names_of_other_libraries_answered_with_calls_that_exist():
    for name, call in _elsewhere.OF_MODULES.items():
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}; use {call}")):
            getattr(jaxsparse, name)
        for path in re.findall(r"jaxsparse\.([\w.]+)\(", call):
            assert callable(functools.reduce(getattr, path.split("."), jaxsparse))
    with pytest.raises(AttributeError, match="did you mean 'multigrid'"):
        jaxsparse.precond.multigird  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'cg'"):
        jaxsparse.CG  # noqa: B018
    A = jaxsparse.eye(3)
    for call in {*_elsewhere.OF_MODULES.values(), *_elsewhere.OF_MATRICES.values()}:
        for name in re.findall(r"\bA\.(\w+)", call):
            assert hasattr(A, name) and (hasattr(A.T, name) or name == "name")
    for thing, calls in ((A, _elsewhere.OF_MATRICES), (jaxsparse.cg(A, [1.0, 2.0, 3.0]), _elsewhere.OF_SOLUTIONS)):
        for name, call in calls.items():
            with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}; use {call}")):
                getattr(thing, name)
