"""The table of `reach.py`: every method, over the devices of two processes, is right or refused in words."""

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
def test_every_method_is_right_or_refused_in_words_and_none_hangs():
    port, processes = free_port(), 2
    command = "-m", "tests.distributed.reach"
    running = [started(*command, str(k), str(port), str(processes), devices=2, quick=True) for k in range(processes)]
    (code, out, err), *others = finished(running, seconds=1500)
    assert code == 0 and all(code == 0 for code, *_ in others), err[-3000:]
    rows = {row["row"]: row for row in map(json.loads, filter(lambda line: line.startswith("{"), out.splitlines()))}
    for name, row in rows.items():
        if name in REFUSED:
            assert REFUSED[name] in row["refused"], row
        else:
            assert row.get("error", 1) <= 1e-8, row
    assert len(rows) == 49
