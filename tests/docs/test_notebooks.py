"""The notebooks are those that docs/notebooks.py makes of the examples, with all their code and no outputs."""

import pytest

from docs import notebooks


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_stored_notebook_is_that_of_its_example(name):
    stored = (notebooks.EXAMPLES / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert stored == notebooks.notebook(name), "run python docs/notebooks.py"
