"""Code for whole arrays, called on arrays that are sharded over explicit mesh axes (`jax.make_mesh`'s default).

The types of such arrays name the axes over which they are sharded. There are two ways to call a function on them:

    by_pieces   manual axes: the function is many independent ones along them, and every device computes its own
    by_xla      auto axes: XLA partitions the function

`by_pieces` leaves axes alone that no operand's type names, over which the caller may map (`vmap`).
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.backends import jax_versions


def are_explicit(*trees: Any) -> bool:
    """Whether the type of a leaf names an explicit mesh axis. Without a mesh none does."""
    return any([any(jax.typeof(a).sharding.spec) for a in jax.tree.leaves(trees)])


def axes_of(a: Any) -> tuple[tuple[str, ...], ...]:
    """For each axis of the array, the explicit mesh axes over which that axis is sharded."""
    return tuple(names(entry) for entry in jax.typeof(a).sharding.spec)


def names(entry: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def all_axes(*trees: Any) -> tuple[str, ...]:
    """The explicit mesh axes that the types of all leaves name, each once."""
    named = (axis for leaf in jax.tree.leaves(trees) for axes in axes_of(leaf) for axis in axes)
    return tuple(dict.fromkeys(named))


def mesh_of(*trees: Any) -> Any:
    """The abstract mesh with which the leaves are traced: the context's, else that of a sharded leaf."""
    context = jax.sharding.get_abstract_mesh()
    if not context.empty:
        return context
    return next((jax.typeof(a).sharding.mesh for a in jax.tree.leaves(trees) if all_axes(a)), context)


def spec_like(a: Any, *first: Any) -> PartitionSpec:
    """The sharding over explicit axes of an array: `first` for its first axes, that of `a` for the others."""
    taken = {axis for entry in first for axis in names(entry)}
    rest = [tuple(axis for axis in axes if axis not in taken) for axes in axes_of(a)[len(first) :]]
    return PartitionSpec(*first, *(axes or None for axes in rest))


def _spec(axes: Sequence[tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(names or None for names in axes))


def by_pieces(f: Callable[..., Any], operands: Sequence[Any], labels: Sequence[str], out: Any) -> Any:
    """f(*operands), each device with its own pieces.

    Args:
      operands: pytrees.
      labels: for each operand a string with one letter for each axis of its arrays. "." means that f needs the whole
        axis; "_", or no letter, that the axis stays as it is. Axes with the same letter are sharded alike.
      out: such strings, as a prefix of f's result. f sums over the axes whose letters are missing in `out`, and the
        sums of all devices are added.
    """
    mesh = mesh_of(*operands)
    axes_by_letter = _axes_by_letter(operands, labels)
    manual = {*itertools.chain(*axes_by_letter.values())}

    def spec(letters: str) -> PartitionSpec:
        return _spec([axes_by_letter.get(c, ()) for c in letters])

    def placed(leaf: Any, letters: str) -> Array:
        letters = letters.ljust(leaf.ndim, "_")
        stay = [tuple(axis for axis in axes if axis not in manual) for axes in axes_of(leaf)]
        wanted = [axes if c == "_" else axes_by_letter.get(c, ()) for c, axes in zip(letters, stay, strict=False)]
        return leaf if axes_of(leaf) == tuple(wanted) else jax.reshard(leaf, NamedSharding(mesh, _spec(wanted)))

    def body(*pieces: Any) -> Any:
        result = f(*pieces)
        return lax.psum(result, summed) if summed else result

    operands = [
        jax.tree.map(functools.partial(placed, letters=c), tree) for tree, c in zip(operands, labels, strict=True)
    ]
    if not manual:
        return f(*operands)
    kept = {*itertools.chain(*jax.tree.leaves(out))}
    summed = tuple(axis for letter, axes in axes_by_letter.items() if letter not in kept for axis in axes)
    specs = tuple(map(spec, labels))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=jax.tree.map(spec, out), axis_names=manual)
    return mapped(*operands)


def _axes_by_letter(operands: Sequence[Any], labels: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The mesh axes of each letter: those of the first array axis with that letter, each mesh axis once."""
    found: dict[str, tuple[str, ...]] = {}
    for tree, letters in zip(operands, labels, strict=True):
        for leaf in jax.tree.leaves(tree):
            for axes, letter in zip(axes_of(leaf), letters, strict=False):
                if axes and letter not in {".", "_", *found} and not {*axes} & {*itertools.chain(*found.values())}:
                    found[letter] = axes
    return found


def by_xla(f: Callable[..., Any], operands: Sequence[Any], out: Any, mesh: Any = None, axes: Sequence[str] = ()) -> Any:
    """f(*operands) with auto axes in place of all explicit ones.

    f itself is called unless `axes` or the operands' types name explicit axes, or an operand lies on a mesh whose axis
    types differ from the context's.

    Args:
      out: PartitionSpecs, as a prefix of f's result: its sharding, of which explicit axes count.
      mesh: where the operands lie, if the context has no mesh; None takes theirs.
    """
    named = all_axes(*operands)
    if mesh is None or named or not jax.sharding.get_abstract_mesh().empty:
        mesh = mesh_of(*operands)
    taken = explicit_axes(mesh)
    meshes = (jax.typeof(a).sharding.mesh for a in jax.tree.leaves(operands))
    if not {*axes, *named} & {*taken} and not (taken and any(not m.empty and m != mesh for m in meshes)):
        return f(*operands)

    def sharding(spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(mesh, _spec([tuple(a for a in names(entry) if a in taken) for entry in spec]))

    shardings = jax.tree.map(sharding, out, is_leaf=lambda a: isinstance(a, PartitionSpec))

    def inside(*operands: Any) -> Any:
        with _in_auto(True):
            return f(*operands)

    return jax.sharding.auto_axes(inside, axes=taken, out_sharding=shardings)(*operands)


_in_auto = jax.make_user_context(False)


def outside(f: Callable[[Array], Any], like: Any) -> Callable[[Array], Any]:
    """A user's f for use inside `by_xla`, which calls it on the user's mesh axes, with vectors sharded as `like` is."""
    mesh, axes = mesh_of(like), axes_of(like)

    def called(v: Array) -> Any:
        if not _in_auto.value:
            return f(v)
        with jax.sharding.use_abstract_mesh(mesh):
            out = f(jax.reshard(v, NamedSharding(mesh, _spec(axes))))
        here = jax.sharding.get_abstract_mesh()
        return jax.tree.map(lambda a: jax.reshard(a, NamedSharding(here, PartitionSpec())), out)

    return called


def axes_to_map(mesh: Any, axis: Any) -> frozenset[str]:
    """The axes that a shard_map over `axis` makes manual: all auto axes, so that kernels see no other.

    Inside `by_xla` only `axis`, since axes that were explicit before stay sharded.
    """
    return frozenset(names(axis)) if _in_auto.value else auto_axes(mesh)


def explicit_axes(mesh: Any) -> tuple[str, ...]:
    return tuple(a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)


def auto_axes(mesh: Any) -> frozenset[str]:
    return frozenset(a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto)


def varying_axes(*arrays: Any) -> frozenset[Any]:
    """The mesh axes over which some of the arrays vary inside shard_map."""
    return frozenset[Any]().union(*map(jax_versions.varying_axes, arrays))


def has_mesh(*trees: Any) -> bool:
    """Whether the context has a mesh, or a leaf lies on one."""
    if not jax.sharding.get_abstract_mesh().empty:
        return True
    return not all([jax.typeof(a).sharding.mesh.empty for a in jax.tree.leaves(trees)])


def untyped_axes() -> frozenset[str]:
    """The axes of a shard_map without check_vma, in which types do not show what varies over them."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return frozenset(axis for axis in manual if not varying_axes(lax.axis_index(axis)))


def varying(tree: Any, *like: Any) -> Any:
    """`tree` with leaves that all vary over the mesh axes over which any leaf of it or of `like` varies.

    Inside shard_map the initial values of a loop must vary over the same axes as the results of its body. A leaf that
    occurs several times stays one array.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    axes = varying_axes(*jax.tree.leaves((tree, like)))
    if not axes:
        return tree
    by_id = {id(a): jax_versions.vary(a, axes) for a in jax.tree.leaves(tree)}
    return jax.tree.map(lambda a: by_id[id(a)], tree)


def shaped_like(a: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape of `a`, its sharding and the mesh axes over which it varies, with another dtype."""
    shape = jax.ShapeDtypeStruct(a.shape, dtype)
    if jax.typeof(a).sharding.mesh.empty:
        return shape
    return jax_versions.varying_like(jax.ShapeDtypeStruct(a.shape, dtype, sharding=jax.typeof(a).sharding), a)
