"""Imports point down: every import statement is read, those inside functions too, and held against the order."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# A module may import what stands in a line above its own, and its neighbours in the same line.
LAYERS = (
    "_types",
    "traffic",
    "kernels",
    "vectors",
    "form basis",
    "transposed",
    "matrix",
    "formats",
    "paired",
    "reorder",
    "gallery _hubbard _meshes io _matrix_market",
    "features",
    "storages",
    "_clock _memory",
    "choose",
    "tune",
    "convert",
    "partition",
    "measure report plot",
    "_arguments",
    "demo scale",
    "cli",
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}

NUMERIC = {"numpy", "scipy"}
THIRD_PARTY = NUMERIC | {"jax"}
# What a module may import from outside; the rest may import numpy, scipy and jax.
ALLOWED = {
    "kernels": THIRD_PARTY | {"jaxlib", "numba", "llvmlite"},
    "traffic": NUMERIC,
    "gallery": NUMERIC,
    "_hubbard": NUMERIC,
    "_meshes": NUMERIC,
    "io": NUMERIC,
    "_matrix_market": NUMERIC,
    "partition": THIRD_PARTY | {"pymetis"},
    "report": NUMERIC | {"rich"},
    "plot": NUMERIC | {"matplotlib"},
    "cli": THIRD_PARTY | {"rich", "solvers"},
    "demo": THIRD_PARTY | {"rich", "solvers"},
    "scale": THIRD_PARTY | {"rich"},
}
# A module of the solvers may import numpy, jax, and of the formats the protocol, the basis and the passes over
# vectors; and these, what follows.
SOLVERS_ALLOWED = {
    "solvers.precond.multigrid": {"scipy", "jaxsparse_fmt.SparseMatrix", "jaxsparse_fmt.from_scipy"},
    "solvers.precond._hierarchy": {"scipy", "pyamg"},
    "solvers.precond.incomplete": {"jaxsparse_fmt.from_coo"},
    "solvers.lineax": {"lineax", "equinox"},
}
# Imported where they are used, so that `import jaxsparse_fmt` and `import solvers` do not pay for them.
LAZY = ("rich", "matplotlib", "pyamg", "pymetis", "jax.experimental", "jax._src", "numba", "llvmlite")
# Modules that are themselves imported so, inside functions of their neighbours.
LATE = {"jaxsparse_fmt.kernels.native", "jaxsparse_fmt.kernels.native_call"}


def modules(package: str) -> list[pathlib.Path]:
    return sorted((ROOT / package).rglob("*.py"))


def dotted(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: pathlib.Path, lazy: bool | None = None) -> set[str]:
    """The dotted names that a file imports: all, only inside functions (lazy), or only at the top (not lazy).

    What stands under `if TYPE_CHECKING` is never run and does not count.
    """
    tree = ast.parse(path.read_text())
    inside, skipped = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside |= {id(n) for n in ast.walk(node)}
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(n) for n in ast.walk(node)}
    names = set()
    for node in ast.walk(tree):
        if id(node) in skipped or (lazy is not None and (id(node) in inside) != lazy):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def top(name: str) -> str:
    return name.split(".")[0]


def layer(name: str) -> str:
    """The second part of a dotted name: jaxsparse_fmt.formats.csr lies in formats."""
    return name.split(".")[1]


@pytest.mark.parametrize("path", modules("jaxsparse_fmt"), ids=dotted)
def test_imports_point_down(path):
    own = dotted(path)
    if own == "jaxsparse_fmt":
        return  # the public names come from everywhere
    assert layer(own) in RANK, f"{own} has no place in LAYERS"
    for name in imports(path):
        if name.startswith("jaxsparse_fmt."):
            # A public name, imported from the package itself, would be a cycle for all but the top.
            known = layer(name) in RANK
            assert known, f"{own} imports {name} from the package instead of the module"
            assert RANK[layer(name)] <= RANK[layer(own)], f"{own} imports {name} from a layer above"


@pytest.mark.parametrize("path", modules("jaxsparse_fmt"), ids=dotted)
def test_outside_imports_are_those_of_the_layer(path):
    own = dotted(path)
    allowed = THIRD_PARTY if own == "jaxsparse_fmt" else ALLOWED.get(layer(own), THIRD_PARTY)
    outside = {top(n) for n in imports(path)} - set(sys.stdlib_module_names) - {"jaxsparse_fmt"}
    assert outside <= allowed


@pytest.mark.parametrize("path", modules("jaxsparse_fmt") + modules("solvers"), ids=dotted)
def test_heavy_modules_are_imported_inside_functions(path):
    late = dotted(path) in LATE
    names = imports(path, lazy=False)
    assert late or not [n for n in names if n.startswith((*LAZY, *LATE))]


@pytest.mark.parametrize("path", modules("solvers"), ids=dotted)
def test_solvers_know_only_the_operator_protocol_and_the_basis(path):
    allowed = SOLVERS_ALLOWED.get(dotted(path), set())
    outside = {n for n in imports(path) if top(n) not in sys.stdlib_module_names | {"solvers", "jax", "numpy"}}
    outside = {n for n in outside if n not in allowed and top(n) not in allowed}
    assert {layer(n) for n in outside if top(n) == "jaxsparse_fmt"} <= {"_types", "basis", "Basis", "vectors"}
    assert {top(n) for n in outside} <= {"jaxsparse_fmt"}


def run(code: str) -> str:
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return out.stdout.strip()


def test_importing_the_package_leaves_heavy_modules_alone():
    loaded = run("import sys, jaxsparse_fmt; print(*sys.modules)").split()
    heavy = (
        "matplotlib",
        "rich",
        "numba",
        "jax.experimental.pallas",
        "solvers",
        "jaxsparse_fmt.cli",
        "jaxsparse_fmt.plot",
        "jaxsparse_fmt.partition",
    )
    assert not [name for name in loaded if name.startswith(heavy)]


def test_importing_the_solvers_leaves_heavy_modules_alone():
    loaded = run("import sys, solvers; print(*sys.modules)").split()
    heavy = ("matplotlib", "rich", "numba", "pyamg", "lineax", "equinox", "jax.experimental.pallas")
    assert not [name for name in loaded if name.startswith(heavy)]


@pytest.mark.clock
def test_import_adds_at_most_two_thirds_of_what_jax_takes():
    code = """
import time
start = time.perf_counter()
import jax
middle = time.perf_counter()
import jaxsparse_fmt
print((time.perf_counter() - middle) / (middle - start))
"""
    assert any(float(run(code)) <= 2 / 3 for _ in range(10))  # whatever the machine, but not whatever its load
