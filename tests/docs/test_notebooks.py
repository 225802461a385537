"""The notebooks are those that docs/notebooks.py makes of the examples, with all their code and no outputs."""

import ast
import json

import pytest

from docs import notebooks


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_stored_notebook_is_that_of_its_example(name):
    stored = (notebooks.EXAMPLES / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert stored == notebooks.notebook(name), "run python docs/notebooks.py"


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_has_the_code_of_its_example(name):
    code = ["".join(c["source"]) for c in json.loads(notebooks.notebook(name))["cells"] if c["cell_type"] == "code"]
    script = (notebooks.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    in_script, in_cells = ast.parse(script).body[1:-1], ast.parse("\n".join(code[1:-1])).body
    assert list(map(ast.dump, in_cells)) == list(map(ast.dump, in_script))
    assert "main()" in code[-1].splitlines()
