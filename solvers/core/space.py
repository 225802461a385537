"""Where the vectors of a loop lie: sums, norms and passes over them, handed to a method as its first argument.

A method's arithmetic is local; the `Space` computes whatever adds up, or compares, all entries of a vector.

    HERE                      vectors on one device: a sum is a sum
    pieces, in shard_map      every device has its piece of each vector: a sum is the psum of the devices' sums
    whole, over devices       arrays that XLA spreads, as A or M is a function of whole vectors
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core import mesh_axes, vector_passes
from jaxsparse_fmt.core.vector_passes import Number, Parts, Pass
from solvers.core import vectors

Map = Callable[[Array], Array]


@pytree
@dataclasses.dataclass(frozen=True)
class Product:
    """v -> A·v, with sums over it from the same pass; `apply` is the product alone.

    On a GPU a call uses the kernel of the steps, the pass `what` over A·v and `count` vectors, so that XLA compiles one
    kernel.
    """

    apply: Map
    with_sums: Callable[..., tuple[Array, tuple[Number, ...]]]  # (v, what, *beside)
    what: Pass
    count: int

    def __call__(self, v: Array) -> Array:
        if not vector_passes.by_kernel(v):
            return self.apply(v)
        return self.with_sums(v, self.what, *[v] * self.count)[0]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Due(Parts):
    """This device's partial sums; part k of the total is the sum of all devices' part k."""


@dataclasses.dataclass(frozen=True)
class Space:
    """Vectors [n], or [n, k] for k systems; hashable, and static in a compiled function.

    Attributes:
      over: how the vectors lie over devices; None: on one.
      in_pieces: whether the code runs inside a shard_map over these devices.
    """

    over: Any = None
    in_pieces: bool = False

    def sum(self, partial: Array, *others: Array) -> Any:
        """The sums of these numbers over all devices: one, or a tuple from one collective."""
        if not self.in_pieces:
            return (partial, *others) if others else partial
        if not others:
            return lax.psum(partial, self.over.axis)
        return tuple(lax.psum(jnp.stack([partial, *others]), self.over.axis))

    def dot(self, x: Array, y: Array) -> Array:
        """Re xᴴ·y."""
        return self.sum(vectors.dot(x, y))

    def norm(self, x: Array) -> Array:
        """‖x‖₂; squares of very large or small entries over- or underflow."""
        return jnp.sqrt(self.dot(x, x))

    @functools.partial(jax.jit, static_argnums=0)
    def length(self, x: Array) -> Array:
        """‖x‖₂; no square over- or underflows."""
        exponent = self.exponent(x)
        return vectors.scaled(self.norm(vectors.scaled(x, -exponent)), exponent)

    def inner_product(self, x: Array, y: Array) -> Array:
        """xᴴ·y."""
        return self.sum(vectors.inner_product(x, y))

    def largest(self, v: Array) -> Array:
        """The largest magnitude in v, by column."""
        here = jnp.max(jnp.abs(v), axis=0)
        return lax.pmax(here, self.over.axis) if self.in_pieces else here

    def exponent(self, v: Array) -> Array:
        """e with 2ᵉ about the largest magnitude in v, by column, as in `vectors.exponent_of`."""
        return vectors.exponent_of(self.largest(v))

    def unit(self, v: Array) -> Array:
        """The power of two below the largest magnitude of v, by column, as far as the dtype can scale."""
        return vectors.power_below(self.largest(v))

    def places(self, v: Array) -> int:
        """The number of entries of v over all devices, with empty places."""
        return self.over.places if self.in_pieces else v.shape[0]

    def noise(self, like: Array, seed: int = 0) -> Array:
        """A real vector as long as `like`, of pseudorandom entries between −1 and 1, zero in empty places."""
        first = (lax.axis_index(self.over.axis) * self.over.size,) if self.in_pieces else ()
        v = vector_passes.noise(like.shape[0], like.real.dtype, seed, *first)
        return v if self.over is None else self.over.emptied(v)

    def probe(self, like: Array) -> Array:
        """Pseudorandom entries in the shape of `like`, the same in every column and every run."""
        v = self.noise(like).astype(like.dtype)
        return mesh_axes.varying(jnp.broadcast_to(v.reshape(-1, *(1,) * (like.ndim - 1)), like.shape), like)

    def unit_noise(self, like: Array) -> Array:
        """A pseudorandom vector of norm about 1, the same in every column."""
        return (3 / self.places(like)) ** 0.5 * self.probe(like)

    # ------------------------------------------------------------------------- passes, whose sums may stay in parts

    @property
    def _is_whole(self) -> bool:
        """Whether XLA spreads the vectors, which partitions no kernel."""
        return self.over is not None and not self.in_pieces

    def part(self, x: Array, y: Array) -> Number:
        """Re xᴴ·y, perhaps still to be added up."""
        return self.sweep(vector_passes.DOT, (), (x, y))[2][0]

    def _due(self, here: Number) -> Number:
        """A sum over this device's vectors, to be added up over all."""
        return Due(here.summands if isinstance(here, Parts) else here[None]) if self.in_pieces else here

    def joined(self, *numbers: Number) -> tuple[Number, ...]:
        """The numbers; one collective adds what several devices have of them, part by part: it waits for no sum."""
        due = {id(a): a.summands for a in numbers if isinstance(a, Due)}
        if not due:
            return numbers
        sums = lax.psum(jnp.concatenate([*due.values()]) if len(due) > 1 else next(iter(due.values())), self.over.axis)
        ends = np.cumsum([a.shape[0] for a in due.values()]).tolist()
        summed = {key: Parts(a) for key, a in zip(due, jnp.split(sums, ends[:-1]), strict=True)}
        return tuple(summed.get(id(a), a) for a in numbers)

    def sweep(self, what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]) -> Any:
        """As `vector_passes.sweep`, after one collective for the sums among `numbers`."""
        pass_over = vector_passes.plain_sweep if self._is_whole else vector_passes.sweep
        new, scalars, sums = pass_over(what, self.joined(*numbers), vectors)
        return new, scalars, tuple(map(self._due, sums))

    def product_sums(self, A: Map, v: Array, what: Pass, *beside: Array) -> tuple[Array, tuple[Number, ...]]:
        """A·v, and the sums of a pass over A·v and the vectors `beside`."""
        if isinstance(A, Product):
            q, sums = A.with_sums(v, what, *beside)
            return q, tuple(map(self._due, sums))
        q = A(v)
        return q, self.sweep(what, (), (q, *beside))[2]

    def sums_at_once(self, v: Array) -> bool:
        """Whether several sums cost as one: in a kernel, or in one collective."""
        return self.in_pieces or (self.over is None and vector_passes.by_kernel(v))


HERE = Space()
largest, exponent, norm, length = HERE.largest, HERE.exponent, HERE.norm, HERE.length


def outside(basis: Any) -> Space:
    """The space of arrays that have entered the basis, outside of shard_map."""
    return Space(basis.over)


def product(A: Any, dtype: Any, sums: tuple[Pass, int] | None = None) -> Map:
    """v -> A·v in `dtype`; with `sums` a `Product`, if A computes sums too."""

    def apply(v: Array) -> Array:
        return (A @ v).astype(dtype)

    if sums and A._fuses_sums and jnp.result_type(A.dtype, dtype) == dtype:
        return Product(apply, A._matvec_sums, *sums)
    return apply


def transposed(f: Map, example: Any) -> Map:
    """v -> fᵀ·v of a linear f from and to vectors like `example`."""
    apply, like = f.apply if isinstance(f, Product) else f, mesh_axes.shaped_like(example, example.dtype)
    return lambda v: jax.linear_transpose(apply, like)(v)[0]
