"""What was computed from arrays, kept as long as these arrays live."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxsparse_fmt._tracing import concrete, is_concrete


class Kept:
    """A table of values by a key and the identities of arrays, of which the last `most` used stay.

    An entry leaves the table when one of its arrays is freed. All steps are single operations on a dict, so threads and
    the weak references' callbacks, which may run at any time, need no lock.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.table: dict[Any, tuple[Any, list[weakref.ref[Any]]]] = {}

    def find(self, key: Any, arrays: Sequence[Any]) -> Any:
        """The value; None if there is none, or if one of its arrays was deleted, by donation for instance."""
        found = self.table.pop((key, *map(id, arrays)), None)
        if found is None:
            return None
        for a in jax.tree.leaves(found[0]):
            if isinstance(a, jax.Array) and a.is_deleted():
                return None
        self.table[(key, *map(id, arrays))] = found  # the newest last
        return found[0]

    def keep(self, key: Any, arrays: Sequence[Any], value: Any) -> Any:
        """Keeps `value`, and returns it."""
        key = (key, *map(id, arrays))

        def forget(_: Any) -> None:
            self.table.pop(key, None)

        self.table[key] = value, [weakref.ref(a, forget) for a in arrays]
        for old in list(self.table)[: -self.most]:
            self.table.pop(old, None)
        return value

    def get(self, key: Any, arrays: Sequence[Any], make: Callable[[], Any]) -> Any:
        """The value, or `make()`; its arrays are constants where jit traces the caller. Nothing is kept by tracers."""
        known = bool(arrays) and all(map(is_concrete, arrays))
        found = self.find(key, arrays) if known else None
        if found is None:
            with concrete():
                found = make()
            if known:
                self.keep(key, arrays, found)
        return found
