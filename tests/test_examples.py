"""The programs in examples/ and the code in the documents run as they stand."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SNIPPETS = {p.name: re.findall(r"```python\n(.*?)```", p.read_text(encoding="utf-8"), re.DOTALL) for p in DOCUMENTS}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.deep
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path):
    for module in re.findall(r"^(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
        pytest.importorskip(module)
    done = run(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.deep
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
