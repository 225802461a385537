"""`jaxsparse scale` and `solve --devices` as a user meets them, on eight devices of the CPU."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from jaxsparse_fmt import cli, gallery, io, plot, traffic

POISSON = gallery.poisson(8)


@pytest.fixture
def poisson(tmp_path: pathlib.Path) -> str:
    io.write_mtx(tmp_path / "poisson.mtx", POISSON)
    return str(tmp_path / "poisson.mtx")


def lines(out: str) -> dict[str, list[str]]:
    """The table's cells by the number of devices; two blanks part them."""
    found = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return {row[0]: row[1:] for row in found if row[0].replace(",", "").isdigit()}


def test_scale_prints_the_models_steps(poisson, capsys):
    assert cli.main(["scale", poisson, "--devices", "1,8,1024", "--memory", "1", "--link", "0.01", "--by", "rows"]) == 0
    rows = lines(capsys.readouterr().out)
    assert list(rows) == ["1", "8", "1,024"]
    assert rows["1"][:2] == ["512", "0"] and rows["1"][-1] == "1.00"
    assert rows["8"][:2] == ["64", "128"] and rows["8"][3] == "permute"  # a plane of 64 a device, one from each side
    load = traffic.Load(8, 64, 448, near=128, boundary=64, collectives=2, entry_bytes=12)
    machine = traffic.Machine(memory=1e9, link=1e7)
    assert rows["8"][5] == f"{1e6 * traffic.cg_step(load, machine).exchange:.3g} µs"


def test_scale_measures_where_devices_exist_and_draws(poisson, tmp_path, capsys):
    picture = ["--plot", str(tmp_path / "scale.png")] if plot.available() else []
    assert cli.main(["scale", poisson, "--devices", "1,4,64", "--measure", *picture]) == 0
    rows = lines(capsys.readouterr().out)
    assert rows["1"][-1] == "1.00" and float(rows["4"][-1]) > 0 and rows["64"][-2:] == ["-", "-"]
    assert all(pathlib.Path(path).stat().st_size > 10_000 for path in picture[1:])


def test_solve_on_four_devices_gives_the_answer_of_one(poisson, tmp_path, capsys):
    for count in ("1", "4"):
        args = ["--devices", count, "--out", str(tmp_path / f"{count}.npy"), "--rtol", "1e-10", "--precond", "jacobi"]
        assert cli.main(["solve", poisson, *args]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "4.npy"), np.load(tmp_path / "1.npy"), rtol=1e-8)
    assert re.search(r"^ devices +4, \w+, .* to each device", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["solve", "--devices", "99"], "99 devices were asked for, and JAX sees 8: the CPU; XLA_FLAGS="),
        (["scale", "--devices", "1", "--plot", "picture.txt"], "its name must end in"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told_at_once(command, words, poisson, capsys):
    assert cli.main([command[0], poisson, *command[1:]]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--devices", "1,0"], ["--link", "-3"], ["--per-host", "x"]], ids=str)
def test_numbers_that_make_no_sense_are_refused(option, poisson):
    with pytest.raises(SystemExit):
        cli.main(["scale", poisson, *option])
