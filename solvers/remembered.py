"""What solved a system, kept for the next one with the same pattern: the order of the ways, and a preconditioner.

Both are found by the identity of the index arrays and leave when one of these is freed. A preconditioner holds the
matrix's own arrays only by their number, and fits only the values that it was made for; for others it is refreshed.
"""

import weakref
from typing import Any, NamedTuple

import jax

from jaxsparse_fmt.core.kept import Kept
from solvers.precond._checks import renewed

LARGEST = 2**30  # bytes of a preconditioner that is kept
_orders, _made = Kept(64), Kept(4)


class Place(NamedTuple):
    """Stands for an array of the matrix, by its number."""

    number: int


class Made(NamedTuple):
    """A preconditioner without the matrix's arrays, and a reference to the values that it was made for."""

    name: str | None
    leaves: list[Any]
    tree: Any
    values: Any


class Memory:
    """What is known of matrices with A's pattern.

    Attributes:
      order: the trials of the last success, which was the first of them, those that failed last; None: none.
    """

    def __init__(self, A: Any):
        self.A, (self.leaves, self.tree) = A, jax.tree.flatten(A)
        self.values = A.values if hasattr(A, "values") else self.leaves[0]
        self.arrays = [a for a in self.leaves if a is not self.values] or self.leaves
        self.order = _orders.find(self.tree, self.arrays)

    @property
    def has_values(self) -> bool:
        """Whether a system with these very values was solved."""
        found = _made.find(self.tree, self.arrays)
        return found is not None and found.values() is self.values

    def made(self, name: str | None) -> Any:
        """The preconditioner made before for A's values, or refreshed for them; None: there is none of that name."""
        found = _made.find(self.tree, self.arrays)
        if found is None or found.name != name:
            return None
        leaves = [self.leaves[leaf.number] if type(leaf) is Place else leaf for leaf in found.leaves]
        M = jax.tree.unflatten(found.tree, leaves)
        if found.values() is self.values:
            return M
        return renewed(M, self.A) if hasattr(M, "refreshed") else None

    def keep(self, order: tuple[Any, ...], name: str | None, M: Any) -> None:
        """Keeps the order, and M unless that is large, or None."""
        if order != self.order:
            _orders.keep(self.tree, self.arrays, order)
        if M is None:
            return
        places = {id(a): Place(i) for i, a in enumerate(self.leaves)}
        leaves, tree = jax.tree.flatten(M)
        leaves = [places.get(id(leaf), leaf) for leaf in leaves]
        if sum(map(_nbytes, leaves)) <= LARGEST:
            _made.keep(self.tree, self.arrays, Made(name, leaves, tree, weakref.ref(self.values)))


def _nbytes(leaf: Any) -> int:
    """SuperLU's factors take 16 bytes an entry."""
    return getattr(leaf, "nbytes", 16 * getattr(leaf, "nnz", 0))
