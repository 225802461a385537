"""`jaxsparse scale` and `solve --devices` as a user meets them, on eight devices of the CPU."""

import argparse
import dataclasses
import pathlib
import re

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt import gallery, plot
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.cli import main, measure, scale
from jaxsparse_fmt.io import files
from jaxsparse_fmt.models import traffic
from solvers import cg

POISSON = gallery.poisson(8)


@pytest.fixture
def poisson(tmp_path: pathlib.Path) -> str:
    files.write_mtx(tmp_path / "poisson.mtx", POISSON)
    return str(tmp_path / "poisson.mtx")


def lines(out: str) -> dict[str, list[str]]:
    """The table's cells by the number of devices; two blanks part them."""
    found = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return {row[0]: row[1:] for row in found if row[0].replace(",", "").isdigit()}


def test_scale_prints_the_models_steps(poisson, capsys):
    assert (
        main.main(["scale", poisson, "--devices", "1,8,1024", "--memory", "1", "--link", "0.01", "--by", "rows"]) == 0
    )
    rows = lines(capsys.readouterr().out)
    assert list(rows) == ["1", "8", "1,024"]
    assert rows["1"][:2] == ["512", "0"] and rows["1"][-1] == "1.00"
    assert rows["8"][:2] == ["64", "128"] and rows["8"][3] == "permute"  # a plane of 64 a device, one from each side
    load = traffic.Load(8, 64, 448, near=128, boundary=64, collectives=2, entry_bytes=12)
    machine = traffic.Machine(memory=1e9, link=1e7)
    assert rows["8"][5] == f"{1e6 * traffic.cg_step(load, machine).exchange:.3g} µs"


@pytest.mark.deep
def test_scale_measures_where_devices_exist_and_draws(poisson, tmp_path, capsys):
    picture = ["--plot", str(tmp_path / "scale.png")] if plot.available() else []
    assert main.main(["scale", poisson, "--devices", "1,4,64", "--measure", *picture]) == 0
    rows = lines(capsys.readouterr().out)
    assert rows["1"][-1] == "1.00" and float(rows["4"][-1]) > 0 and rows["64"][-2:] == ["-", "-"]
    assert all(pathlib.Path(path).stat().st_size > 10_000 for path in picture[1:])


def asked(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scale.add_arguments(parser)
    return parser.parse_args(["FILE", *options])


def test_shards_are_predicted_in_the_format_that_ranks_first():
    S = gallery.poisson(16)
    first = ranking.rank(S, np.float64, "gpu")[0]
    points = scale.points(S, asked("--devices", "1,2"), np.dtype(float))
    assert first.format == "sdia" and [p.load.entry_bytes for p in points] == [first.nbytes / S.nnz] * 2


def test_each_form_of_cg_is_predicted_and_cycles_add_to_it():
    """On eight devices with a slow network, where sums and exchanges dominate."""
    of = {m: scale.points(POISSON, asked("--devices", "1,8", "--method", m), np.dtype(float)) for m in scale.METHODS}
    cg, merged, multigrid = ([p.step for p in points] for points in of.values())
    assert merged[1].seconds < cg[1].seconds < multigrid[1].seconds
    assert merged[1].reductions == cg[1].reductions / 2
    assert all(point.halo_share == 0 for point, _ in of.values()) and all(0 < p.halo_share < 1 for _, p in of.values())
    one, eight = of["cg"]
    best = ranking.rank(POISSON, float, "gpu")[0]
    assert one.memory == best.nbytes + best.unread + 8 * 9 * 512
    assert one.memory / 8 < eight.memory < one.memory / 4  # 64 rows a device, and a halo of two planes of 64


@pytest.mark.parametrize("method", ["cg", "one_reduction"])
def test_a_solve_holds_as_many_vectors_as_the_prediction_counts(method):
    S = gallery.poisson(24)
    (form, vectors), A, b = scale.METHODS[method], jsf.from_scipy(S, "csr"), np.ones(S.shape[0])
    found = jax.jit(lambda A, b: cg(A, b, one_reduction=form)).lower(A, b).compile().memory_analysis()
    held = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes - A.nbytes
    assert held / b.nbytes == pytest.approx(vectors, abs=0.5)


@pytest.fixture
def timed(monkeypatch) -> list:
    """What would be timed: the solver's options and the matrix. A step takes a millisecond."""
    seen = []
    step = lambda solver, A, b: seen.append((solver.keywords, A)) or 1e-3  # noqa: E731
    monkeypatch.setattr(measure, "seconds_per_step", step)
    return seen


def test_one_device_is_timed_as_it_is_predicted_with_two_reductions(timed):
    args = asked("--devices", "1,2", "--method", "one_reduction")
    found = scale.measured(scale.points(POISSON, args, np.dtype(float)), POISSON, args, np.dtype(float))
    assert [options["one_reduction"] for options, _ in timed] == [False, True]
    assert found[0].efficiency == 1 and scale.efficiencies(found) == [1, 0.5]


def test_the_exchange_that_is_predicted_is_the_one_that_is_timed(timed):
    args = asked("--devices", "2,4")
    for kind in ("permute", "all_to_all"):
        found = [dataclasses.replace(p, exchange=kind) for p in scale.points(POISSON, args, np.dtype(float))]
        scale.measured(found, POISSON, args, np.dtype(float))
    assert [A.shards.halo.kind for _, A in timed] == ["permute"] * 2 + ["all_to_all"] * 2


def test_unknowns_are_renumbered_on_one_device_as_on_many(timed, tmp_path):
    perm = np.random.default_rng(0).permutation(64)
    files.write_mtx(tmp_path / "chain.mtx", sp.csr_array(gallery.poisson(64, dim=1)[perm][:, perm]))
    options = ["--devices", "1,2", "--reorder", "rcm", "--measure"]
    assert main.main(["scale", str(tmp_path / "chain.mtx"), *options]) == 0
    for _, A in timed:
        at = A.to_scipy().tocoo()
        assert abs(at.row - at.col).max() == 1
    assert timed[1][1].record.imbalance.halo.tolist() == [1, 1]


def test_a_solve_too_short_to_time_leaves_the_prediction(tmp_path, capsys):
    files.write_mtx(tmp_path / "identity.mtx", sp.csr_array(sp.eye_array(40)))
    assert main.main(["scale", str(tmp_path / "identity.mtx"), "--devices", "1,2", "--measure"]) == 0
    out, err = capsys.readouterr()
    assert list(lines(out)) == ["1", "2"] and "measured" not in out
    for on in ("1 device", "2 devices"):
        assert f"identity.mtx: cg on {on} is not measured: the solver ends after 1 steps; too few to time" in err


@pytest.mark.deep
def test_solve_on_four_devices_gives_the_answer_of_one(poisson, tmp_path, capsys):
    for count in ("1", "4"):
        args = ["--devices", count, "--out", str(tmp_path / f"{count}.npy"), "--rtol", "1e-10", "--precond", "jacobi"]
        assert main.main(["solve", poisson, *args]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "4.npy"), np.load(tmp_path / "1.npy"), rtol=1e-8)
    assert re.search(
        r"^ devices +4, \w+( in \d+ rounds|: all of x)?, .* to each device", capsys.readouterr().out, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["solve", "--devices", "99"], "99 devices were asked for, and JAX sees 8: the CPU; XLA_FLAGS="),
        (["scale", "--devices", "1", "--plot", "picture.txt"], "end it in"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told_at_once(command, words, poisson, capsys):
    assert main.main([command[0], poisson, *command[1:]]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--devices", "1,0"], ["--link", "-3"], ["--per-host", "x"]], ids=str)
def test_numbers_that_make_no_sense_are_refused(option, poisson):
    with pytest.raises(SystemExit):
        main.main(["scale", poisson, *option])
