"""What pyproject.toml promises: extras that exist, and packages that install away from the repository."""

import itertools
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import jaxsparse_fmt as jsf
from tests.process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NAMED = re.compile(r"jaxsparse\[([\w,\s-]+)\]|'\.\[([\w,\s-]+)\]'")


def named_in(text: str) -> set[str]:
    """The extras that a text asks for, as `jaxsparse[plot]` or as `'.[plot]'`."""
    return {name.strip() for match in NAMED.findall(text) for name in "".join(match).split(",")}


def test_every_extra_that_an_extra_a_document_or_a_message_names_exists():
    assert named_in(" ".join(itertools.chain(*EXTRAS.values()))) <= set(EXTRAS)
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.yml"), ROOT / "Makefile"]
    files += [*ROOT.glob("jaxsparse_fmt/**/*.py"), *ROOT.glob("solvers/**/*.py")]
    named = set().union(*(named_in(path.read_text(encoding="utf-8")) for path in files))
    assert {"plot", "docs"} <= named <= set(EXTRAS)


SMOKE = """
import sys
import numpy as np
import jaxsparse_fmt as jsf
import jaxsparse as js
from jaxsparse.precond import jacobi
from solvers import cg, precond
assert js.cg is cg and jacobi is precond.jacobi and js.__version__ == jsf.__version__
assert all(m.__file__.startswith(sys.prefix) for m in (js, jsf, precond)), jsf.__file__
A = jsf.from_scipy(jsf.gallery.poisson(8))
np.testing.assert_allclose(A @ np.ones(512, np.float32), A.to_scipy() @ np.ones(512), atol=1e-5)
cg(A, np.ones(512), M=precond.jacobi(A), rtol=1e-4).raise_for_status()
jsf.io.write_mtx("small.mtx", A)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the sdist, and in `again/` the wheel made of the unpacked sdist."""
    pytest.importorskip("hatchling", reason="hatchling, of the extra dev, builds the distributions")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run([*build, "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder, filter="data")
    unpacked = next(path for path in folder.iterdir() if path.is_dir())
    subprocess.run([*build, "-t", "wheel", "-d", str(folder / "again")], cwd=unpacked, check=True, capture_output=True)
    return folder


@pytest.mark.deep
def test_the_wheel_of_the_sdist_is_that_of_the_repository(built):
    direct, again = (zipfile.ZipFile(next(folder.glob("*.whl"))) for folder in (built, built / "again"))
    assert direct.namelist() == again.namelist()
    assert [info.CRC for info in direct.infolist()] == [info.CRC for info in again.infolist()]
    packages = {"jaxsparse", "jaxsparse_fmt", "solvers", f"jaxsparse-{jsf.__version__}.dist-info"}
    assert {name.split("/")[0] for name in direct.namelist()} == packages


@pytest.mark.deep
@pytest.mark.parametrize("source", [".", "again"], ids=["wheel", "sdist"])
def test_a_distribution_works_in_an_empty_environment(source, built, tmp_path):
    """Dependencies come from the environment of the tests, so that nothing is downloaded."""
    wheel = next((built / source).glob("*.whl"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "venv"], cwd=tmp_path, check=True)
    home, python = tmp_path / "venv", str(tmp_path / "venv/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    away = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    of_modules = [python, "-c", SMOKE], [python, "-m", "jaxsparse", "info", "small.mtx"]
    for command in ([str(home / "bin/jaxsparse"), "doctor"], *of_modules):
        done = subprocess.run(command, cwd=tmp_path, env=away, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "512" in done.stdout
