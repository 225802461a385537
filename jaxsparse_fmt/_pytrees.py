"""Dataclasses as pytrees, as what `jax.export` writes, and as one line of text."""

import ast
import dataclasses
import operator
import re
from collections.abc import Collection
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._text import readable_bytes

Class = TypeVar("Class", bound=type[Any])


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def pytree(cls: Class, leaves: Collection[str] | None = None, mark: Any = None) -> Class:
    """Makes a class a pytree, and a frozen dataclass, compared by identity, unless it is a dataclass already.

    In place of `jax.tree_util.register_dataclass`: in JAX 0.10 and 0.11 the trees of two classes that it registered are
    equal if their static fields are (their hashes differ), and about one of a hundred calls with one class then runs a
    program that was compiled for the other. The flattening below costs 0.5 µs more than JAX's own.

    Args:
      leaves: the fields that hold arrays or pytrees; the rest is static, hashed and compared. None: all fields but
        those with the metadata {"static": True}.
      mark: a function of an instance, whose result is one more static part, made once. `_unflattened(mark, leaves)` of
        the class gets it when an instance is made of leaves; of a class without a mark `_unflattened()` is called.
    """
    if "__dataclass_fields__" not in vars(cls):
        cls = dataclasses.dataclass(frozen=True, eq=False, repr=cls.__repr__ is object.__repr__)(cls)
    data: list[str] = []
    static: list[str] = []
    for f in dataclasses.fields(cls):
        is_leaf = not f.metadata.get("static") if leaves is None else f.name in leaves
        (data if is_leaf else static).append(f.name)
    finish = getattr(cls, "_unflattened", None)
    keys = [*map(jax.tree_util.GetAttrKey, data)]
    # `attrgetter` returns a tuple of two attributes or more: of fewer fields, they follow.
    end, static_end = len(data), len(static)
    data_of = operator.attrgetter(*data, *["__class__"] * (2 - end))
    static_of = operator.attrgetter(*static, *["__class__"] * (2 - static_end))

    def flatten(self: Any) -> Any:
        if mark is None:
            return data_of(self)[:end], static_of(self)[:static_end]
        marked = self.__dict__.get("_marked")
        if marked is None:
            marked = self.__dict__["_marked"] = (*static_of(self)[:static_end], mark(self))
        return data_of(self)[:end], marked

    def flatten_with_keys(self: Any) -> Any:
        values, rest = flatten(self)
        return zip(keys, values, strict=True), rest

    def unflatten(static_values: Any, data_values: Any) -> Any:  # without `__init__`: the leaves may be anything
        self = object.__new__(cls)
        self.__dict__.update(zip(data, data_values, strict=True))
        self.__dict__.update(zip(static, static_values, strict=mark is None))
        if finish is not None:
            finish(self) if mark is None else finish(self, static_values[-1], data)
        return self

    def state(self: Any) -> dict[str, Any]:  # for copies, which have a mark of their own
        return {name: value for name, value in vars(self).items() if name != "_marked"}

    if mark is not None:
        cls.__getstate__ = state  # pyright: ignore[reportAttributeAccessIssue]
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def exportable(cls: Class) -> Class:
    """Registers a dataclass pytree as an input and output of programs that `jax.export` serializes.

    Its static fields must be Python literals: numbers, strings, None, and tuples of them. A process that loads such a
    program must have imported the class.
    """
    jax.export.register_pytree_node_serialization(
        cls,
        serialized_name=f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}",
        serialize_auxdata=lambda static: repr(static).encode(),
        deserialize_auxdata=lambda written: ast.literal_eval(written.decode()),
    )
    return cls


def brief(cls: Class) -> Class:
    """Gives a pytree with a shape and a dtype a `repr` of one line, `<jacobi 16×16, float32, 64 B>`."""
    name = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __repr__(self: Any) -> str:
        leaves = jax.tree.leaves(self)
        if not leaves or not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):  # of jax.tree.map
            return f"<{name}, leaves {leaves}>"
        rows, cols = self.shape
        return f"<{name} {rows}×{cols}, {jnp.dtype(self.dtype).name}, {readable_bytes(sum(a.nbytes for a in leaves))}>"

    cls.__repr__ = __repr__  # pyright: ignore[reportAttributeAccessIssue]
    return cls
