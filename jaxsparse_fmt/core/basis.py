"""Operators, whatever multiplies vectors, and their bases: the order of unknowns in which a product permutes nothing.

A solver enters that order once, iterates with `A.in_basis @ p`, and leaves once. The loop permutes nothing, unless a
preconditioner works in the user's order.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import Parameters, Result
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core import vector_passes


@pytree
@dataclasses.dataclass(frozen=True)
class Basis:
    """An order of n unknowns: place k of the inner order holds unknown perm[k] of the user's.

    Attributes:
      perm: [n] int32, a permutation; None where the two orders are the same, and both maps cost nothing, and in the
        basis of a sharded matrix, which stores no permutation.
    """

    perm: Array | None = None

    over: ClassVar[Any] = None  # a `Distribution` of the vectors that have entered, if they lie over several devices

    def enter(self, x: Array) -> Array:
        """The user's vector [n] or [n, p] in the inner order."""
        return x if self.perm is None else x[self.perm]

    def leave(self, y: Array) -> Array:
        """A vector in the inner order, back in the user's."""
        if self.perm is None:
            return y
        return jnp.zeros_like(y).at[self.perm].set(y, unique_indices=True)

    @property
    def is_identity(self) -> bool:
        return self.perm is None

    @property
    def devices(self) -> int:
        """The number of devices that hold the parts of a vector that has entered."""
        return 1

    def same(self, other: "Basis") -> bool:
        """Whether both are the same map, decided without reading arrays."""
        return type(self) is type(other) and self.perm is other.perm

    def agree(self, given: Callable[[], dict[str, Any]]) -> None:
        """Raises an error if arguments, by name, differ between processes that solve together; not inside a trace."""

    def _of_all(self, value: Any) -> list[Any]:
        """The value of each process that solves together; all of them must call this."""
        return [value]

    def placed(self, x: Any) -> Any:
        """x, a concrete vector of the user, where the basis can take it; raises an error if it cannot."""
        return x

    def _shared(self, tree: Any) -> Any:
        """Small arrays, perhaps of a number for each column, whole on every device: any process reads them."""
        return tree

    def noise(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A user's vector [n] or [n, p] of `vector_passes.noise`, where `placed` would put it."""
        return vector_passes.noise(math.prod(shape), dtype).reshape(shape)

    def accept(self, x: Any, given: Any = None) -> Any:
        """`placed(x)`, of a vector on which all processes `agree`; `given` is what the user passed for it, if not x."""
        return self.placed(x)


IDENTITY = Basis()


class Operator:
    """What solvers ask of a matrix, a function, a preconditioner, factors, on one device or several.

    A subclass is a pytree. It provides `shape`, `dtype`, `T` and `@` for [n] or [n, k], and what differs from the
    answers here, which are those of an operator on one device and in the user's order.
    """

    shape: Any
    dtype: Any
    T: Any
    __matmul__: Any

    _fuses_sums = False  # whether it has `_matvec_sums`, a product and the sums of a pass over it at once

    @property
    def basis(self) -> Basis:
        """The order of the unknowns of a square operator in which `in_basis` works."""
        return IDENTITY

    @property
    def in_basis(self) -> Any:
        """The operator between vectors that have entered `basis`."""
        return self

    def _in_bases(self) -> tuple[Any, Basis, Basis]:
        """The operator between vectors that have entered two bases, that of x and that of A·x, and these."""
        return self, IDENTITY, IDENTITY

    def _entered(self, basis: Basis) -> Any:
        """The operator between vectors that have entered another's basis; None if it must permute them for that."""
        if basis.is_identity:
            return self
        return self.in_basis if self.basis.same(basis) else None

    def _partition(self, axis: Any) -> Any:
        """How the arrays lie over the devices: PartitionSpecs, as a prefix, with which the operator multiplies one
        device's pieces inside shard_map over `axis`; None: it cannot.
        """
        del axis

    def _agree(self, **given: Any) -> None:
        """Raises an error if arguments differ between the processes that hold the operator."""

    def _failing_together(self, operation: str) -> contextlib.AbstractContextManager[None]:
        """A context of an operation: what is raised there in one of the processes that hold the operator, all raise."""
        del operation
        return contextlib.nullcontext()


def agreed(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A decorator for functions of an operator, as methods are: the processes that hold it agree on the arguments, and
    what one of them refuses, all refuse.
    """
    names = [*inspect.signature(f).parameters]

    @functools.wraps(f)
    def called(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        given = dict(zip(names, args, strict=False)) | options
        A = given.pop(names[0], None)
        if not isinstance(A, Operator):
            return f(*args, **options)
        with A._failing_together(f.__name__.strip("_")):
            A._agree(**given)
            return f(*args, **options)

    return called


@pytree
class Reordered(Operator):
    """An operator between vectors that have entered `outer`, by one that works in the basis `inner`."""

    A: Any
    outer: Basis
    inner: Basis = IDENTITY

    @property
    def dtype(self) -> Any:
        return self.A.dtype

    @property
    def T(self) -> "Reordered":
        return dataclasses.replace(self, A=self.A.T)

    def __matmul__(self, x: Any) -> Array:
        x = self.inner.enter(self.outer.leave(x))
        return self.outer.enter(self.inner.leave(self.A @ x))


def within(A: Operator, basis: Basis) -> Operator:
    """The operator between vectors that have entered the basis, which it permutes twice if it must."""
    found = A._entered(basis)
    return Reordered(A, basis) if found is None else found
