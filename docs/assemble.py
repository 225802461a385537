"""Writes the sources of the site into a folder: python docs/assemble.py FOLDER. `make docs` does so and runs Sphinx.

Every page is a Markdown file of the repository, read where GitHub shows it. What a script can compute stands in it as
`<!-- generated: NAME -->` and is filled in here. A link to a file of the repository becomes one to the page made of it,
and a link to a file that is not there is an error.
"""

import inspect
import json
import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import pictures  # noqa: E402

import jaxsparse_fmt as jsf  # noqa: E402
import solvers  # noqa: E402
from benchmarks import report  # noqa: E402

LEARN = "start which-format which-solver differentiate algebra many-gpus mixed-precision command-line other-libraries"
DEPTH = "formats solvers files how-it-works add-a-format add-a-method papers performance results"
PROJECT = "troubleshooting what-left versions"
# The pages of the reference: a module, and what of it.
API = {
    "api-matrices": ("Matrices", [jsf]),
    "api-solvers": ("Solvers", [solvers]),
    "api-preconditioners": ("Preconditioners", [solvers.precond]),
    "api-tools": ("Plans, choice, files, pictures", [jsf.plan, jsf.choose, jsf.io, jsf.plot]),
    "api-gallery": ("Model problems", [jsf.gallery]),
}
FOLDERS = {"jaxsparse_fmt/formats": "which-format.md", "benchmarks/results": "results.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"(```.*?```)", re.DOTALL)


def page_of(path: str) -> str | None:
    """The page of the site that shows a file of the repository; None for a file that is copied as it is."""
    file = PurePosixPath(path)
    if path in FOLDERS:
        return FOLDERS[path]
    if path == "README.md":
        return "index.md"
    if file.parent.name == "docs" and file.suffix == ".md":
        return file.name
    if path in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        return path.lower()
    if path.startswith("examples/") and file.suffix == ".py":
        return f"examples/{file.stem}.md"
    if path.startswith("benchmarks/results/") and file.suffix in (".md", ".txt"):
        return f"results/{file.stem}.md"
    return None


def linked(text: str, path: str, page: str, copied: set[str]) -> str:
    """The text of the file `path` with its links as they must be on `page`.

    Args:
      copied: gets the files that links name and no page shows.

    Raises:
      FileNotFoundError: a link names no file.
    """

    def replaced(match: re.Match[str]) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        file = (ROOT / path).parent.joinpath(target).resolve()
        if not file.exists():
            raise FileNotFoundError(f"{path} links to {target}, which is not there")
        name = file.relative_to(ROOT).as_posix()
        shown = page_of(name)
        if shown is None:
            copied.add(name)
            shown = f"files/{name}"
        return f"{opening}{'../' * page.count('/')}{shown}{anchor})"

    parts = CODE.split(text)  # code stays as it is
    return "".join(part if i % 2 else LINK.sub(replaced, part) for i, part in enumerate(parts))


def generated(name: str) -> str:
    """The text that stands for `<!-- generated: NAME -->`."""
    return "\n".join(GENERATED[name]())


def picture(name: str, alt: str) -> Iterator[str]:
    """A picture of `pictures.py`, for light and for dark pages."""
    for look in ("light", "dark"):
        yield f"```{{image}} pictures/{name}_{look}.svg\n:alt: {alt}\n:class: only-{look}\n```\n"


def of_formats() -> Iterator[str]:
    """For each format: its source and its bytes, from the head of its module, and its picture."""
    yield from ["### The matrix", "", *picture("matrix", "the small matrix")]
    for name, cls in jsf.FORMATS.items():
        doc = inspect.getdoc(sys.modules[cls.__module__]) or ""
        head, *parts = (part.replace("\n", " ") for part in doc.split("\n\n"))
        size = next((part for part in parts if part.startswith("Bytes")), "")
        taken = '"auto" may take it.' if "footprints" in vars(cls) else "Taken only by name."
        yield from [f"### {name}", "", f"{head} {taken}", "", size, ""]
        yield from picture(f"layout_{name}", f"the small matrix in {name}")


def of_convergence() -> Iterator[str]:
    for name, title in pictures.CONVERGENCE.items():
        yield from [f"**{title}**", "", *picture(name, title)]


def of_reductions() -> Iterator[str]:
    from examples import data_reduction

    rows = [
        {"like": name, "from": f"`gallery.{call}`", "here": here, "paper": paper}
        for name, call, *_, here, paper in data_reduction.reductions()
    ]
    columns = [("like", "like"), ("made by", "from"), ("% saved here", "here:.1f"), ("% in the paper", "paper:.1f")]
    yield from report.markdown(rows, columns)


def of_memory() -> Iterator[str]:
    from tests.models import test_papers

    formats = ["dia", "hdia", "ell", "hll"]
    rows = []
    for problem in test_papers.TABLE_5:
        row = {"matrix": problem}
        for name in formats:
            options = {"slice_size": test_papers.HACK} if name in ("hdia", "hll") else {}
            A = jsf.from_scipy(test_papers.pde(problem), name, "float64", **options)
            printed = test_papers.TABLE_5[problem][name]
            row[name] = f"{test_papers.without_pattern(A) / 1e6:.2f} ({printed})"
        rows.append(row)
    yield "Here, and in brackets as the paper prints it:"
    yield ""
    yield from report.markdown(rows, [("matrix", "matrix"), *((name, name) for name in formats)])


def results() -> list[Path]:
    """The tables of benchmarks/results, the newest first."""
    folder = ROOT / "benchmarks/results"
    return sorted([*folder.glob("*.md"), *folder.glob("*.txt")], reverse=True)


def of_results() -> Iterator[str]:
    for path in results():
        data = path.with_suffix(".json")
        header = json.loads(data.read_text(encoding="utf-8"))["header"] if data.exists() else {}
        about = ", ".join(f"{header[key]}" for key in ("date", "device") if key in header)
        jax = f", JAX {header['jax']}" if "jax" in header else ""
        yield f"- [{path.stem}]({page_of(path.relative_to(ROOT).as_posix())}){about and ': '}{about}{jax}"


GENERATED = {
    "formats": of_formats,
    "convergence": of_convergence,
    "reductions": of_reductions,
    "memory": of_memory,
    "results": of_results,
}


def reference(title: str, modules: list[types.ModuleType]) -> str:
    """A page of the reference, with each public name of the modules once."""
    lines = [f"# {title}", ""]
    for module in modules:
        name = module.__name__
        lines += [f"## {name}", "", "```{eval-rst}", f".. automodule:: {name}", ""]
        named = getattr(module, "__all__", [n for n, v in vars(module).items() if getattr(v, "__module__", "") == name])
        for public in named:
            value = getattr(module, public)
            if module is jsf.choose and isinstance(value, type):
                continue  # `jaxsparse_fmt` has it too
            if isinstance(value, type):
                own = value not in jsf.FORMATS.values()
                lines += [f".. autoclass:: {name}.{public}", *["   :members:"] * own, ""]
            elif callable(value):
                lines += [f".. autofunction:: {name}.{public}", ""]
        lines += ["```", ""]
    return "\n".join(lines)


def assemble(folder: Path) -> None:
    """Writes all pages and pictures into an empty `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    pages: dict[str, str] = {}
    copied: set[str] = set()
    files = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
    files += [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]
    files += [path.relative_to(ROOT).as_posix() for path in results() if path.suffix == ".md"]
    for path in files:
        page = page_of(path)
        assert page is not None
        text = re.sub(r"<!-- generated: (.*?) -->", lambda m: generated(m[1]), (ROOT / path).read_text("utf-8"))
        text = text if text.startswith("#") else f"# {Path(path).stem.replace('_', ' ')}\n\n{text}"
        pages[page] = text if path == "docs/results.md" else linked(text, path, page, copied)
    for path in results():
        if path.suffix == ".txt":
            pages[f"results/{path.stem}.md"] = (
                f"# {path.stem.replace('_', ' ')}\n\n```text\n{path.read_text('utf-8')}\n```\n"
            )
    examples = sorted((ROOT / "examples").glob("*.py"))
    for path in examples:
        pages[f"examples/{path.stem}.md"] = f"# {path.name}\n\n```python\n{path.read_text('utf-8')}\n```\n"
    for page, (title, modules) in API.items():
        pages[f"{page}.md"] = reference(title, modules)
    trees = {
        "Learn": LEARN.split(),
        "Examples": ["examples", *(f"examples/{path.stem}" for path in examples)],
        "In depth": DEPTH.split(),
        "Reference": ["reference", *API],
        "Project": [*PROJECT.split(), "contributing", "changelog", "security"],
    }
    for caption, names in trees.items():
        pages["index.md"] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"
    pages["results.md"] += (
        "\n```{toctree}\n:hidden:\n\n" + "\n".join(f"results/{p.stem}" for p in results()) + "\n```\n"
    )
    for page, text in pages.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text, encoding="utf-8")
    for name in copied:
        (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "files" / name)
    pictures.main(folder / "pictures")


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
