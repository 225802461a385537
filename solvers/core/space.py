"""Where the vectors of a loop lie: sums, norms and passes over them, handed to a method as its first argument.

A method's arithmetic is local; whatever adds up, or looks at, all numbers of a vector is asked of the `Space`.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt.core import mesh_axes, vector_passes
from jaxsparse_fmt.core.vector_passes import Number, Pass
from solvers.core import scaling, vectors
from solvers.core.scaling import Map, Product


@dataclasses.dataclass(frozen=True)
class Space:
    """Vectors [n], or [n, k] for k systems, on one device; hashable, and static in a compiled function."""

    def sum(self, partial: Array, *others: Array) -> Any:
        """The sums of these numbers over all devices: one, or a tuple from one collective."""
        return (partial, *others) if others else partial

    def dot(self, x: Array, y: Array) -> Array:
        """Re xᴴ·y."""
        return self.sum(vectors.dot(x, y))

    def norm(self, x: Array) -> Array:
        """‖x‖₂; squares of very large or small numbers over- or underflow."""
        return jnp.sqrt(self.dot(x, x))

    def length(self, x: Array) -> Array:
        """‖x‖₂; no square over- or underflows."""
        size = self.exponent(x)
        return scaling.scaled(self.norm(scaling.scaled(x, -size)), size)

    def inner_product(self, x: Array, y: Array) -> Array:
        """xᴴ·y."""
        return self.sum(vectors.inner_product(x, y))

    def inner_products(self, *pairs: tuple[Array, Array]) -> Array:
        """xᴴ·y of each pair (x, y), in one reduction: [pairs], or [pairs, k]."""
        return self.sum(vectors.inner_products(*pairs))

    def largest(self, v: Array) -> Array:
        """The largest absolute number of v, by column."""
        return scaling.largest(v)

    def anywhere(self, flags: Array) -> Array:
        """Whether any flag of a vector is set, by column."""
        return jnp.any(flags, axis=0)

    def exponent(self, v: Array) -> Array:
        """As `scaling.exponent`."""
        return scaling.exponent_of(self.largest(v))

    def orthogonal(self, V: Array, w: Array, t: Array) -> tuple[Array, Array]:
        """As `vectors.orthogonal`."""
        return vectors.orthogonal(self, V, w, t)

    def length_of(self, v: Array) -> int:
        """The number of unknowns of v, with empty places."""
        return v.shape[0]

    def noise(self, like: Array, seed: int = 0) -> Array:
        """A real vector as long as `like`, of numbers between −1 and 1 without a pattern; see `vector_passes.noise`."""
        return vector_passes.noise(like.shape[0], like.real.dtype, seed)

    def probe(self, like: Array) -> Array:
        """Numbers without a pattern in the shape of `like`, the same in every column and every run."""
        v = self.noise(like).astype(like.dtype)
        return mesh_axes.varying(jnp.broadcast_to(v.reshape(-1, *(1,) * (like.ndim - 1)), like.shape), like)

    # ------------------------------------------------------------------------- passes, whose sums may stay in parts

    def part(self, x: Array, y: Array) -> Number:
        """Re xᴴ·y, perhaps still to be added up."""
        return vector_passes.dot(x, y)

    def total(self, a: Number) -> Array:
        """A sum in parts, added up."""
        return vector_passes.total(a)

    def joined(self, *numbers: Number) -> tuple[Number, ...]:
        """The numbers, of which one collective adds up all that are in parts on several devices."""
        return vector_passes.joined(*numbers)

    def sweep(self, what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]) -> Any:
        """As `vector_passes.sweep`, after one collective for the sums among `numbers`."""
        return vector_passes.sweep(what, numbers, vectors)

    def product_dot(self, A: Map, v: Array) -> tuple[Array, Number]:
        """A·v and vᴴ·A·v."""
        if isinstance(A, Product):
            return A.with_dot(v)
        q = A(v)
        return q, self.part(v, q)


HERE = Space()
