"""Imports point down: every import statement is read, those inside functions too, and held against the order."""

import ast
import functools
import graphlib
import pathlib
import sys

from tests.process import ROOT, printed

# A line may import what stands in a line above it; modules of one folder import each other, without circles.
FLOORS = (
    "shared commands",
    "io kernels gallery",
    "core",
    "formats",
    "choose algebra",
    "convert",
    "distributed interchange saved plot",
    "solvers jaxsparse_fmt",
    "cli benchmarks jaxsparse",
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS, 1) for name in names.split()}

NUMERIC = {"numpy", "scipy"}
THIRD_PARTY = NUMERIC | {"jax"}
# What a folder may import from outside; the rest may import numpy, scipy and jax.
ALLOWED = {
    "kernels": THIRD_PARTY | {"jaxlib", "numba", "llvmlite"},
    "shared": THIRD_PARTY | {"rich"},
    "gallery": NUMERIC,
    "io": NUMERIC,
    "cli": THIRD_PARTY | {"rich", "matplotlib"},
    "plot": NUMERIC | {"matplotlib"},
    "solvers": {"numpy", "jax"},
    **{name: set() for name in ("jaxsparse", "commands")},
}
# Solvers that turn matrices into factors, facts and preconditioners import what they need of a matrix, and SciPy. All
# others, the methods and their loop, know operators alone.
OF_MATRICES = {"superlu", "host_calls", "patterns", "block_form", "batched", "host", "hosted", "logdet", "factors"}
OF_MATRICES |= {"triangular", "backends", "facts", "precond", "banded", "nullspace", "schur"}
OPERATOR = {f"jaxsparse_fmt.core.{name}" for name in ("mesh_axes", "basis", "vector_passes")}
OPERATOR |= {"jaxsparse_fmt.formats.memory", "jaxsparse_fmt.kernels.backends.jax_versions"}
LIBRARIES = {"lineax": {"lineax", "equinox"}, "backends": {"sparsax", "spineax"}, "schur": {"scipy"}}
# Imported where they are used, so that `import jaxsparse_fmt` and `import solvers` do not pay for them.
LAZY = ("rich", "matplotlib", "pyamg", "jax.experimental", "jax._src", "numba", "llvmlite")
# Modules that are themselves imported so, inside functions of their neighbours.
NATIVE = ("numba_kernels", "coordinate_kernels", "band_kernels", "lane_kernels", "c_functions")
LATE = {f"jaxsparse_fmt.kernels.cpu.{name}" for name in NATIVE}
LATE |= {f"jaxsparse_fmt.kernels.backends.{name}" for name in ("mosaic", "triton")}


def modules(package: str) -> list[pathlib.Path]:
    return sorted((ROOT / package).rglob("*.py"))


def dotted(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def statements(path: pathlib.Path) -> list[tuple[str, bool]]:
    """Each dotted name that a file imports, and whether it does so inside a function.

    What stands under `if TYPE_CHECKING` is never run and does not count.
    """
    found = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.extend((f"{node.module}.{alias.name}", inside) for alias in node.names)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text()), False)
    return found


def imports(path: pathlib.Path, lazy: bool | None = None) -> set[str]:
    """The dotted names that a file imports: all, only inside functions (lazy), or only at the top (not lazy)."""
    return {name for name, inside in statements(path) if lazy in (None, inside)}


def top(name: str) -> str:
    return name.split(".")[0]


def place(name: str) -> str:
    """What FLOORS lists: jaxsparse_fmt.formats.csr lies in formats, solvers.cg in solvers."""
    parts = name.split(".")
    if parts[0] == "jaxsparse" and parts[-1] in ("__main__", "commands", "process"):
        return "cli" if parts[1] == "__main__" else "commands"
    if name.startswith("jaxsparse_fmt._"):
        return "shared"
    return parts[1] if parts[0] == "jaxsparse_fmt" and parts[1:] else parts[0]


def part(name: str) -> str:
    """The file or folder of `solvers` that a module belongs to."""
    return name.split(".")[1] if "." in name else ""


PACKAGES = ("jaxsparse", "jaxsparse_fmt", "solvers", "benchmarks")
FILES = {dotted(path): path for package in PACKAGES for path in modules(package)}


def modules_imported(module: str) -> set[str]:
    """The modules of this repository that a module imports, inside functions too; not the packages around it."""
    found = {name if name in FILES else name.rpartition(".")[0] for name in imports(FILES[module])}
    return (found & FILES.keys()) - {module}


def test_imports_point_down():
    pairs = [(module, name) for module in FILES for name in modules_imported(module) if place(name) != place(module)]
    assert not [(module, name) for module, name in pairs if FLOOR[place(name)] >= FLOOR[place(module)]]


def test_no_modules_import_each_other_in_a_circle():
    graph = {module: modules_imported(module) for module in FILES}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which lists the circle


def test_outside_imports_are_those_of_the_folder():
    known = set(sys.stdlib_module_names) | {"jaxsparse", "jaxsparse_fmt", "solvers"}
    for module in (name for name in FILES if place(name) != "benchmarks"):
        allowed = ALLOWED.get(place(module), THIRD_PARTY)
        if top(module) == "solvers":
            allowed = allowed | LIBRARIES.get(part(module), set())
            allowed = allowed | ({"scipy"} if part(module) in OF_MATRICES else set())
        assert {top(name) for name in imports(FILES[module])} - known <= allowed, module


def test_heavy_modules_are_imported_inside_functions():
    for module in (name for name in FILES if place(name) != "benchmarks" and name not in LATE):
        assert not [name for name in imports(FILES[module], lazy=False) if name.startswith((*LAZY, *LATE))], module


def test_methods_and_their_loop_know_operators_and_no_matrix():
    for module in (name for name in FILES if top(name) == "solvers" and part(name) not in OF_MATRICES):
        ours = {name for name in modules_imported(module) if top(name) == "jaxsparse_fmt" and place(name) != "shared"}
        assert ours <= OPERATOR, module


def test_importing_the_packages_and_a_method_leaves_heavy_modules_alone():
    code = "import jaxsparse_fmt, solvers; print(*sys.modules); from solvers import cg; print(*sys.modules)"
    code += "; from solvers import solve; print(*sys.modules)"
    packages, method, chosen = (set(line.split()) for line in printed("-c", "import sys; " + code).splitlines())
    heavy = ("matplotlib", "rich", "numba", "jax.experimental.pallas", "pyamg", "lineax", "equinox", "scipy.sparse.")
    assert not [name for name in method if name.startswith(heavy)] and "scipy.sparse" not in method
    late = {f"jaxsparse_fmt.{name}" for name in ("cli", "plot", "io", "gallery", "saved", "interchange", "distributed")}
    assert not late & (method | chosen) and "solvers.precond.multigrid" not in chosen
    assert {name for name in packages if top(name) == "solvers"} == {"solvers"}
    assert not {f"solvers.{name}" for name in ("eigsh", "lsmr", "solve", "precond.multigrid")} & method


def test_a_name_that_its_module_has_too_is_the_function_whoever_imports_first():
    code = "import solvers.precond.ilu, solvers.direct; from solvers import direct, precond, cg; import solvers.cg as c"
    assert printed("-c", code + "; print(*map(callable, (direct, precond.ilu, cg, c)))").split() == ["True"] * 4
