"""Fused passes over vectors, for a solver's updates and inner products.

On a GPU a pass over real vectors of [n] is one kernel (`kernels/vector_pass.py`), and a sum stays in parts until
it is needed, perhaps by the next pass. Elsewhere, and for complex numbers and [n, k] columns, a pass is plain jnp.

For vectors spread over devices (`distributed`), every device passes over its own piece, since XLA cannot partition a
kernel. A sum then stays in parts on every device, and one collective adds up all sums that the next pass needs.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt._types import Array, pytree, standard_promotion, x64_enabled
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.kernels.backends import jax_versions, selection
from jaxsparse_fmt.kernels.vector_pass import Pass, parts, sweep_reference
from jaxsparse_fmt.kernels.vector_pass import inner_product as inner_product  # for solvers
from jaxsparse_fmt.kernels.vector_pass import sweep as sweep_by_kernel


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """A sum in parts: [m] numbers that are still to be added."""

    of: Array

    @property
    def dtype(self) -> Any:
        return self.of.dtype


Number = Array | Parts


def total(a: Number) -> Array:
    return jnp.sum(a.of) if isinstance(a, Parts) else a


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Vectors over a mesh axis: device k has piece k, `counts[k]` numbers and zeros up to `size`.

    `axis` may be a tuple of mesh axes, which together count as one, the last of them fastest.
    """

    mesh: Mesh
    axis: Any
    counts: tuple[int, ...]
    size: int

    @property
    def places(self) -> int:
        """Places of all pieces together."""
        return len(self.counts) * self.size

    @property
    def mesh_here(self) -> Any:
        """The mesh for code that is traced here: the context's if there is one, like `mesh`; else `mesh`."""
        self.check_context()
        here = jax.sharding.get_abstract_mesh()
        return self.mesh if here.empty else here

    def check_context(self) -> None:
        """Raises ValueError in a context with another mesh."""
        here = jax.sharding.get_abstract_mesh()
        if not here.empty and here.shape_tuple != self.mesh.shape_tuple:
            raise ValueError(
                f"the matrix lies on the mesh {dict(self.mesh.shape)}, but jax.set_mesh or shard_map has set "
                f"{dict(here.shape)}; use it on its own mesh, or shard it anew"
            )

    @property
    def is_manual(self) -> bool:
        """Whether the code that is traced here is inside a shard_map over the axis, and sees one device's pieces.

        ValueError: inside one over some of the axes that together count as one.
        """
        own = {*mesh_axes.names(self.axis)}
        mapped = own & {*jax.sharding.get_abstract_mesh().manual_axes}
        if mapped and mapped != own:
            raise ValueError(
                f"the matrix lies over the axes {self.axis!r} together, and shard_map is over {sorted(mapped)} alone; "
                "map over all of them"
            )
        return mapped == own

    def piece_of(self, x: Array) -> PartitionSpec:
        """How vectors [m] or [m, p] lie: pieces over the axis, columns over the mesh's other axes if these divide p.

        The devices along those axes hold copies of a matrix, so each multiplies its own columns. An axis over which
        vmap spreads a batch (`spmd_axis_name`) is not among them.
        """
        taken = {*mesh_axes.names(self.axis)} | jax_versions.batch_axes()
        sizes, free = self.mesh_here.shape, mesh_axes.auto_axes(self.mesh_here) - taken
        others = tuple(axis for axis in sizes if axis in free)
        divides = x.ndim == 2 and x.shape[1] % math.prod(sizes[axis] for axis in others) == 0
        return PartitionSpec(self.axis, others) if divides and others else PartitionSpec(self.axis)

    def mapped(self, f: Callable[..., Any], in_specs: Any, out_specs: Any, check_vma: bool = True) -> Any:
        """shard_map over the axis, and over the other axes of `out_specs`; see `mesh_axes.axes_to_map`."""
        mesh = self.mesh_here
        specs = jax.tree.leaves(out_specs, is_leaf=lambda spec: isinstance(spec, PartitionSpec))
        others = {axis for spec in specs for entry in spec for axis in mesh_axes.names(entry)}
        names = mesh_axes.axes_to_map(mesh, self.axis) | others
        return jax.shard_map(
            f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names, check_vma=check_vma
        )

    def by_xla(self, f: Callable[..., Any], operands: tuple[Any, ...], out: Any) -> Any:
        """f(*operands) with the axis as an auto axis; see `mesh_axes.by_xla`."""
        return mesh_axes.by_xla(f, operands, out, self.mesh.abstract_mesh, mesh_axes.names(self.axis))

    def placed(self, a: Array) -> Array:
        """An array of pieces on the mesh of the context, whose axes may be explicit where its own are auto."""
        here = jax.sharding.get_abstract_mesh()
        if here.empty or here == jax.typeof(a).sharding.mesh or self.is_manual:
            return a
        kept = tuple(axis for axis in mesh_axes.names(self.axis) if axis in mesh_axes.explicit_axes(here))
        return jax.reshard(a, NamedSharding(self.mesh_here, PartitionSpec(kept or None)))

    def emptied(self, x: Array) -> Array:
        """x [places, ...] with zeros in the empty places."""
        live = lax.iota(jnp.int32, self.size) < jnp.array(self.counts, jnp.int32)[:, None]
        return jnp.where(live.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)


_over = jax.make_user_context(None)


@contextlib.contextmanager
def distributed(over: Distribution | None) -> Iterator[None]:
    """A context for code on vectors that are spread as `over` describes; None: on one device, or inside shard_map."""
    with contextlib.nullcontext() if over is _over.value else _over(over):  # JAX traces anew in a new context
        yield


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def noise(n: int, dtype: Any, seed: int = 0) -> Array:
    """n numbers between −1 and 1 without a pattern, the same at every call with a seed; zero in empty places too.

    Each number is a hash of its place, with the shifts and factors that C. Wellons' search found to mix 32 bits best
    (hash-prospector). A generator of jax.random would take XLA on a CPU 0.4 s to compile.
    """
    h = lax.iota(jnp.uint32, n) + jnp.uint32((1 + seed * 0x9E3779B9) % 2**32)  # 0 would stay 0
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        h = (h ^ (h >> shift)) * jnp.uint32(factor)
    h = lax.bitcast_convert_type(h ^ (h >> 15), jnp.int32)
    wide = jnp.promote_types(dtype, jnp.float32)  # a dtype that can represent 2⁻³¹
    v = (h.astype(wide) * 2.0**-31).astype(dtype)
    return v if _over.value is None else _over.value.emptied(v)


def joined(*numbers: Number) -> tuple[Number, ...]:
    """The numbers; one collective adds up the sums of distributed vectors, and sums of one device stay in parts."""
    over = _over.value
    if over is None or not any(isinstance(a, Parts) for a in numbers):
        return numbers
    each, places = _once(numbers)
    sums = functools.partial(_sums_over, axis=over.axis)
    pieces = tuple(PartitionSpec(over.axis) if isinstance(a, Parts) else PartitionSpec() for a in each)
    found = over.mapped(sums, (pieces,), PartitionSpec())(each)
    return tuple(found[place] for place in places)


def sweep(what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]):
    """One pass: new vectors, scalars and sums.

    Args:
      what: the functions of the pass. It must be the same object at every call, or each call compiles anew.
      numbers: scalars or sums; [k] beside vectors of [n, k].
      vectors: [n] or [n, k], all alike.

    Returns:
      The new vectors of `what.each`, the scalars of `what.prepare`, and the sums of `what.each`.
    """
    over = _over.value
    if over is not None and _alike(*vectors):
        return _sweep_over(over, what, numbers, vectors)
    if not by_kernel(*vectors):
        return sweep_reference(tuple(map(total, numbers)), vectors, what)
    flat = [a.of if isinstance(a, Parts) else jnp.asarray(a) for a in numbers]
    shapes = jax.eval_shape(functools.partial(_sweep, counts=len(flat), what=what, backend="xla"), *flat, *vectors)
    counts = len(shapes[0]), len(shapes[1])
    out = sweep_p.bind(
        *mesh_axes.varying((*flat, *vectors)), counts=len(flat), what=what, backend=selection.active_backend("auto")
    )
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
    # Every device's kernel computes the same scalars; types cannot express that, so check_vma is off.
    return over.mapped(body, specs, (piece, same, piece), check_vma=False)(each, vectors)


def _once(numbers: tuple[Number, ...]) -> tuple[tuple[Number, ...], list[int]]:
    """The distinct numbers, and the place of every number among them; inside shard_map identities are lost."""
    each = {id(a): a for a in numbers}
    places = list(each)
    return tuple(each.values()), [places.index(id(a)) for a in numbers]


def _sums_over(numbers: tuple[Number, ...], axis: Any) -> tuple[Array, ...]:
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
    """Whether a pass over these vectors is a kernel on JAX's default device."""
    backend = selection.active_backend("auto")
    runs = backend == "interpret" or (selection.is_pallas(backend) and jax.default_backend() == "gpu")
    return runs and _alike(*vectors) and (vectors[0].shape[0] < 2**31 or x64_enabled()) and vectors[0].shape[0] > 0


def _alike(*vectors: Array) -> bool:
    """Whether all are real vectors [n] of one dtype."""
    same = all(v.ndim == 1 and v.dtype == vectors[0].dtype for v in vectors)
    return same and all(v.dtype in (jnp.float32, jnp.float64) for v in vectors)


def _sweep(*operands: Array, counts: int, what: Pass, backend: str):
    numbers, vectors = operands[:counts], operands[counts:]
    if selection.is_pallas(backend):
        return sweep_by_kernel(numbers, vectors, what, backend)
    summed = tuple(jnp.sum(a) if jnp.ndim(a) else a for a in numbers)
    new, scalars, sums = sweep_reference(summed, vectors, what)
    count = parts(vectors[0].shape[0])
    return new, scalars, tuple(jnp.zeros(count, s.dtype).at[0].set(s) for s in sums)


def platform_primitive(name: str, compute: Callable[..., Any], mapped: Callable[..., Any] | None = None) -> Primitive:
    """A primitive without derivatives, lowered as compute(*operands, backend=the resolved one, **parameters).

    vmap maps over `mapped`, a function of the same arguments; None: `compute` on the backend "xla".
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    @standard_promotion
    def leaves(*operands, platform, backend, **parameters):
        return jax.tree.leaves(compute(*operands, backend=selection.resolve(backend, platform), **parameters))

    @standard_promotion
    def plain(*operands, backend, **parameters):
        del backend
        return jax.tree.leaves(compute(*operands, backend="xla", **parameters))

    def abstract(*avals, **parameters):
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        out = jax.eval_shape(functools.partial(plain, **parameters), *shapes)
        return [jax_versions.abstract_like(avals, o.shape, o.dtype) for o in out]

    @standard_promotion
    def batch(operands, dims, **parameters):
        of_one = plain if mapped is None else mapped
        alone = lambda *operands: jax.tree.leaves(of_one(*operands, **parameters))  # noqa: E731
        out = jax.vmap(alone, tuple(dims))(*operands)
        return out, (0,) * len(out)

    def lower(platform, ctx, *operands, **parameters):
        with jax_versions.without_deprecation():
            f = functools.partial(leaves, platform=jax_versions.lowering_platform(platform, ctx))
            return mlir.lower_fun(f, multiple_results=True)(jax_versions.bare(ctx), *operands, **parameters)

    @functools.partial(jax.jit, static_argnames="parameters")
    def impl(*operands, parameters):
        return primitive.bind(*operands, **dict(parameters))

    def compiled(*operands, **parameters):
        with jax.disable_jit(False):  # else `impl` would bind the primitive, which would call `compiled` again
            return impl(*operands, parameters=tuple(parameters.items()))

    primitive.def_impl(compiled)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    for platform in (None, "cpu", "cuda"):
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    return primitive


sweep_p = platform_primitive("vector_sweep", _sweep)


def _sweep_jvp(primals, tangents, *, counts, what, backend):
    """The derivative of the plain form, for a solver's unrolled steps."""
    del backend
    plain = lambda *operands: jax.tree.leaves(_sweep(*operands, counts=counts, what=what, backend="xla"))  # noqa: E731
    return jax.jvp(plain, primals, tuple(map(ad.instantiate_zeros, tangents)))


ad.primitive_jvps[sweep_p] = _sweep_jvp
