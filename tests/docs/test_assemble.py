"""The pages of the site: their links lead to pages, generated parts are filled in, docstrings survive as text."""

import re

import pytest

pytest.importorskip("matplotlib")
import jaxsparse_fmt as jsf
from docs import assemble
from tests.oracle import assert_refused


def test_a_link_to_a_file_becomes_one_to_its_page_and_one_to_a_missing_file_is_an_error():
    code = "```\n[y](nowhere.md)\n```"  # stays as it is
    for target, shown in (
        *(("docs/start.md#a-gradient", "start.md#a-gradient"), ("README.md", "index.md"), ("#here", "#here")),
        *(("examples/fem.py", "examples/fem.md"), ("jaxsparse_fmt/formats", "which-format.md")),
        *(("benchmarks/spmv.py", "files/benchmarks/spmv.py"), ("https://example.org/a.md", "https://example.org/a.md")),
    ):
        copied: set[str] = set()
        assert assemble.linked(f"[x]({target}) {code}", "README.md", "index.md", copied) == f"[x]({shown}) {code}"
        assert copied == ({target} if shown.startswith("files/") else set())
    missing = lambda: assemble.linked("[x](nowhere.md)", "README.md", "index.md", set())  # noqa: E731
    assert_refused(missing, FileNotFoundError, "README.md links to nowhere.md")


def test_a_picture_of_the_readme_is_shown_on_light_and_on_dark_pages():
    text = (assemble.ROOT / "README.md").read_text(encoding="utf-8")
    copied: set[str] = set()
    shown = assemble.as_sphinx(text, copied)
    assert text.count("<picture>") == len(copied) > 0 and "<picture>" not in shown
    for name in copied:
        for look in ("light", "dark"):
            assert f"pictures/{name}_{look}.svg\n:alt: " in shown and f":class: only-{look}" in shown
            assert (assemble.charts.STATIC / f"{name}_{look}.svg").exists()


def test_every_table_of_results_is_listed_with_its_date_and_where_its_figures_come_from():
    paths, lines = assemble.results(), assemble.generated("results").splitlines()
    assert len(lines) == len(paths)
    for path, line in zip(paths, lines, strict=True):
        assert line.startswith(f"- [{path.stem}](results/{path.stem}.md): {path.stem[:10]}, "), line
        assert " JAX " in line or " computed from " in line, line


def test_every_page_of_docs_is_in_the_menu_once():
    menu = [*assemble.LEARN.split(), *assemble.DEPTH.split(), *assemble.PROJECT.split(), "reference"]
    pages = sorted(path.stem for path in (assemble.ROOT / "docs").glob("*.md"))
    assert sorted(menu) == pages


def test_every_public_function_and_class_is_on_one_page_of_the_reference():
    shown = [(module, name) for _, named in assemble.API.values() for module in named for name in named[module].split()]
    public = {(module, name) for module in {module for module, _ in shown} for name in getattr(module, "__all__", ())}
    public = {(module, name) for module, name in public if callable(getattr(module, name))}
    assert len(set(shown)) == len(shown)
    assert public - {*shown} == {(jsf, "Choice"), (jsf.io, "read_mtx")}  # which the other module has, too


def test_every_file_that_contributing_names_exists():
    text = (assemble.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = ("jaxsparse", "jaxsparse_fmt", "solvers", "benchmarks", "docs", "tests")
    files = [f"/{path}" for folder in folders for path in (assemble.ROOT / folder).rglob("*.py")]
    named = {name for name in re.findall(r"[\w/]+\.py\b", text) if not re.search("[A-Z]", name)}
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
