"""Packages whose public names are imported at their first use."""

import importlib
import sys
from types import ModuleType
from typing import Any

from jaxsparse_fmt._elsewhere import no_attribute


class _Package(ModuleType):
    """A package with a table `_late`: the module of each of its names."""

    def __getattr__(self, name: str) -> Any:
        late = vars(self)["_late"]
        if name not in late:
            raise no_attribute(self, name, late)
        module = importlib.import_module(late[name])
        setattr(self, name, getattr(module, name, module))
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Binds the function `cg` when Python, after an import, would bind the module `cg` that defines it."""
        super().__setattr__(name, getattr(value, name, value) if name in vars(self)["_late"] else value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)["_late"]})


def import_late(package: str, modules: dict[str, str]) -> None:
    """Lets Python import the public names of a package when they are first used; without an `__all__` they are all.

    Args:
      modules: the names in each module, by its name in the package or, if it is of jaxsparse_fmt, by its whole name. A
        module that is itself a public name has that name.
    """
    late = {}
    for module, names in modules.items():
        whole = module if module.startswith("jaxsparse_fmt.") else f"{package}.{module}"
        late |= dict.fromkeys(names.split(), whole)
    vars(sys.modules[package])["_late"] = late
    vars(sys.modules[package]).setdefault("__all__", sorted(late))
    sys.modules[package].__class__ = _Package
