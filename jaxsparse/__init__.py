"""The one name to import: every public name of `jaxsparse_fmt` and of `solvers`, each at its first use.

    import jaxsparse as js
    A = js.from_scipy(S)
    sol = js.solve(A, b, M=js.precond.multigrid(A))

Matrices, formats and what makes them are those of `jaxsparse_fmt`; `solve`, the methods, `Solution` and `precond`
are those of `solvers`; no name stands in both. `choose`, `gallery`, `io`, `lineax`, `plan`, `plot` and `precond` are
modules, also to `from jaxsparse.gallery import poisson`. A name is the package's object, not a copy, so that all
three ways to import it mix.

`import jaxsparse` itself imports nothing else; the first name imports JAX and the package that has it. It finds our
`solvers` also where a file `solvers.py` of the user's comes first on the path, unless that one is imported already.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsparse_fmt import *
    from jaxsparse_fmt import __version__ as __version__
    from solvers import *
    from solvers import lineax as lineax

PACKAGES = ("jaxsparse_fmt", "solvers")
_COMMAND_LINE = ("commands", "process")  # modules, which `from jaxsparse import commands` asks for here first
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _Neighbours:
    """A finder, for `sys.meta_path`, of the packages in the folder in which this one lies."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [_ROOT]) if name in PACKAGES else None


def _package(name: str) -> Any:
    """Our package `name`, imported. ImportError: another module of that name is imported already."""
    if name not in sys.modules:
        sys.meta_path.insert(0, _Neighbours)
        try:
            return importlib.import_module(name)
        finally:
            sys.meta_path.remove(_Neighbours)
    package = importlib.import_module(name)  # which waits for another thread that imports it
    if not package.__file__ or os.path.realpath(package.__file__) != os.path.realpath(_ROOT + f"/{name}/__init__.py"):
        raise ImportError(
            f"jaxsparse needs its package {name!r}, but {package.__file__} is imported under that name; "
            "rename that file, or import jaxsparse's names first"
        )
    return package


def __getattr__(name: str) -> Any:
    if name == "lineax":
        _package("solvers")
        return importlib.import_module("solvers.lineax")
    if name == "__version__":
        return _package("jaxsparse_fmt").__version__
    if name == "__all__":
        return [public for package in PACKAGES for public in _package(package).__all__]
    if not name.startswith("_") and name not in _COMMAND_LINE:
        for package in map(_package, PACKAGES):
            if name in package.__all__:
                return globals().setdefault(name, getattr(package, name))
        from jaxsparse_fmt._elsewhere import no_attribute

        raise no_attribute(sys.modules[__name__], name, __dir__())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*__getattr__("__all__"), "__version__", "lineax"})
