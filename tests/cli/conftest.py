"""Shared by the tests of the commands: no settings of the terminal in the environment, and a small system in a file."""

import io
import pathlib

import pytest
import scipy.sparse

from jaxsparse_fmt import gallery
from jaxsparse_fmt.io import files

POISSON = gallery.poisson(6)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Else a command lists all the programs that the tests keep, where they lie in the user's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def poisson(tmp_path: pathlib.Path) -> str:
    return written(tmp_path / "poisson.mtx", POISSON)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(path: pathlib.Path, S: scipy.sparse.sparray) -> str:
    files.write_mtx(path, S)
    return str(path)
