"""The programs in examples/ and the code in the documents run as they stand."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SNIPPETS = {p.name: re.findall(r"```python\n(.*?)```", p.read_text(encoding="utf-8"), re.DOTALL) for p in DOCUMENTS}
OPTIONAL = ("equinox", "optax", "orbax", "skfem")  # without them, examples that need them do not run
IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
# They set flags of JAX, or connect processes, which only a process without devices yet can do.
FIRST = ("eight_devices", "multi_host")

# Programs in one process, since importing JAX takes most of the time of one; two of its settings are reset in between.
IN_TURN = """
import contextlib, io, os, runpy, sys, traceback
for path in sys.argv[1:]:
    sys.argv, out = [path], io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(path, run_name="__main__")
        print(path, "printed", len(out.getvalue()))
    except BaseException:
        print(path, "failed", traceback.format_exc())
    import jax  # after the first program, which may set flags that JAX reads once
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))
"""


def told_in_turn(paths: list[pathlib.Path]) -> list[str]:
    command = [sys.executable, "-c", IN_TURN, *map(str, paths)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


@pytest.mark.deep
def test_every_example_runs_and_prints():
    absent = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
    here = [p for p in EXAMPLES if not absent & {*re.findall(IMPORTED, p.read_text("utf-8"))}]
    assert len(here) > len(EXAMPLES) / 2
    here.sort(key=lambda path: path.stem not in FIRST)
    told = [*told_in_turn(here[:1]), *told_in_turn(here[1:])]
    assert len(told) == len(here) and all(re.fullmatch(r".* printed [1-9]\d*", line) for line in told), "\n".join(told)


@pytest.mark.deep
def test_the_code_of_every_document_runs_from_top_to_bottom(tmp_path):
    programs = [tmp_path / f"{name}.py" for name, snippets in SNIPPETS.items() if snippets]
    for program in programs:
        program.write_text("\n".join(SNIPPETS[program.stem]), encoding="utf-8")
    told = told_in_turn(programs)
    assert len(told) == len(programs) and all(" printed " in line for line in told), "\n".join(told)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_every_file_that_a_document_links_to_exists(path):
    links = re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert not [link for link in links if not (path.parent / link).exists()]
