"""What was computed from arrays of JAX, which never change, kept as long as these arrays live."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxsparse_fmt._caches import listed
from jaxsparse_fmt._dtypes import x64_enabled
from jaxsparse_fmt._tracing import concrete, is_concrete, standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.kernels.backends import selection


def lasts(a: Any) -> bool:
    """Whether the identity of `a` stands for its numbers: NumPy's arrays may change, and deleted ones have none."""
    return is_concrete(a) and not a.is_deleted()


class Kept:
    """A table of values by a key and the identities of arrays, of which the last `most` used stay.

    Nothing is kept or found by arrays that do not last. An entry leaves the table when one of its arrays is freed. All
    steps are single operations on a dict, so threads and the weak references' callbacks, which may run at any time,
    need no lock.
    """

    def __init__(self, most: int, what: str = "other results") -> None:
        self.most = most
        self.table: dict[Any, tuple[Any, list[weakref.ref[Any]]]] = {}
        listed(self, what)

    def clear(self) -> None:
        self.table.clear()

    def values(self) -> list[Any]:
        return [found[0] for found in list(self.table.values())]

    def find(self, key: Any, arrays: Sequence[Any]) -> Any:
        """The value; None if there is none, or if one of its arrays was deleted, by donation for instance."""
        found = self.table.pop((key, *map(id, arrays)), None)
        if found is None or not all(map(lasts, arrays)):
            return None
        for a in jax.tree.leaves(found[0]):
            if isinstance(a, jax.Array) and a.is_deleted():
                return None
        self.table[(key, *map(id, arrays))] = found  # the newest last
        return found[0]

    def keep(self, key: Any, arrays: Sequence[Any], value: Any) -> Any:
        """Returns `value`, and keeps it if all arrays last."""
        if not arrays or not all(map(lasts, arrays)):
            return value
        key = (key, *map(id, arrays))

        def forget(_: Any) -> None:
            self.table.pop(key, None)

        self.table[key] = value, [weakref.ref(a, forget) for a in arrays]
        for old in list(self.table)[: -self.most]:
            self.table.pop(old, None)
        return value

    def get(self, key: Any, arrays: Sequence[Any], make: Callable[[], Any]) -> Any:
        """The value, or `make()`; its arrays are constants where jit traces the caller."""
        found = self.find(key, arrays)
        if found is None:
            found = self.keep(key, arrays, at_once(make, arrays))
        return found


def at_once(make: Callable[[], Any], arrays: Sequence[Any]) -> Any:
    """make(), computed from these arrays also where jit traces the caller, and on their mesh, if they have one, instead
    of the context's: in another thread, since no code inside shard_map can leave the context's mesh.
    """
    with concrete():
        if not mesh_axes.has_mesh():
            return make()
        shardings = (a.sharding for a in arrays if is_concrete(a))
        mesh: Any = next((s.mesh for s in shardings if isinstance(s, NamedSharding)), None)
        wide, backend = x64_enabled(), selection.in_use.value

        def called() -> Any:
            with jax.set_mesh(mesh), jax.enable_x64(wide), selection.use_backend(backend):
                return standard_promotion(make)()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(called).result()
