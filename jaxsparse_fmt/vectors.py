"""Passes over vectors that fuse: for a solver's updates and inner products.

On a GPU a pass over real vectors of [n] is one kernel (`kernels/sweep.py`), and a sum stays in parts until something
asks for it, which may be the next pass. Elsewhere, and for complex numbers and [n, k] columns, it is plain jnp.

Vectors spread over devices (`distributed`) are passed over piece by piece, each device its own, since XLA cannot take a
kernel apart. A sum then stays in parts on every device, and the sums that the next pass asks for travel together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import Mesh, PartitionSpec

from jaxsparse_fmt._types import x64_enabled
from jaxsparse_fmt.kernels import dialect
from jaxsparse_fmt.kernels.sweep import Pass, inner_product, parts, sweep_reference
from jaxsparse_fmt.kernels.sweep import sweep as sweep_by_kernel

__all__ = [
    "Distribution",
    "Number",
    "Parts",
    "Pass",
    "by_kernel",
    "distributed",
    "dot",
    "inner_product",
    "joined",
    "noise",
    "normal",
    "platform_primitive",
    "sweep",
    "total",
]

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """A sum not yet summed: [m] numbers."""

    of: Array

    @property
    def dtype(self) -> Any:
        return self.of.dtype


Number = Array | Parts


def total(a: Number) -> Array:
    return jnp.sum(a.of) if isinstance(a, Parts) else a


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Where vectors lie: piece k, `counts[k]` numbers and zeros up to `size`, on the k-th device of a mesh axis."""

    mesh: Mesh
    axis: str
    counts: tuple[int, ...]
    size: int

    @property
    def places(self) -> int:
        """Of all pieces."""
        return len(self.counts) * self.size

    def emptied(self, x: Array) -> Array:
        """x [places, ...] with zeros in the empty places."""
        live = lax.iota(jnp.int32, self.size) < jnp.array(self.counts, jnp.int32)[:, None]
        return jnp.where(live.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)


_over = jax.make_user_context(None)


@contextlib.contextmanager
def distributed(over: Distribution | None) -> Iterator[None]:
    """What is traced inside works on vectors that are spread so; None: on one device, or inside shard_map."""
    with _over(over):
        yield


def normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Random numbers, normal in their real and imaginary parts; zero in the empty places of distributed vectors."""
    return _emptied(jax.random.normal(key, shape, dtype))


def noise(n: int, dtype: Any) -> Array:
    """n numbers between −1 and 1 without a pattern, the same at every call; zero in empty places too.

    A hash of the place, with shifts and factors that C. Wellons' search found to mix 32 bits best (hash-prospector):
    generators of jax.random take XLA on a CPU 0.4 s to compile, a seventh of a first solve.
    """
    h = lax.iota(jnp.uint32, n) + jnp.uint32(1)  # 0 would stay 0
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        h = (h ^ (h >> shift)) * jnp.uint32(factor)
    h = lax.bitcast_convert_type(h ^ (h >> 15), jnp.int32)
    wide = jnp.promote_types(dtype, jnp.float32)  # beside which 2⁻³¹ is a number
    return _emptied((h.astype(wide) * 2.0**-31).astype(dtype))


def _emptied(v: Array) -> Array:
    return v if _over.value is None else _over.value.emptied(v)


def joined(*numbers: Number) -> tuple[Number, ...]:
    """The sums of distributed vectors, in one collective; those of one device stay in parts."""
    over = _over.value
    if over is None or not any(isinstance(a, Parts) for a in numbers):
        return numbers
    each, places = _once(numbers)
    sums = functools.partial(_sums_over, axis=over.axis)
    pieces = tuple(PartitionSpec(over.axis) if isinstance(a, Parts) else PartitionSpec() for a in each)
    found = jax.shard_map(sums, mesh=over.mesh, in_specs=(pieces,), out_specs=PartitionSpec())(each)
    return tuple(found[place] for place in places)


def sweep(what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]):
    """One pass: new vectors, scalars and sums.

    Args:
      what: the functions of the pass. It must be the same object at every call, or each compiles anew.
      numbers: scalars or sums; [k] beside vectors of [n, k].
      vectors: [n] or [n, k], all alike.

    Returns:
      What `what.each` gives as new vectors, what `what.prepare` gives, and its sums.
    """
    over = _over.value
    if over is not None and _alike(*vectors):
        return _sweep_over(over, what, numbers, vectors)
    if not by_kernel(*vectors):
        return sweep_reference(tuple(map(total, numbers)), vectors, what)
    flat = [a.of if isinstance(a, Parts) else jnp.asarray(a) for a in numbers]
    shapes = jax.eval_shape(functools.partial(_sweep, counts=len(flat), what=what, backend="xla"), *flat, *vectors)
    counts = len(shapes[0]), len(shapes[1])
    out = sweep_p.bind(*flat, *vectors, counts=len(flat), what=what, backend=dialect.active_backend("auto"))
    new, scalars, sums = out[: counts[0]], out[counts[0] : sum(counts)], out[sum(counts) :]
    return tuple(new), tuple(scalars), tuple(map(Parts, sums))


def _sweep_over(over: Distribution, what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]):
    """Every device passes over its own piece, after one collective for the sums among `numbers`."""
    piece, same = PartitionSpec(over.axis), PartitionSpec()
    each, places = _once(numbers)

    def body(each, vectors):
        summed = _sums_over(each, over.axis)
        with distributed(None):
            new, scalars, sums = sweep(what, tuple(summed[place] for place in places), vectors)
        return new, scalars, tuple(Parts(jnp.reshape(a.of if isinstance(a, Parts) else a, -1)) for a in sums)

    specs = tuple(piece if isinstance(a, Parts) else same for a in each), piece
    # Scalars come from every device's kernel alike, which no type can tell: check_vma is off.
    mapped = jax.shard_map(body, mesh=over.mesh, in_specs=specs, out_specs=(piece, same, piece), check_vma=False)
    return mapped(each, vectors)


def _once(numbers: tuple[Number, ...]) -> tuple[tuple[Number, ...], list[int]]:
    """Each of the numbers once, and the place of every number among them. Inside shard_map none is known again."""
    each = {id(a): a for a in numbers}
    places = list(each)
    return tuple(each.values()), [places.index(id(a)) for a in numbers]


def _sums_over(numbers: tuple[Number, ...], axis: str) -> tuple[Array, ...]:
    """The numbers, in shard_map, with one collective for all that are in parts."""
    local = [jnp.sum(a.of) for a in numbers if isinstance(a, Parts)]
    if not local:
        return tuple(map(total, numbers))
    sums = iter(lax.psum(jnp.stack(local), axis))
    return tuple(next(sums) if isinstance(a, Parts) else a for a in numbers)


def dot(x: Array, y: Array) -> Number:
    """Re xᴴ·y, column by column."""
    return sweep(DOT, (), (x, y))[2][0]


DOT = Pass(lambda: (), lambda _, x, y: ((), ((x, y),)))


def by_kernel(*vectors: Array) -> bool:
    """Whether a pass over these is a kernel, should it run where JAX runs by default."""
    backend = dialect.active_backend("auto")
    runs = backend == "interpret" or (dialect.is_pallas(backend) and jax.default_backend() == "gpu")
    return runs and _alike(*vectors) and (vectors[0].shape[0] < 2**31 or x64_enabled()) and vectors[0].shape[0] > 0


def _alike(*vectors: Array) -> bool:
    """Whether they are single real vectors of one dtype."""
    same = all(v.ndim == 1 and v.dtype == vectors[0].dtype for v in vectors)
    return same and all(v.dtype in (jnp.float32, jnp.float64) for v in vectors)


def _sweep(*operands: Array, counts: int, what: Pass, backend: str):
    numbers, vectors = operands[:counts], operands[counts:]
    if dialect.is_pallas(backend):
        return sweep_by_kernel(numbers, vectors, what, backend)
    summed = tuple(jnp.sum(a) if a.ndim else a for a in numbers)
    new, scalars, sums = sweep_reference(summed, vectors, what)
    count = parts(vectors[0].shape[0])
    return new, scalars, tuple(jnp.zeros(count, s.dtype).at[0].set(s) for s in sums)


def platform_primitive(name: str, compute: Callable[..., Any], mapped: Callable[..., Any] | None = None) -> Primitive:
    """A primitive without derivatives whose compute(*operands, backend=…, **parameters) is told what runs.

    Under vmap it is `mapped`, of the same arguments, mapped over; None: its plain form.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def leaves(*operands, platform, backend, **parameters):
        return jax.tree.leaves(compute(*operands, backend=dialect.resolve(backend, platform), **parameters))

    def plain(*operands, backend, **parameters):
        del backend
        return jax.tree.leaves(compute(*operands, backend="xla", **parameters))

    def abstract(*avals, **parameters):
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        return [ShapedArray(o.shape, o.dtype) for o in jax.eval_shape(functools.partial(plain, **parameters), *shapes)]

    def batch(operands, dims, **parameters):
        of_one = plain if mapped is None else mapped
        alone = lambda *operands: jax.tree.leaves(of_one(*operands, **parameters))  # noqa: E731
        out = jax.vmap(alone, tuple(dims))(*operands)
        return out, (0,) * len(out)

    def lower(platform, ctx, *operands, **parameters):
        with dialect.without_deprecation():
            f = functools.partial(leaves, platform=dialect.lowering_platform(platform, ctx))
            return mlir.lower_fun(f, multiple_results=True)(ctx, *operands, **parameters)

    @functools.partial(jax.jit, static_argnames="parameters")
    def impl(*operands, parameters):
        return primitive.bind(*operands, **dict(parameters))

    primitive.def_impl(lambda *operands, **parameters: impl(*operands, parameters=tuple(parameters.items())))
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, functools.partial(lower, None))
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    return primitive


sweep_p = platform_primitive("vector_sweep", _sweep)
