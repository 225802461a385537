"""`convert` keeps every entry, whatever the kinds of file."""

import io
import sys

import numpy as np

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
