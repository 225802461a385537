"""The public names and signatures are those of `public_api.txt`, one a line.

After a deliberate change, write the file anew and let its difference be reviewed:

    python -m tests.test_public_api > tests/public_api.txt
"""

import collections
import dataclasses
import difflib
import enum
import functools
import inspect
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jaxsparse_fmt as jsf
import solvers

PINNED = pathlib.Path(__file__).with_name("public_api.txt")
MODULES = (jsf, jsf.choose, jsf.gallery, jsf.io, jsf.plot, solvers, solvers.precond)
OPERATORS = "__abs__ __getitem__ __iter__ __len__ __matmul__ __mul__ __neg__ __rmatmul__ __rmul__ __truediv__"
# Members without an underscore that only other modules of the two packages use.
INTERNAL = {
    "SparseMatrix": "from_csr layout_options nbytes_read with_arrays",
    "ShardedMatrix": "shards domain range data_basis told entered is_entered full_diagonal record",
    "Transposed": "A basis in_basis",
    "Factorized": "basis in_basis",
    "Solution": "code n_iterations",
    "EigenSolution": "code n_iterations n_products",
    "LeastSquaresSolution": "code n_iterations",
    "SingularSolution": "code n_iterations",
}
CONSTRUCTED = (solvers.Adjoint,)  # users make other objects by functions
SIMPLE = (bool, int, float, str, type(None))


class Default:
    """A default value whose text is the same on every version of Python and JAX."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value) if type(self.value) in SIMPLE else "..."


def signature(function: Any) -> str:
    """Names, kinds and defaults of the parameters, without types."""
    bare = inspect.Parameter.empty
    parameters = [
        p.replace(annotation=bare, default=bare if p.default is bare else Default(p.default))
        for p in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


def members(cls: type) -> Iterator[str]:
    """Lines of the methods and attributes that the class and its bases in the two packages define."""
    if issubclass(cls, enum.Enum):
        yield from (f"{name} = {int(member)}" for name, member in cls.__members__.items())
    own = [base for base in cls.__mro__ if base.__module__.split(".")[0] in ("jaxsparse_fmt", "solvers")]
    names = {name for base in own for name in (*vars(base), *inspect.get_annotations(base))}
    names -= {*INTERNAL.get(cls.__name__, "").split(), *getattr(cls, "__members__", ())}
    if cls.__module__.startswith("solvers.precond"):
        names -= {"basis", "in_basis", *(field.name for field in dataclasses.fields(cls))}
    for name in names:
        if name in OPERATORS.split() or not name.startswith("_"):
            value = inspect.getattr_static(cls, name, None)
            if isinstance(value, property | functools.cached_property) or not callable(getattr(cls, name, None)):
                yield name
            else:
                yield name + signature(getattr(cls, name))


def lines_of(module: ModuleType) -> Iterator[str]:
    """Lines of a module; a member that several of its classes have stands in one."""
    of_classes = collections.defaultdict(list)
    for name in module.__all__:
        value, path = getattr(module, name), f"{module.__name__}.{name}"
        if isinstance(value, tuple):
            yield f"{path} = {value}"
        elif isinstance(value, type) and value in jsf.FORMATS.values():
            defaults = {name: p.default for name, p in inspect.signature(value.from_csr).parameters.items()}
            defaults |= {f.name: f.metadata["default"] for f in dataclasses.fields(value) if f.metadata}
            options = [f"{option}={Default(defaults[option])}" for option in value.layout_options]
            yield f"{path}: " + ", ".join([repr(value.name), *options])
        elif isinstance(value, type) and (value is jsf.SparseMatrix or not issubclass(value, jsf.SparseMatrix)):
            yield path + (signature(value) if value in CONSTRUCTED else "")
            if module is not jsf.choose:  # whose class `jsf` has too
                for line in members(value):
                    of_classes[line].append(name)
        elif callable(value) and not isinstance(value, type):
            yield path + signature(value)
        else:
            yield path
    yield from (f"{module.__name__}.{'|'.join(sorted(names))}.{line}" for line, names in of_classes.items())


def public_api() -> list[str]:
    return sorted(line for module in MODULES for line in lines_of(module))


def test_public_names_and_signatures_are_those_of_the_file():
    pinned, found = PINNED.read_text(encoding="utf-8").splitlines(), public_api()
    changes = [line for line in difflib.unified_diff(pinned, found, n=0, lineterm="") if line[1:2] not in "+-@"]
    assert not changes, "\n".join(["the public API differs from tests/public_api.txt:", *changes, str(__doc__)])


if __name__ == "__main__":
    print(*public_api(), sep="\n")
