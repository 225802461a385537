"""Packages whose public names are imported at their first use."""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package with a table `_late`: the module of each of its names."""

    def __getattr__(self, name: str) -> Any:
        late = vars(self)["_late"]
        if name not in late:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        module = importlib.import_module(late[name])
        setattr(self, name, getattr(module, name, module))
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Binds the function `cg` where Python binds the module `cg` in which it stands, after it has imported it."""
        super().__setattr__(name, getattr(value, name, value) if name in vars(self)["_late"] else value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)["_late"]})


def import_late(package: str, modules: dict[str, str]) -> None:
    """Lets Python import the public names of a package when they are first used.

    Args:
      modules: {module of the package, or of this library by its whole name: the names that it has}; a module that is
        itself such a name is named so.
    """
    whole = lambda module: module if module.startswith("jaxsparse_fmt.") else f"{package}.{module}"  # noqa: E731
    late = {name: whole(module) for module, names in modules.items() for name in names.split()}
    vars(sys.modules[package])["_late"] = late
    sys.modules[package].__class__ = _Package
