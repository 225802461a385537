"""Every public function has an example in its docstring, and every public name one in docs/reference.md; all run."""

import doctest
import inspect
import pathlib
import re

import jax
import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("matplotlib")
import jaxsparse as js
from docs import assemble, docstrings

FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for _, named in assemble.API.values()
    for module, names in named.items()
    for name in names.split()
    if not isinstance(getattr(module, name), type)
}

PAGE = (assemble.ROOT / "docs/reference.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))


def test_every_public_name_occurs_in_an_example_of_the_page():
    run = "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)$", CODE, re.MULTILINE))
    pinned = (assemble.ROOT / "tests/public_api.txt").read_text(encoding="utf-8").splitlines()
    last = {re.match(r"[\w.|]+", line)[0].rpartition(".")[2] for line in pinned if line}
    by_signs = {name for name in last if name.startswith("__")}  # operators, which examples use by their signs
    assert sorted(name for name in last - by_signs if not re.search(rf"\b{name}\b", run)) == []


def test_every_public_function_has_an_example_and_describes_its_arguments_only():
    texts = {name: inspect.getdoc(f) or "" for name, f in FUNCTIONS.items()}
    assert [name for name, text in texts.items() if "\nExamples:\n  >>> " not in text] == []
    assert [name for name, text in texts.items() if docstrings.not_arguments(FUNCTIONS[name], text.splitlines())] == []
    wrong = "Adds.\n\nArgs:\n  a, *rest: numbers.\n    The rest: as a.\n  The others: as in `cg`.\n\nNo: x."
    assert docstrings.not_arguments(lambda a, *rest: None, wrong.splitlines()) == ["The others"]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the examples use, as `assemble.EXAMPLES_USE` tells it to readers."""
    found = {"jax": jax, "jnp": jax.numpy, "np": np, "sp": sp, "js": js}
    found["folder"] = pathlib.Path(tmp_path_factory.mktemp("examples"))
    wide = jax.config.jax_enable_x64
    exec(assemble.EXAMPLES_USE, found)
    yield found
    jax.config.update("jax_enable_x64", wide)


@pytest.mark.deep
@pytest.mark.parametrize("name", [*FUNCTIONS, "docs/reference.md"])
def test_an_example_runs_as_printed(name, names, capsys):
    text, known = (inspect.getdoc(FUNCTIONS[name]) or "", dict(names)) if name in FUNCTIONS else (CODE, {})
    example = doctest.DocTestParser().get_doctest(text, known, name, None, 0)
    assert example.examples and doctest.DocTestRunner(verbose=False).run(example).failed == 0, capsys.readouterr().out
