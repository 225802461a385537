"""What this library keeps between calls, listed in one place: `cache_info` counts it, and `clear_caches` drops it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

import jax

F = TypeVar("F", bound=Callable[..., Any])


class CacheInfo(NamedTuple):
    """What one kind of results takes.

    Attributes:
      entries: results that are kept.
      most: results that may be kept; the one whose last use is longest ago makes room.
      nbytes: bytes of their arrays, without those of compiled programs.
    """

    entries: int
    most: int
    nbytes: int


class Cache(Protocol):
    """What `listed` takes."""

    most: int

    def clear(self) -> None: ...

    def values(self) -> list[Any]: ...


_caches: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # each with what it keeps


def listed(cache: Any, what: str) -> Any:
    """The `Cache`, which `cache_info` counts with others that keep the same, until it is freed."""
    _caches[cache] = what
    return cache


class _Calls:
    """The results of a function under `functools.lru_cache`."""

    def __init__(self, function: Any, most: int):
        self.function, self.most = function, most

    def clear(self) -> None:
        self.function.cache_clear()

    def values(self) -> list[Any]:
        return [None] * self.function.cache_info().currsize


def remembered(most: int, what: str) -> Callable[[F], F]:
    """A decorator: `functools.lru_cache(most)`, listed with what it keeps."""

    def decorate(f: F) -> F:
        cached: Any = functools.lru_cache(most)(f)
        cached.calls = listed(_Calls(cached, most), what)  # which lives as long as the function
        return cached

    return decorate


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
        values = cache.values()
        nbytes = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(values))
        entries, most, others = found.get(what, (0, 0, 0))
        found[what] = CacheInfo(entries + len(values), most + cache.most, others + nbytes)
    return found


def clear_caches() -> None:
    """Drops what the library keeps between calls: programs, index arrays, and what `solve` remembers.

    Later calls compute it anew. Matrices, preconditioners and factors that the caller holds keep their arrays.

    Examples:
      >>> js.clear_caches()
      >>> sum(info.entries for info in js.cache_info().values())
      0
    """
    for cache in list(_caches):
        cache.clear()
