"""The table of `reach.py`: every method, over devices of one process and of two, is right or refused in words."""

import json

import pytest

from tests.distributed.test_processes import finished, free_port, started

REFUSED = {
    "idrs, refine": "method must be one of",
    "direct": "precond.schwarz, which has a factorization",
    "factorized": "precond.schwarz, which has a factorization",
    "ilu": "precond.schwarz, which has a factorization",
}


@pytest.mark.deep
@pytest.mark.parametrize(("processes", "devices"), [(1, 8), (2, 2)])
def test_every_method_is_right_or_refused_in_words_and_none_hangs(processes, devices):
    port = free_port()
    command = "-m", "tests.distributed.reach"
    running = [
        started(*command, str(k), str(port), str(processes), devices=devices, quick=True) for k in range(processes)
    ]
    (code, out, err), *others = finished(running, seconds=1500)
    assert code == 0 and all(code == 0 for code, *_ in others), err[-3000:]
    rows = {row["row"]: row for row in map(json.loads, filter(lambda line: line.startswith("{"), out.splitlines()))}
    for name, row in rows.items():
        if name in REFUSED:
            assert REFUSED[name] in row["refused"], row
        else:
            assert row.get("error", 1) <= 1e-8, row
    assert len(rows) == 49
