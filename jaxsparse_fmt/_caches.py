"""What this library keeps between calls, listed in one place: `cache_info` counts it, and `clear_caches` drops it.

`functools.cache` keeps what is bounded and depends on no user's data: facts about this process, and linked kernels.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import jax

T = TypeVar("T")


class CacheInfo(NamedTuple):
    """The number and size of the results of one kind.

    Attributes:
      entries: results that are kept.
      most: results that may be kept; the one whose last use is longest ago makes room.
      nbytes: bytes of their arrays and factors, without those of compiled programs.
    """

    entries: int
    most: int
    nbytes: int


_caches: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # what each keeps


def listed(cache: T, what: str) -> T:
    """The cache, which `cache_info` counts with others that keep the same until it is freed.

    Args:
      cache: a function under `functools.lru_cache`, or an object with `most`, `values()` and `clear()`.
    """
    _caches[cache] = what
    return cache


def remembered(most: int, what: str) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `functools.lru_cache(most)`, listed."""
    return lambda f: listed(functools.lru_cache(most)(f), what)


class Recent:
    """The results last put, by key, the oldest first. Each step is one operation on a dict: threads need no lock."""

    def __init__(self, most: int, what: str):
        self.most = most
        self.results: dict[Any, Any] = {}
        listed(self, what)

    def put(self, key: Any, result: T, room: int = 0) -> T:
        """The result, kept as the newest among `most`, or `room` if that is more; an equal key is replaced, too."""
        self.results.pop(key, None)
        self.results[key] = result
        for old in list(self.results)[: -max(self.most, room)]:
            self.results.pop(old, None)
        return result

    def values(self) -> list[Any]:
        return list(self.results.values())

    def clear(self) -> None:
        self.results.clear()


def cache_info() -> dict[str, CacheInfo]:
    """What the library keeps between calls in this process, by what it is: a `CacheInfo` each.

    Every cache is bounded, and what was computed from arrays leaves it when these are freed. JAX keeps programs of its
    own, which `jax.clear_caches` drops.

    Examples:
      >>> js.clear_caches()
      >>> js.cg(A, b).success, js.cache_info()["programs of solvers"].entries > 0
      (True, True)
    """
    found: dict[str, CacheInfo] = {}
    for cache, what in sorted(_caches.items(), key=lambda item: item[1]):
        calls = getattr(cache, "cache_info", None)
        values = [] if calls else cache.values()
        now, most = (calls().currsize, calls().maxsize) if calls else (len(values), cache.most)
        nbytes = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(values))
        found[what] = CacheInfo(*map(sum, zip(found.get(what, (0, 0, 0)), (now, most, nbytes), strict=True)))
    return found


def clear_caches() -> None:
    """Drops what the library keeps between calls: programs, index arrays, factors, and what `solve` remembers.

    Later calls compute it anew. Matrices, preconditioners and factors that the caller holds keep their arrays.

    Examples:
      >>> js.clear_caches()
      >>> sum(info.entries for info in js.cache_info().values())
      0
    """
    for cache in list(_caches):
        (cache.cache_clear if hasattr(cache, "cache_clear") else cache.clear)()
