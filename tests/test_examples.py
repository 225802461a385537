"""The programs in examples/ and the code in the documents run as they stand."""

import ast
import builtins
import importlib.util
import json
import pathlib
import re

import numpy as np
import pytest

from tests.process import ROOT, printed

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
# Code, and what it prints: a block of text behind it.
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
SNIPPETS = {p.name: SNIPPET.findall(p.read_text(encoding="utf-8")) for p in DOCUMENTS}
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")
OPTIONAL = ("equinox", "optax", "orbax", "skfem")  # without them, examples that need them do not run
IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
# They set flags of JAX, or connect processes, which only a process without devices yet can do.
FIRST = ("eight_devices", "multi_host", "many-gpus.md")

# Programs in one process, since importing JAX takes most of the time of one; two of its settings are reset in between.
IN_TURN = """
import contextlib, io, json, os, runpy, sys, traceback
told = []
for path in sys.argv[1:]:
    sys.argv, out = [path], io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(path, run_name="__main__")
        told.append([path, out.getvalue(), ""])
    except BaseException:
        told.append([path, out.getvalue(), traceback.format_exc()])
    import jax  # after the first program, which may set flags that JAX reads once
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))
print(json.dumps(told))
"""


def outputs(paths: list[pathlib.Path]) -> dict[str, str]:
    """What each program prints; none of them fails."""
    paths = sorted(paths, key=lambda path: path.stem not in FIRST)
    told = []
    for some in (paths[:1], paths[1:]):
        told += json.loads(printed("-c", IN_TURN, *some, seconds=900).splitlines()[-1])
    assert not any(error for *_, error in told), "\n".join(f"{path}: {error}" for path, _, error in told if error)
    return {path: out for path, out, _ in told}


def alike(told: str, shown: str) -> bool:
    """The same words and layout of lines, numbers within a tenth; those below 1e-4 are rounding errors, all alike."""
    texts = [[" ".join(line.split()) for line in text.strip().splitlines()] for text in (told, shown)]
    words = [[re.sub(r"([\[(]) ", r"\1", NUMBER.sub("#", line)) for line in lines] for lines in texts]
    numbers = [np.array(NUMBER.findall(" ".join(lines)), float) for lines in texts]
    return words[0] == words[1] and np.allclose(*numbers, rtol=0.1, atol=1e-4)


@pytest.mark.deep
def test_every_example_runs_and_prints():
    absent = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
    here = [p for p in EXAMPLES if not absent & {*re.findall(IMPORTED, p.read_text("utf-8"))}]
    assert len(here) > len(EXAMPLES) / 2
    told = outputs(here)
    assert len(told) == len(here) and all(told.values())


@pytest.mark.deep
def test_the_code_of_every_document_runs_from_top_to_bottom_and_prints_what_stands_there(tmp_path):
    programs = [tmp_path / f"{name}.py" for name, snippets in SNIPPETS.items() if snippets]
    for program in programs:
        code = [code for code, _ in SNIPPETS[program.stem]]
        program.write_text("\nprint('\\f')\n".join(code), encoding="utf-8")
    wrong = []
    for path, out in outputs(programs).items():
        snippets = SNIPPETS[pathlib.Path(path).stem]
        for (code, shown), told in zip(snippets, out.split("\f"), strict=True):
            if not alike(told, shown):
                wrong.append(f"{path}:\n{code}prints\n{told}and not\n{shown}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", ["tasks.md", "time-and-newton.md"])
def test_a_section_of_recipes_needs_nothing_but_the_first_lines_of_its_page(page):
    first, *sections = (ROOT / "docs" / page).read_text("utf-8").split("\n## ")
    for section in sections:
        nodes = [*ast.walk(ast.parse("".join(code for code, _ in SNIPPET.findall(f"{first}\n## {section}"))))]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {*vars(builtins)}
        made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        made |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
        assert {node.id for node in names} - made == set(), section.partition("\n")[0]


def test_the_code_of_a_document_fits_the_column_of_a_page():
    lines = [line for snippets in SNIPPETS.values() for code, _ in snippets for line in code.splitlines()]
    assert [line for line in lines if len(line) > 80] == []


def test_every_file_that_a_document_links_to_exists():
    for path in DOCUMENTS:
        links = re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text(encoding="utf-8"))
        assert not [link for link in links if not (path.parent / link).exists()], path
