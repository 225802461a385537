"""What arguments are, in words that are the same in all processes which pass the same ones."""

import dataclasses
import functools
import re
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh

names: dict[int, tuple[weakref.ref[Any], str]] = {}  # of arrays, by identity, as long as they live


def note(a: Any, name: str) -> str:
    key = id(a)
    names[key] = weakref.ref(a, lambda _: names.pop(key, None)), name
    return name


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The value, or each field of a dataclass that is no pytree, in words."""
    if dataclasses.is_dataclass(value) and jax.tree_util.all_leaves([value]):
        for field in dataclasses.fields(value):
            yield from described(field.name, vars(value)[field.name])
    else:
        yield name, in_words(value)


def in_words(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return _of_array(value)
    if isinstance(value, Mesh):
        return f"{dict(value.shape)} of devices {_of_array(value.device_ids)}"
    if scipy.sparse.issparse(value):
        csr: Any = value.tocsr()
        return f"{csr.shape} with {', '.join(map(_of_array, (csr.data, csr.indices, csr.indptr)))}"
    if isinstance(value, functools.partial):
        return f"partial of {', '.join(map(in_words, (value.func, *value.args, value.keywords)))}"
    if value is None:
        return "None"
    if isinstance(value, dict):
        return str({key: in_words(part) for key, part in value.items()})
    if not jax.tree_util.all_leaves([value]):
        leaves = jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda a: a is None)
        parts = (f"{jax.tree_util.keystr(path)} {in_words(leaf)}".strip() for path, leaf in leaves)
        return f"{type(value).__name__} of {', '.join(parts)}"
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _of_array(a: Any) -> str:
    words = f"{a.dtype}{list(a.shape)}"
    if isinstance(a, Tracer):
        return words
    if not isinstance(a, jax.Array):
        message: Any = np.ascontiguousarray(a).view(np.uint8)
        return f"{words} {zlib.crc32(message):08x}"
    if id(a) in names:
        return f"{words} {names[id(a)][1]}"
    if a.is_fully_addressable:
        parts = [shard.data for shard in a.addressable_shards if shard.replica_id == 0]
    elif a.is_fully_replicated:
        parts = [a.addressable_data(0)]
    else:
        return words
    return f"{words} {note(a, '-'.join(np.asarray(_checksum(part)).tobytes().hex() for part in parts))}"


@jax.jit
def _checksum(a: jax.Array) -> jax.Array:
    """[2] uint32, which depend on every bit and its place; Appleby's finalizer of MurmurHash3."""
    a = a.astype(np.uint8) if a.dtype == bool else jnp.stack([a.real, a.imag]) if jnp.iscomplexobj(a) else a
    bits = lax.bitcast_convert_type(a, {1: np.uint8, 2: np.uint16}.get(a.dtype.itemsize, np.uint32)).astype(np.uint32)
    place = lax.iota(np.uint32, bits.size).reshape(bits.shape)
    h = bits ^ (place * np.uint32(0x9E3779B1))
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    h = h ^ (h >> 16)
    return jnp.stack([jnp.sum(h, dtype=np.uint32), jnp.sum(h * (2 * place + 1), dtype=np.uint32)])
