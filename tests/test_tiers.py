"""What the quick tier leaves out, and that it leaves no parameter out."""

import itertools
import textwrap

import pytest

from tests.tiers import covered, covering

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 3), (4, 4), (19, 2, 4), (2, 2, 2, 2)], ids=str)
def test_a_covering_takes_every_value_and_few_combinations(sizes):
    product = [set(enumerate(row)) for row in itertools.product(*map(range, sizes))]
    kept = covering(product)
    assert set().union(*(product[i] for i in kept)) == set().union(*product)
    assert len(kept) == max(sizes)


def test_values_are_taken_equally_often():
    kept = covering([{("a", i), ("b", j)} for i in range(12) for j in range(3)])
    assert sorted(i % 3 for i in kept) == sorted([0, 1, 2] * 4)


def test_rows_beyond_a_covering_are_deep():
    rows = covered([("a", 1), ("a", 2), ("b", 1), ("b", 2)])
    assert [row.values for row in rows if not row.marks] == [("a", 1), ("b", 2)]


FILE = """
    import pytest

    @pytest.mark.parametrize("x, y", [(0, 0), (0, 1), (1, 1)])  # rows of one parametrize: all
    def test_rows(x, y): pass

    @pytest.mark.parametrize("x", [0, 1, 2])
    @pytest.mark.parametrize("y", [0, 1])
    def test_product(x, y): pass

    @pytest.mark.together("x", "y")
    @pytest.mark.parametrize("x", [0, 1, 2])
    @pytest.mark.parametrize("y", [0, 1])
    @pytest.mark.parametrize("z", [0, 1])
    def test_together(x, y, z): pass

    @pytest.mark.some(x=2)
    @pytest.mark.parametrize("x", [0, 1, 2])
    @pytest.mark.parametrize("y", [0, 1, 2])
    def test_some(x, y): pass

    @pytest.mark.some(x=2)
    @pytest.mark.parametrize("x", [0, 1, 2])
    def test_the_next_some(x): pass

    @pytest.mark.gpu
    @pytest.mark.parametrize("x", [0, 1, 2])
    @pytest.mark.parametrize("y", [0, 1])
    def test_on_a_gpu(x, y): pass

    @pytest.mark.clock
    def test_seconds(): pass
"""


def test_tests_are_deep_by_mark_or_because_others_cover_their_parameters(pytester, request):
    pytester.makeconftest("from tests.tiers import mark_deep as m\ndef pytest_collection_modifyitems(items): m(items)")
    lines = ["[pytest]", "markers ="]
    lines += [f"    {line}" for line in request.config.getini("markers")]
    pytester.makeini("\n".join(lines))
    pytester.makepyfile(textwrap.dedent(FILE))
    items, _ = pytester.inline_genitems()
    counts, some = {}, {}
    for item in items:
        kept, deep = counts.get(item.originalname, (0, 0))
        is_deep = item.get_closest_marker("deep") is not None
        counts[item.originalname] = (kept + (not is_deep), deep + is_deep)
        if not is_deep and "some" in item.originalname:
            some.setdefault(item.originalname, set()).add(item.callspec.params["x"])
    assert counts == {
        "test_rows": (3, 0),
        "test_product": (3, 3),
        "test_together": (6, 6),
        "test_some": (3, 6),
        "test_the_next_some": (2, 1),
        "test_on_a_gpu": (6, 0),
        "test_seconds": (0, 1),
    }
    assert some["test_some"] >= {0, 1} and some["test_the_next_some"] == {0, 2}
