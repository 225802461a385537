"""Complex numbers in kernels, whose dialects know real ones only: a vector of lanes is a pair of real vectors.

    z[k]     in memory the real numbers 2·k and 2·k + 1

The kernel reads and writes the memory of the complex arrays itself. XLA has no view of complex numbers as real ones, so
`on_reals` lowers a call for real arrays and then gives it the complex arrays in their place.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.backends import jax_versions


def is_complex(a: Any) -> bool:
    """Whether an array, or what has a dtype, is complex."""
    return jnp.issubdtype(a.dtype, jnp.complexfloating)


def reals(dtype: Any) -> int:
    """The number of real numbers that make one of this dtype: 2 if it is complex, else 1."""
    return 2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Complex numbers, one per lane, or one per lane and right-hand side."""

    re: Any
    im: Any

    def __add__(self, other: Any) -> "Pair":
        if isinstance(other, Pair):
            return Pair(self.re + other.re, self.im + other.im)
        return Pair(self.re + other, self.im)

    __radd__ = __add__

    def __mul__(self, other: Any) -> "Pair":
        if isinstance(other, Pair):
            return Pair(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)
        return Pair(self.re * other, self.im * other)

    __rmul__ = __mul__

    def __sub__(self, other: "Pair") -> "Pair":
        return Pair(self.re - other.re, self.im - other.im)

    def __truediv__(self, other: "Pair") -> "Pair":
        """Without squares that leave the range where the quotient does not."""
        size = jnp.maximum(jnp.abs(other.re), jnp.abs(other.im))
        re, im = other.re / size, other.im / size
        scaled = self * Pair(re, -im)
        squared = (re * re + im * im) * size
        return Pair(scaled.re / squared, scaled.im / squared)

    def __ne__(self, number: Any) -> Any:
        """Whether each differs from a real number."""
        return (self.re != number) | (self.im != 0)


def widened(a: Any, dtype: Any) -> Any:
    """Lanes in the precision of `dtype`; real ones stay real."""
    return jax.tree.map(lambda part: part.astype(jnp.finfo(dtype).dtype), a)


def where(live: Any, a: Any, b: Any = None) -> Any:
    """a in the lanes where `live`, b in the others; None: zero."""
    b = jax.tree.map(jnp.zeros_like, a) if b is None else b
    return jax.tree.map(lambda this, that: jnp.where(live, this, that), a, b)


@dataclasses.dataclass(frozen=True)
class Complex:
    """A reference to complex numbers in memory: `reals`, to twice as many real ones."""

    reals: Any


class InPairs:
    """The dialect `d`, with pairs for complex numbers."""

    def __init__(self, d: Any):
        self._d, self.rows = d, d.rows
        self.program_id, self.lanes, self.part, self.barrier = d.program_id, d.lanes, d.part, d.barrier

    def full(self, value: Any, dtype: Any) -> Any:
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            return self._d.full(value, dtype)
        part = jnp.finfo(dtype).dtype
        return Pair(self._d.full(value, part), self._d.full(0, part))

    def load(self, ref: Any, idx: Any, live: Any = None, other: Any = 0, once: bool = False) -> Any:
        """As the dialect's; `other` is real."""
        if not isinstance(ref, Complex):
            return self._d.load(ref, idx, live, other, once)
        others = (other, 0)
        return Pair(*(self._d.load(ref.reals, 2 * idx + k, live, others[k], once) for k in range(2)))

    def store(self, ref: Any, idx: Any, value: Any, live: Any) -> None:
        if not isinstance(ref, Complex):
            return self._d.store(ref, idx, value, live)
        self._d.store(ref.reals, 2 * idx, value.re, live)
        self._d.store(ref.reals, 2 * idx + 1, value.im, live)

    def sum_threads(self, value: Any, n: int, stride: int) -> Any:
        return jax.tree.map(lambda part: self._d.sum_threads(part, n, stride), value)


def real_struct(a: Any, kind: Any = jax.ShapeDtypeStruct) -> Any:
    """The flat real array whose memory a flat array is."""
    return kind((reals(a.dtype) * a.size,), jnp.finfo(a.dtype).dtype if is_complex(a) else a.dtype)


def on_reals(
    run: Callable[..., tuple[Array, ...]], arrays: Sequence[Array], out: Sequence[jax.ShapeDtypeStruct], copies: bool
) -> tuple[Array, ...]:
    """run(*arrays), one kernel that gets and returns real arrays, on the memory of these flat ones.

    The interpreter needs copies; else the program is for a GPU.
    """
    if copies:
        given = [jnp.stack([a.real, a.imag], -1).reshape(-1) if is_complex(a) else a for a in arrays]
        results = zip(run(*given), out, strict=True)
        return tuple(jax.lax.complex(r[0::2], r[1::2]) if is_complex(o) else r for r, o in results)
    return tuple(_on_reals_p.bind(*arrays, run=run, out=tuple((o.shape, o.dtype) for o in out)))


_on_reals_p = Primitive("kernel_on_reals")
_on_reals_p.multiple_results = True


@_on_reals_p.def_abstract_eval
def _abstract(*avals, run, out):
    del run
    return [jax_versions.abstract_like(avals, *o) for o in out]


@_on_reals_p.def_impl
def _impl(*arrays, **params):
    return jax.jit(lambda *arrays: _on_reals_p.bind(*arrays, **params))(*arrays)


def _lower(ctx, *operands, run, out):
    """The custom call of `run`, with complex types in place of real ones: it reads addresses, whatever is there."""
    del out
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import builtin

    views = {}
    for i, operand in enumerate(operands):
        if is_complex(ctx.avals_in[i]):
            part = ir.ComplexType(ir.RankedTensorType(operand.type).element_type).element_type
            real = ir.RankedTensorType.get([2 * ctx.avals_in[i].size], part)
            views[i] = builtin.UnrealizedConversionCastOp([real], [operand]).results[0]
    avals_in, avals_out = ([real_struct(a, ShapedArray) for a in avals] for avals in (ctx.avals_in, ctx.avals_out))
    given = [views.get(i, operand) for i, operand in enumerate(operands)]
    results = mlir.lower_fun(run, multiple_results=True)(ctx.replace(avals_in=avals_in, avals_out=avals_out), *given)
    for i, view in views.items():
        view.replace_all_uses_with(operands[i])
        view.owner.erase()
    for result, aval in zip(results, ctx.avals_out, strict=True):
        if is_complex(aval):
            part = ir.RankedTensorType(result.type).element_type
            result.set_type(ir.RankedTensorType.get(aval.shape, ir.ComplexType.get(part)))
    return results


mlir.register_lowering(_on_reals_p, _lower, platform="cuda")
