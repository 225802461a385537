"""The pytrees of both packages: whether jitted functions tell their classes apart."""

import dataclasses
import importlib
import inspect
import pkgutil

import jax

import jaxsparse_fmt
import solvers

NEEDS_OTHERS = {"solvers.lineax"}  # and registers no class


def pytree_classes() -> set[type]:
    names = [m.name for p in (jaxsparse_fmt, solvers) for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    modules = [importlib.import_module(name) for name in names if name not in NEEDS_OTHERS]
    classes = {c for m in modules for c in vars(m).values() if isinstance(c, type) and dataclasses.is_dataclass(c)}
    concrete = [c for c in classes if not inspect.isabstract(c)]
    return {c for c in concrete if not jax.tree_util.treedef_is_leaf(jax.tree.structure(blank(c)))}


def blank(cls: type) -> object:
    """An instance with 0 in every field."""
    made = object.__new__(cls)
    made.__dict__.update({f.name: 0 for f in dataclasses.fields(cls)})
    return made


def test_trees_of_two_classes_are_never_equal():
    """JAX 0.10 and 0.11 compare the trees of `jax.tree_util.register_dataclass` without their classes."""
    trees = [(c, jax.tree.structure(blank(c))) for c in pytree_classes()]
    assert len(trees) > 35
    equal = [(a.__name__, b.__name__) for i, (a, s) in enumerate(trees) for b, t in trees[:i] if s == t]
    assert not equal


def test_a_tree_keeps_its_fields_and_names_its_leaves():
    for cls in pytree_classes():
        leaves, tree = jax.tree.flatten(blank(cls))
        again = jax.tree.unflatten(tree, list(range(len(leaves))))
        paths = [path[-1] for path, _ in jax.tree_util.tree_flatten_with_path(again)[0]]
        assert [getattr(again, key.name) for key in paths] == list(range(len(leaves)))
        assert vars(again).keys() - {"_marked"} == {f.name for f in dataclasses.fields(cls)}
