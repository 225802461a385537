"""The compiled programs for 64 and 512 devices: nothing grows with them, and a step waits as seldom as it can."""

import json

import pytest

from tests.process import printed


def compiled_for(devices: int, what: str) -> tuple[int, int, dict]:
    """The rows of a device, the rounds of the exchange, and the facts of the programs."""
    facts = json.loads(printed("-m", "tests.distributed.programs", devices, what, seconds=900, JAX_PLATFORMS="cpu"))
    return facts["n"] // devices, facts["rounds"], facts["programs"]


@pytest.fixture(scope="module", params=[(64, "boxes"), (512, "boxes")], ids=str)
def compiled(request):
    return compiled_for(*request.param)


@pytest.mark.deep
def test_no_device_makes_or_moves_more_than_its_share(compiled):
    """A row has 5 entries. A gradient by them takes them to the boxes in rounds as long as their longest message."""
    share, _, programs = compiled
    for name, of in programs.items():
        assert of["collectives"]["all-gather"] == of["collectives"]["all-to-all"] == 0
        assert of["moved"] <= 4 * share, name
        # A row has 8 numbers of its block.
        assert of["longest"] <= {"gradient": 40, "block_jacobi": 9, "coarse_space": 9}.get(name, 7) * share, name


@pytest.mark.deep
def test_a_step_exchanges_once_and_adds_up_twice_or_once(compiled):
    _, rounds, programs = compiled
    sums_of = {"cg": 1, "with M": 2, "one reduction": 1, "block_jacobi": 2, "schwarz": 2}
    for name, sums in ((name, sums) for name, sums in sums_of.items() if name in programs):
        step = programs[name]["loops"][0]  # the innermost; the others restart, and examine a failure
        assert step["all-reduce"] == sums and step["collective-permute"] == rounds
    step = min(programs["least squares"]["loops"], key=lambda step: step["collective-permute"])
    assert step["collective-permute"] == 2 * rounds and step["all-reduce"] == 2
    steps = programs["gradient"]["loops"]
    assert all(step["all-reduce"] <= 2 for step in steps)
    *others, examines = sorted(steps, key=lambda step: -step["collective-permute"])
    assert min(step["collective-permute"] for step in others) == rounds  # in a step of either solve
    assert all(step["collective-permute"] in (rounds, 2 * rounds) for step in others)  # a start takes a product, too
    assert examines["collective-permute"] in (0, rounds)  # the look at a failure may take no product
    assert rounds <= 4  # as many as a box has neighbours
