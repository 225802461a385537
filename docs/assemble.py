"""Writes the sources of the site into a folder: python docs/assemble.py FOLDER. `make docs` does so and runs Sphinx.

Every page is a Markdown file of the repository, read where GitHub shows it. What a script can compute stands in it as
`<!-- generated: NAME -->` and is filled in here. A link to a file of the repository becomes one to the page made of it,
and a link to a file that is not there is an error.
"""

import ast
import inspect
import json
import re
import shutil
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import charts  # noqa: E402
import outputs  # noqa: E402
import pictures  # noqa: E402
from kept import kept  # noqa: E402

import jaxsparse_fmt as jsf  # noqa: E402
import solvers  # noqa: E402
from benchmarks import report  # noqa: E402
from jaxsparse_fmt._types import CORES  # noqa: E402
from solvers import precond  # noqa: E402

EXCHANGE = ("coo", "csc")
# The menu: what people come for, then the pages of the engine.
LEARN = """start tasks examples which-solver time-and-newton boundary-conditions differentiate factors batches
coming-from many-gpus compare command-line troubleshooting"""
DEPTH = "solvers algebra which-format formats files other-libraries performance measurements papers"
PAGES = [page for page in f"{LEARN} {DEPTH}".split() if page != "examples"]
# Of the contributor's page; the menu shows them below it when it is open.
PROJECT = "how-it-works add-a-method results what-left versions"
# The pages of the reference, by purpose: a title, and names of modules.
API: dict[str, tuple[str, dict[types.ModuleType, str]]] = {
    "api-make": (
        "Make a matrix",
        {
            jsf: """from_scipy from_coo from_csr from_csc from_dense read_mtx assembly from_bcoo from_bcsr from_cupy
            eye diags random kron kronsum block block_diag hstack vstack tril triu prune constrain order"""
        },
    ),
    "api-matrix": (
        "Use a matrix",
        {
            jsf: """SparseMatrix spmv sddmm row_softmax norm use_backend Transposed Paired Basis to_bcoo to_bcsr to_cupy
            save load cache_info clear_caches CacheInfo"""
        },
    ),
    "api-solvers": (
        "Solve a system",
        {
            solvers: """cg solve gmres minres bicgstab cocg idrs fcg refine direct factorized Factorized logdet
            nullspace spsolve_triangular solve_banded solve_block_tridiagonal lsmr Solution LeastSquaresSolution Status
            SolverError Adjoint"""
        },
    ),
    "api-preconditioners": (
        "Precondition",
        {
            precond: """jacobi block_jacobi multigrid incomplete_cholesky ilu incomplete_lu chebyshev coarse_space
            subdomains schwarz multigrid_from Schwarz Jacobi BlockJacobi Multigrid Incomplete IncompleteFactors
            Chebyshev CoarseSpace"""
        },
    ),
    "api-eigenpairs": ("Eigenpairs", {solvers: "eigsh eigs svds lobpcg EigenSolution SingularSolution"}),
    "api-functions": ("Functions of a matrix", {solvers: "expm_multiply FunctionSolution"}),
    "api-devices": ("Many devices", {jsf: "shard shard_from_rows boxes ShardedMatrix"}),
    "api-formats": (
        "Choose a format",
        {
            jsf.choose: "rank best_layouts fitting Choice",
            jsf: " ".join(cls.__name__ for cls in jsf.FORMATS.values()),
        },
    ),
    "api-tools": (
        "Plans, files, pictures, model problems",
        {
            jsf.plan: "add multiply matmul triple assemble",
            jsf.io: "read_scipy write_mtx read_vector write_vector",
            jsf.plot: "spy row_lengths convergence",
            jsf.gallery: """poisson convection_diffusion elasticity rigid_body_modes power_law adaptive_poisson
            irregular cfd hpcg holstein_hubbard""",
        },
    ),
}
# What the examples of docstrings use, beside `js`, JAX's and NumPy's usual names, `sp` for scipy.sparse and a `folder`.
EXAMPLES_USE = """\
jax.config.update("jax_enable_x64", True)
S = js.gallery.poisson(4, dim=2)  # 16 × 16
A, b = js.from_scipy(S, "csr"), np.ones(16)
mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
"""
NOT_FOUND = """\
---
orphan: true
---
# There is no such page

It may have moved: [Start](start.md), [Tasks](tasks.md) and the [reference](reference.md) are still here, and the search
finds the rest.
"""
FOLDERS = {"jaxsparse_fmt/formats": "which-format.md", "benchmarks/results": "results.md"}
# What the list of results shows of a header that has it; one computed from other tables ran on no device.
OF_HEADER = {"device": "{}", "jax": "JAX {}", "tables": "computed from {}"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]*)(#[^)\s]*)?\)")
PICTURE = re.compile(r'<picture>.*?alt="([^"]*)".*?src="docs/static/(\w+)_light.svg".*?</picture>', re.DOTALL)
CODE = re.compile(r"(```.*?```)", re.DOTALL)
CALL = re.compile(r"^    (python .*)$", re.MULTILINE)


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
    if path.startswith("benchmarks/results/") and file.suffix == ".md":
        return f"results/{file.stem}.md"
    return None


def as_sphinx(text: str, copied: set[str]) -> str:
    """The text with each `<picture>`, as GitHub shows it, as Sphinx shows it.

    Args:
      copied: gets the names of these pictures, of docs/static.
    """

    def replaced(match: re.Match[str]) -> str:
        copied.add(match[2])
        return "\n".join(picture(match[2], match[1]))

    return PICTURE.sub(replaced, text)


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
    if name.startswith("chart "):
        name = name.removeprefix("chart ")
        return "\n".join(picture(f"chart_{name}", charts.CHARTS[name][0]))
    if name not in LONG:
        return "\n".join(GENERATED[name]())

    def write(folder: Path) -> None:
        (folder / "text.md").write_text("\n".join(GENERATED[name]()), encoding="utf-8")

    sources = [Path(__file__), ROOT / LONG[name]]
    return (kept(f"part_{name}", sources, write) / "text.md").read_text(encoding="utf-8")


def picture(name: str, alt: str, root: str = "") -> Iterator[str]:
    """A picture for light and for dark pages; `root` leads from the page to the top of the site."""
    for look in ("light", "dark"):
        yield f"```{{image}} {root}pictures/{name}_{look}.svg\n:alt: {alt}\n:class: only-{look}\n```\n"


def of_formats(of_papers: bool = False) -> Iterator[str]:
    """For each format: its source, its bytes and its picture."""
    if not of_papers:
        yield from ["### The matrix", "", *picture("matrix", "the small matrix")]
    for name, cls in jsf.FORMATS.items():
        taken = "_footprints" in vars(cls)
        if of_papers is taken or (of_papers and name in EXCHANGE):
            continue
        doc = inspect.getdoc(sys.modules[cls.__module__]) or ""
        head, *parts = (part.replace("\n", " ") for part in doc.split("\n\n"))
        size = next((part for part in parts if part.startswith("Bytes")), "")
        yield from [f"### {name}", "", head, "", size, ""]
        yield from picture(f"layout_{name}", f"the small matrix in {name}")


def of_convergence() -> Iterator[str]:
    for name, title in pictures.CONVERGENCE.items():
        yield from [f"**{title}**", "", *picture(name, title)]


def of_reductions() -> Iterator[str]:
    from examples import data_reduction

    yield from report.table(
        [
            {"like": name, "made by": f"`gallery.{call}`", "% saved here": here, "% in the paper": paper}
            for name, call, *_, here, paper in data_reduction.reductions()
        ]
    )


def of_memory() -> Iterator[str]:
    from tests.formats import test_papers

    formats = ["dia", "hdia", "ell", "hll"]
    rows = []
    for problem in test_papers.TABLE_5:
        row = {"matrix": problem}
        for name in formats:
            options = {"slice_size": test_papers.HACK} if name in ("hdia", "hll") else {}
            A = jsf.from_scipy(test_papers.pde(problem), name, "float64", **options)
            printed = test_papers.TABLE_5[problem][name]
            row[name] = f"{test_papers.counted_there(A) / 1e6:.2f} ({printed})"
        rows.append(row)
    yield "Here, and in brackets as the paper prints it:"
    yield ""
    yield from report.table(rows)


def results() -> list[Path]:
    """The tables of benchmarks/results, the newest first."""
    return sorted((ROOT / "benchmarks/results").glob("*.md"), reverse=True)


def of_results() -> Iterator[str]:
    """A line for each file of results: its date, and what its header tells of device, versions and sources."""
    for path in results():
        header = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["header"]
        about = [header.get("date", path.stem[: len("2026-11-27")])]  # a name begins with its date
        about += [text.format(header[key]) for key, text in OF_HEADER.items() if key in header]
        yield f"- [{path.stem}]({page_of(path.relative_to(ROOT).as_posix())}): {', '.join(about)}"


GENERATED = {
    "formats": of_formats,
    "formats of papers": lambda: of_formats(of_papers=True),
    "convergence": of_convergence,
    "reductions": of_reductions,
    "memory": of_memory,
    "results": of_results,
}
# Parts that take seconds, and the file that makes their figures.
LONG = {"reductions": "examples/data_reduction.py", "memory": "tests/formats/test_papers.py"}


def guides(name: str, most: int = 4) -> list[str]:
    """The pages that speak of a name of the library most often."""
    spoken = re.compile(rf"`{name}`|\bjs\.(?:precond\.)?{name}\b")
    counts = {page: len(spoken.findall((ROOT / f"docs/{page}.md").read_text("utf-8"))) for page in PAGES}
    return sorted((page for page in counts if counts[page]), key=lambda page: -counts[page])[:most]


def reference(title: str, named: dict[types.ModuleType, str]) -> str:
    """A page of the reference: a table with a line for each name, and their whole descriptions."""
    lines = [f"# {title}", ""]
    if any(inspect.isfunction(getattr(m, name)) for m, names in named.items() for name in names.split()):
        use = "Examples use `import jaxsparse as js`, the usual imports, and:"
        lines += [use, "", "```python", EXAMPLES_USE.rstrip(), "```", ""]
    for module, names in named.items():
        about = [] if module in (jsf, solvers) else [f".. automodule:: {module.__name__}", ""]
        rows = [f"   {name}" for name in names.split()]
        table = [f".. currentmodule:: {module.__name__}", "", ".. autosummary::", "   :nosignatures:", "", *rows, ""]
        where = re.sub(r"^(jaxsparse_fmt|solvers)(\.algebra)?", "jaxsparse", module.__name__)
        lines += [f"## {where}", "", "```{eval-rst}", *about, *table]
        for name in names.split():
            value = getattr(module, name)
            kind = "autoclass" if isinstance(value, type) else "autofunction"
            # The fields of a named tuple stand under Attributes.
            has_members = isinstance(value, type) and value not in jsf.FORMATS.values() and not issubclass(value, tuple)
            members = ["   :members:"] if has_members else []
            lines += [f".. {kind}:: {name}", *members, ""]
            if pages := guides(name):
                lines += ["   **See also:** " + ", ".join(f":doc:`{page}`" for page in pages), ""]
        lines += ["```", ""]
    return "\n".join(lines)


def example(path: Path, pictures: Path) -> str:
    """The page of an example: its prose, its picture, what it prints here, and its code."""
    source = path.read_text("utf-8")
    title, _, about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    name, _, more = title.rstrip(".").partition(": ")
    kept = outputs.of_example(path)
    lines = [f"# {name}", "", f"**{more[:1].upper()}{more[1:]}.**" if more else "", ""]
    if (kept / "picture.svg").exists():
        outputs.copy_pictures(kept, pictures, f"example_{path.stem}")
        lines += picture(f"example_{path.stem}", f"what the program draws: {name}", root="../")
    printed = (kept / "printed.txt").read_text(encoding="utf-8")
    lines += [CALL.sub(r"```\n\1\n```", about), "", "## Output", "", "```text", printed, "```", ""]
    code = source.split('"""', 2)[2].lstrip()
    return "\n".join([*lines, "## Program", "", "```python", code, "```", ""])


def assemble(folder: Path) -> None:
    """Writes all pages and pictures into an empty `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    pages: dict[str, str] = {}
    copied: set[str] = set()
    static: set[str] = set()
    files = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
    files += [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]
    files += [path.relative_to(ROOT).as_posix() for path in results()]
    for path in files:
        page = page_of(path)
        assert page is not None
        text = re.sub(r"<!-- generated: (.*?) -->", lambda m: generated(m[1]), (ROOT / path).read_text("utf-8"))
        text = as_sphinx(text, static)
        text = text if text.startswith("#") else f"# {Path(path).stem.replace('_', ' ')}\n\n{text}"
        pages[page] = text if path == "docs/results.md" else linked(text, path, page, copied)
    drawn = kept("pictures", [Path(pictures.__file__)], pictures.main)
    shutil.copytree(drawn, folder / "pictures")
    charts.main(folder / "pictures", charts.CHARTS)
    for name in static:
        for look in charts.LOOKS:
            shutil.copy(charts.STATIC / f"{name}_{look}.svg", folder / "pictures")
    examples = sorted((ROOT / "examples").glob("*.py"))
    with ThreadPoolExecutor(CORES) as pool:
        texts = pool.map(lambda path: example(path, folder / "pictures"), examples)
        pages |= {f"examples/{path.stem}.md": text for path, text in zip(examples, texts, strict=True)}
    for page, (title, named) in API.items():
        pages[f"{page}.md"] = reference(title, named)
    menus = {
        "index.md": {
            "Learn": LEARN.split(),
            "In depth": DEPTH.split(),
            "Reference": [*API, "reference"],
            "Project": ["contributing", "changelog"],
        },
        "examples.md": {"": [f"examples/{path.stem}" for path in examples]},
        "contributing.md": {"": [*PROJECT.split(), "security"]},
        "results.md": {"": [f"results/{path.stem}" for path in results()]},
    }
    for page, menu in menus.items():
        for caption, names in menu.items():
            shown = f":caption: {caption}\n" * bool(caption)
            pages[page] += f"\n```{{toctree}}\n:hidden:\n{shown}\n" + "\n".join(names) + "\n```\n"
    pages["404.md"] = NOT_FOUND
    for page, text in pages.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text, encoding="utf-8")
    for name in copied:
        (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "files" / name)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
