"""`convert` keeps every entry, whatever the kinds of file."""

import io
import sys

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.cli import main
from jaxsparse_fmt.io import files
from tests.cli.conftest import POISSON


class Piped(io.TextIOWrapper):
    """Standard output that keeps its bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)


def test_convert_there_and_back_keeps_every_entry(poisson: str, tmp_path, monkeypatch, capsys):
    stored, back = str(tmp_path / "a.npz"), str(tmp_path / "b.mtx.gz")
    assert main.main(["convert", poisson, stored, "--format", "sell", "--dtype", "float32"]) == 0
    assert "216 × 216" in capsys.readouterr().out
    A = jsf.load(stored)
    assert A.name == "sell" and A.dtype == np.float32
    assert main.main(["convert", stored, back]) == 0
    assert (files.read_scipy(back) != POISSON).nnz == 0
    out = Piped()
    monkeypatch.setattr(sys, "stdout", out)
    assert main.main(["convert", back, "-"]) == 0
    assert (files.read_scipy(io.BytesIO(out.buffer.getvalue())) != POISSON).nnz == 0


@pytest.mark.parametrize(("out", "text"), [("a.txt", r"end it in .mtx"), ("missing.mtx", "overwrite the input")])
def test_a_file_that_cannot_be_written_is_refused_before_reading(out: str, text: str, capsys):
    assert main.main(["convert", "missing.mtx", out]) == 2
    assert text in capsys.readouterr().err


def test_a_file_that_no_save_wrote_is_named(tmp_path, capsys):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    assert main.main(["info", str(tmp_path / "a.npz")]) == 2
    assert "a.npz" in capsys.readouterr().err.splitlines()[-1]
