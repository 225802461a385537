"""`formats` lists what each format takes, and why one is refused."""

import json

import numpy as np
import pytest
import scipy.sparse

import jaxsparse_fmt as jsf
from jaxsparse_fmt.cli import main
from tests.cli.conftest import POISSON, written

pytestmark = pytest.mark.usefixtures("plain_environment")


def test_every_format_is_listed_with_its_bytes(tmp_path, capsys):
    path = written(tmp_path / "small.mtx", jsf.gallery.poisson(3, dim=2))
    assert main.main(["formats", path]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[1:] if line.strip()}
    assert list(jsf.FORMATS) == [name for name in lines if name in jsf.FORMATS]
    assert lines["csr"][-1] == "1.00" and lines["dia"][1] == "45"


def test_the_listed_layouts_build_the_storage_listed(poisson: str, capsys):
    assert main.main(["formats", poisson, "--json", "--dtype", "float32"]) == 0
    for record in json.loads(capsys.readouterr().out)["formats"]:
        A = jsf.from_scipy(POISSON, record["format"], "float32", **record["layout"])
        assert (A.n_stored, A.nbytes) == (record["n_stored"], record["nbytes"])


def test_a_format_out_of_proportion_is_listed_with_the_reason(tmp_path, capsys):
    n = 60_000
    anti = scipy.sparse.csr_array((np.ones(n), (np.arange(n), np.arange(n)[::-1])))  # an entry on each of n diagonals
    assert main.main(["formats", written(tmp_path / "anti.mtx", anti), "--json"]) == 0
    records = {r["format"]: r for r in json.loads(capsys.readouterr().out)["formats"]}
    assert "diagonals" in records["dia"]["refused"] and records["ell"]["n_stored"] == n
