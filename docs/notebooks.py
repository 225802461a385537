"""Writes three of the examples as notebooks, without outputs, into examples/notebooks: python docs/notebooks.py"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("fem", "training", "pagerank")
INSTALL = """\
# "pip wheel --no-deps ." in a checkout builds the wheel. Put it beside this notebook; in Colab, upload it.
%pip install -q jaxsparse-*.whl optax scikit-fem matplotlib
import sys
sys.argv = ["notebook"]"""
SHOW = """\
sys.argv.append("picture.png")
main()
from IPython.display import Image
Image("picture.png")"""


def cells(source: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each cell: the head of the script as text, then code, cut before functions and classes."""
    tree, lines = ast.parse(source), source.splitlines()
    title, _, rest = (ast.get_docstring(tree) or "").partition("\n")
    yield "markdown", f"# {title}\n{rest}"
    yield "code", INSTALL
    starts = [min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) for node in tree.body]
    cut = [
        start
        for i, (node, start) in enumerate(zip(tree.body, starts, strict=True))
        if i and (i == 1 or isinstance(node, ast.FunctionDef | ast.ClassDef) or _is_main(node))
    ]
    for start, end in zip(cut, [*cut[1:], len(lines) + 1], strict=True):
        text = "\n".join(lines[start - 1 : end - 1]).strip()
        last = SHOW if "savefig(sys.argv[1])" in source else "main()"
        yield "code", last if text.startswith("if __name__") else text


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def notebook(name: str) -> str:
    """The notebook of an example as JSON."""
    made: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))):
        cell = {"cell_type": kind, "id": f"{name}-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


if __name__ == "__main__":
    (EXAMPLES / "notebooks").mkdir(exist_ok=True)
    for name in NAMES:
        (EXAMPLES / "notebooks" / f"{name}.ipynb").write_text(notebook(name), encoding="utf-8")
