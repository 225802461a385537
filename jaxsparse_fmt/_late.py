"""Packages whose public names are imported at their first use."""

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jaxsparse_fmt._text import did_you_mean

# The calls for names of other libraries.
_ELSEWHERE = {
    "spsolve linsolve": "jaxsparse.direct(A, b)",
    "splu lu cholesky factorize": "jaxsparse.factorized(A)",
    "spilu ilu": "jaxsparse.precond.ilu(A)",
    "ic ichol": "jaxsparse.precond.incomplete_cholesky(A)",
    "amg gamg pyamg": "jaxsparse.precond.multigrid(A)",
    "csr_matrix csr_array coo_matrix coo_array": "jaxsparse.from_scipy(S), or jaxsparse.from_coo(i, j, a, shape)",
    "identity eye eye_array": "jaxsparse.from_scipy(scipy.sparse.eye_array(n))",
    "from_jax from_bcsr": "jaxsparse.from_bcoo(B)",
    "lsqr lstsq": "jaxsparse.lsmr(A, b)",
    "eigh": "jaxsparse.eigsh(A, k)",
    "eig": "jaxsparse.eigs(A, k)",
    "slogdet det": "jaxsparse.logdet(A)",
    "laplacian": "jaxsparse.from_scipy(scipy.sparse.csgraph.laplacian(W))",
    "dirichlet": "jaxsparse.constrain(A, b, fixed, values)",
    "mmread": "jaxsparse.read_mtx(path)",
    "mmwrite write_mtx": "jaxsparse.io.write_mtx(path, A)",
    "load_npz": "jaxsparse.from_scipy(scipy.sparse.load_npz(path))",
    "save_npz": "jaxsparse.save(path, A)",
    "LinearOperator aslinearoperator": "a function of jax.numpy, v -> A·v, as jaxsparse.cg(f, b) takes it",
}
_GUESSED = {name: call for names, call in _ELSEWHERE.items() for name in names.split()}


def no_attribute(module: ModuleType, name: str, names: Iterable[str]) -> AttributeError:
    """The error of a module without a name, with the call that was meant."""
    call = _GUESSED.get(name)
    hint = f"; use {call}" if call else did_you_mean(name, names)
    return AttributeError(f"module {module.__name__!r} has no attribute {name!r}{hint}", name=name, obj=module)


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
