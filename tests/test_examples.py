"""The programs in examples/ and the code in the documents run as they stand."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import jaxsparse_fmt as jsf

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SNIPPETS = {p.name: re.findall(r"```python\n(.*?)```", p.read_text(encoding="utf-8"), re.DOTALL) for p in DOCUMENTS}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.deep
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path):
    done = run(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_formats_example_reads_a_file_and_speaks_of_every_format(tmp_path):
    jsf.io.write_mtx(tmp_path / "small.mtx", jsf.gallery.poisson(4))
    done = run("examples/formats.py", str(tmp_path / "small.mtx"))
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == list(jsf.FORMATS)


@pytest.mark.parametrize("name", [name for name, snippets in SNIPPETS.items() if snippets])
def test_the_code_of_a_document_runs_from_top_to_bottom(name):
    code = "\n".join(SNIPPETS[name])
    done = run("-c", code)
    assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_the_readme_has_code():
    assert SNIPPETS["README.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_every_file_that_a_document_links_to_exists(path):
    links = re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert not [link for link in links if not (path.parent / link).exists()]
