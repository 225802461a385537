"""docs/reference.md has an example of every public name, and its examples run as printed."""

import doctest
import pathlib
import re

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))
RUN = "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)$", CODE, re.MULTILINE))
PINNED = (ROOT / "tests/public_api.txt").read_text(encoding="utf-8").splitlines()
NAMES = sorted({re.match(r"[\w.]+", line)[0] for line in PINNED if line})
OPERATORS = {"__abs__", "__getitem__", "__iter__", "__len__", "__matmul__", "__mul__", "__neg__", "__rmatmul__"}
OPERATORS |= {"__rmul__", "__truediv__"}  # which examples use by their signs


def test_every_public_name_occurs_in_an_example():
    last = {name.rsplit(".", 1)[1] for name in NAMES} - OPERATORS
    assert sorted(name for name in last if not re.search(rf"\b{name}\b", RUN)) == []


@pytest.mark.deep  # 240 programs
def test_the_examples_run_as_printed(capsys):
    blocks = doctest.DocTestParser().get_doctest(CODE, {}, "docs/reference.md", None, 0)
    wide = jax.config.jax_enable_x64
    try:
        failed = doctest.DocTestRunner(verbose=False).run(blocks).failed
    finally:
        jax.config.update("jax_enable_x64", wide)
    assert failed == 0, capsys.readouterr().out
