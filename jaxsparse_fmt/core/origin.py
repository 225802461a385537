"""Whether a tree function changed the index arrays of a matrix, as `jax.tree.map(lambda a: 2 * a, A)` does.

The static part of a matrix's tree ends with an `Origin`: 1 if its index arrays were changed, and a weak reference to
the matrix. So what is made by that tree compares its index arrays with those of the matrix: by identity, which is all
that `jit` and filtered optimizers need, and by their numbers only if they are other arrays. A matrix found to be
changed refuses to be used. Its tree differs from those of others, so that no compiled program takes it for one of them.

In a trace the numbers are unknown: there the primitive that made an index array decides.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt._tracing import concrete, is_on_cpu

ARITHMETIC = ("add", "sub", "mul", "div", "rem", "neg", "sign", "square", "integer_pow", "max", "min")


class Origin(int):
    matrix: Any = None  # a weak reference

    @classmethod
    def of(cls, A: Any) -> "Origin":
        made = cls(A._is_changed)
        made.matrix = weakref.ref(A)
        return made

    def __reduce__(self) -> Any:
        return int, (int(self),)


def note(A: Any, origin: int, names: Sequence[str]) -> None:
    """Notes in A, made by the tree of `origin`, whether it or the matrix of that tree has changed index arrays."""
    matrix = getattr(origin, "matrix", None)
    given = matrix and matrix()
    is_changed = bool(origin)
    # The patterns of a stack may change.
    if not is_changed and given is not None and len(getattr(given.values, "shape", ())) == 1:
        new, old, found = vars(A), vars(given), set()
        for name in names:
            a = new[name]
            is_argument = isinstance(a, Tracer) and getattr(a, "parent", None) is None  # which no primitive made
            if a is not old[name] and name != "values" and not is_argument:
                found.add(_mapped(a, old[name]))
        is_changed = True in found and False not in found
    if is_changed:
        vars(A)["_is_changed"] = True


def _mapped(new: Any, old: Any) -> bool | None:
    """Whether equal numbers of an index array became equal ones, as no other pattern has them; None: nothing changed.

    Arrays of zeros, as in the state of an optimizer, and of other shapes and kinds of numbers count as unchanged.
    """
    arrays = isinstance(new, jax.Array | np.ndarray) and isinstance(old, jax.Array | np.ndarray)
    if not arrays or new.shape != old.shape or not {new.dtype.kind, old.dtype.kind} <= set("iu"):
        return None
    if isinstance(new, Tracer):
        made_by = getattr(new, "parent", None)  # which JAX does not promise to have
        return getattr(getattr(made_by, "primitive", None), "name", None) in ARITHMETIC or None
    if isinstance(old, Tracer) or not all(map(_is_at_hand, (new, old))) or is_on_cpu(new) != is_on_cpu(old):
        return None
    # From an accelerator one flag travels to the host, unless something changed.
    if isinstance(new, jax.Array) and isinstance(old, jax.Array) and not is_on_cpu(new):
        with concrete():
            if new.devices() != old.devices() or jnp.array_equal(new, old):
                return None
    new, old = np.asarray(new), np.asarray(old)
    if np.array_equal(new, old) or not (new.any() and old.any()):
        return None
    _, first, number = np.unique(old, return_index=True, return_inverse=True)
    return np.array_equal(new, new[first][number])


def _is_at_hand(a: Any) -> bool:
    return isinstance(a, np.ndarray) or (a.is_fully_addressable and not a.is_deleted())
