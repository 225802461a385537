"""How cg scales, on tiny matrices: what one device and several are timed with."""

import pytest

from benchmarks import scaling
from jaxsparse_fmt.choose import ranking

POISSON = scaling.stencil((16, 16, 16), 7)


@pytest.mark.parametrize(("is_weak", "efficiency"), [(True, 1.0), (False, 0.5)], ids=["weak", "strong"])
def test_efficiencies_are_against_that_one(is_weak, efficiency, monkeypatch):
    monkeypatch.setattr(scaling, "seconds_per_step", lambda *args, **options: 1e-3)
    rows = list(scaling.Bench([1, 2], ["overlap"], small=True).steps(lambda count: POISSON, is_weak))
    assert [row["devices"] for row in rows] == [1, 2, 2]
    assert [row["efficiency"] for row in rows] == [1.0, *[efficiency] * 2]
    first = ranking.rank(POISSON.rows_of(0, POISSON.n))[0].format
    assert [row["format"].partition(" ")[0] for row in rows] == [first] * 3


@pytest.mark.deep
def test_multigrid_runs_on_several_devices(capsys):
    assert scaling.main(["--small", "--only", "multigrid", "--devices", "1,2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("CONVERGED") == 2
