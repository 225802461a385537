"""The trilinear form t(v, x, y) = Σₖ vₖ·x[colₖ]·y[rowₖ], as three JAX primitives.

The three faces of the form are its derivatives with respect to one argument:

    product      ∂t/∂y   (v, x) -> A·x        y[row] += v·x[col]
    transposed   ∂t/∂x   (v, y) -> Aᵀ·y       x[col] += v·y[row]
    outer        ∂t/∂v   (y, x) -> vₖ = y[rowₖ]·x[colₖ], zero in padding

Each face is linear in either of its two operands, and its transpose with respect to one operand is another of the
three: the face that yields that operand's kind of array from the two others. So `jvp`, `transpose` and `vmap` of a face
are made of faces, and derivatives of every order exist, forward, reverse and mixed.

Operands have two more axes: v [b, n_stored], x [b, n_cols, p], y [b, n_rows, p]. A batch over vectors alone becomes
part of the column axis p, so that one reading of A serves all of them; a batch over values becomes part of b. A batch
over index arrays, as over a whole stack of matrices, is a loop.

Beside its two operands a primitive takes the pattern, the matrix without its values (`Pattern._without_values`):
the arrays of the pattern are further operands, its tree is a parameter. The lowering puts the pattern together again
and calls its method `_product_face`, `_transposed_face` or `_outer_face`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core import mesh_axes, vector_passes
from jaxsparse_fmt.core.pattern import Pattern
from jaxsparse_fmt.kernels.backends import jax_versions, selection

# The two arguments of the form that each face takes, and the one that it yields. All rules below follow from these.
OPERANDS = {"product": ("v", "x", "y"), "transposed": ("v", "y", "x"), "outer": ("y", "x", "v")}
FACE_OF = {frozenset(names[:2]): face for face, names in OPERANDS.items()}
# The axes of v, x and y for `mesh_axes.by_pieces`: along b and p a face consists of independent faces.
AXES = {"v": "b.", "x": "b.p", "y": "b.p"}
PRIMITIVES = {face: Primitive(f"sparse_{face}") for face in OPERANDS}


def product(pattern: Pattern, values: Array, x: Array) -> Array:
    """A·x for values [n_stored] and x [n_cols] or [n_cols, p]."""
    return _apply("product", pattern, values, x)


def transposed(pattern: Pattern, values: Array, y: Array) -> Array:
    """Aᵀ·y for values [n_stored] and y [n_rows] or [n_rows, p]."""
    return _apply("transposed", pattern, values, y)


def product_sums(pattern: Pattern, values: Array, x: Array, what: vector_passes.Pass, *beside: Array):
    """A·x, and the sums of a pass over it and `beside`, in parts as the product's kernel leaves them; no derivative.

    Args:
      values, x, beside: [n_stored], [n_cols], [n_rows] each, real and of one dtype.
    """
    vectors, (leaves, tree) = mesh_axes.varying((values, x, *beside), pattern), jax.tree.flatten(pattern)
    params = {"tree": tree, "what": what, "count": len(beside), "backend": selection.active_backend(pattern.backend)}
    y, *sums = product_sums_p.bind(*vectors, *leaves, **params)
    return y, tuple(map(vector_passes.Parts, sums))


def _product_sums(values, x, *others, tree, what, count, backend):
    beside, pattern = others[:count], jax.tree.unflatten(tree, others[count:])
    if selection.is_pallas(backend):
        return pattern._product_sums(values, x, beside, what, backend)
    y = computed("product", pattern, values[None], x[None, :, None], backend)[0, :, 0]
    return y, _one_part(pattern, what, y, *beside)


def _product_then_sums(values, x, *others, what, count, **params):
    beside, leaves = others[:count], others[count:]
    y = _bind("product", values[None], x[None, :, None], leaves, **params)[0, :, 0]
    return y, _one_part(jax.tree.unflatten(params["tree"], leaves), what, y, *beside)


def _one_part(pattern, what, *vectors):
    return [jnp.zeros(pattern._sums, a.dtype).at[0].set(jnp.vdot(a, b)) for a, b in what.each((), *vectors)[1]]


product_sums_p = vector_passes.platform_primitive("sparse_product_sums", _product_sums, _product_then_sums)


def _apply(face, pattern, values, vector):
    """A face of vectors. Callers compile it, so that the axes that it adds are views and the values are not copied."""
    columns = vector if vector.ndim == 2 else vector[:, None]
    out = bind(face, pattern, values[None], columns[None])[0]
    return out if vector.ndim == 2 else out[:, 0]


def bind(face: str, pattern: Pattern, a: Array, b: Array) -> Array:
    """A face of the form by name, of operands with all their axes."""
    leaves, tree = jax.tree.flatten(pattern)
    return _bind(face, a, b, leaves, tree=tree, backend=pattern.backend)


def _bind(face, a, b, leaves, **params):
    bound = functools.partial(_bind_pieces, face, **params)
    first, second, out = (AXES[name] for name in OPERANDS[face])
    return mesh_axes.by_pieces(bound, (a, b, leaves), (first, second, ""), out)


def _bind_pieces(face, a, b, leaves, *, tree, backend):
    shape = _out_shape(face, tree, a, b, leaves)
    if 0 in (*a.shape, *b.shape, *shape):
        return jnp.zeros(shape, jnp.result_type(a, b))
    # Inside shard_map both operands must vary over the same mesh axes; the transpose of that cast is a sum.
    axes = mesh_axes.varying_axes(a, b, *leaves)
    a, b = jax_versions.vary(a, axes), jax_versions.vary(b, axes)
    return PRIMITIVES[face].bind(a, b, *leaves, tree=tree, backend=selection.active_backend(backend))


def _out_shape(face, tree, a, b, leaves):
    pattern = jax.tree.unflatten(tree, leaves)
    if face == "outer":
        return (a.shape[0], pattern.n_stored)
    return (a.shape[0], pattern.shape[face == "transposed"], b.shape[2])


def _abstract(face, a, b, *leaves, tree, backend):
    del backend
    return jax_versions.abstract_like((a, b), _out_shape(face, tree, a, b, leaves), jnp.result_type(a.dtype, b.dtype))


def _compute(face, a, b, *leaves, platform, tree, backend):
    pattern = jax.tree.unflatten(tree, leaves)
    runs = selection.resolve(backend, platform, pattern._wants_shared_memory(face, b.shape[2]))
    return computed(face, pattern, a, b, runs)


def computed(face: str, pattern: Pattern, a: Array, b: Array, backend: str) -> Array:
    """A face on a backend that `selection.resolve` has returned."""
    found = pattern._native_face(face, a, b) if backend == "numba" else None
    backend = "xla" if backend == "numba" else backend
    return getattr(pattern, f"_{face}_face")(a, b, backend) if found is None else found


def _for_other_values(tree, *leaves):
    """The pattern's leaves, of each of several lists, and its tree, for values that are not the matrix's own."""
    places, tree = jax.tree.flatten(jax.tree.unflatten(tree, range(tree.num_leaves))._for_other_values)
    return *([a[i] for i in places] for a in leaves), tree


def _jvp(face, primals, tangents, **params):
    a, b, *leaves = primals
    out = _bind(face, a, b, leaves, **params)
    terms = []
    if not isinstance(tangents[0], ad.Zero):
        others, tree = _for_other_values(params["tree"], leaves)
        terms.append(_bind(face, tangents[0], b, others, **params | {"tree": tree}))
    if not isinstance(tangents[1], ad.Zero):
        terms.append(_bind(face, a, tangents[1], leaves, **params))
    return out, functools.reduce(jnp.add, terms) if terms else ad.Zero(jax.typeof(out))


def _transpose(face, cotangent, a, b, *leaves, **params):
    """The cotangent of the linear operand: the face that yields its kind from the cotangent and the other operand."""
    names, position, nothing = OPERANDS[face], 0 if ad.is_undefined_primal(a) else 1, (None,) * len(leaves)
    aval, known = (a.aval, b) if position == 0 else (b.aval, a)
    if isinstance(cotangent, ad.Zero):
        result = ad.Zero(aval)
    else:
        given = {names[2]: cotangent, names[1 - position]: known}
        back = FACE_OF[frozenset(given)]
        first, second = (given[name] for name in OPERANDS[back][:2])
        result = _as_dtype(_bind(back, first, second, leaves, **params), aval.dtype)
    results = (result, None) if position == 0 else (None, result)
    return *results, *nothing


def _as_dtype(a, dtype):
    """`a` in the operand's own dtype; undoes the implicit widening of that operand."""
    if jnp.issubdtype(a.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        a = a.real
    return a.astype(dtype)


def _batch(face, operands, dims, **params):
    a, b, *leaves = operands
    a_dim, b_dim, *leaf_dims = dims
    if a_dim is not None:
        leaves, leaf_dims, params["tree"] = _for_other_values(params["tree"], leaves, leaf_dims)
        operands, dims = (a, b, *leaves), (a_dim, b_dim, *leaf_dims)
    if any(d is not None for d in leaf_dims):
        bound = lambda a, b, *leaves: _bind(face, a, b, leaves, **params)  # noqa: E731
        one = lambda *operands: one_by_one(bound, operands, dims)  # noqa: E731
        axes = ["" if d is None else "_" * d + "k" for d in dims]
        return mesh_axes.by_pieces(one, operands, axes, "k"), 0
    labels = [_with_k(AXES[name], dim) for name, dim in zip(OPERANDS[face], (a_dim, b_dim), strict=False)]
    out_dim = 2 if face != "outer" and a_dim is None else 0
    columns = out_dim == 2

    def mapped(a, b, leaves):
        return batched(lambda a, b: _bind(face, a, b, leaves, **params), a, b, a_dim, b_dim, columns)

    out = _with_k(AXES[OPERANDS[face][2]], out_dim)
    return mesh_axes.by_pieces(mapped, (a, b, leaves), (*labels, ""), out), out_dim


def _with_k(axes, dim):
    """The letters with one for the axis that is mapped over."""
    return axes if dim is None else f"{axes[:dim]}k{axes[dim:]}"


def batched(bound, a, b, a_dim, b_dim, columns):
    """bound(a, b) of batches of a and b, whose own first axis is a batch too; the result's axis is 2 or 0.

    Args:
      columns: whether a batch of b alone, [b, n, p], becomes more columns, so that one reading of a serves all.
    """
    size = a.shape[a_dim] if a_dim is not None else b.shape[b_dim]
    if columns:
        b = jnp.moveaxis(b, b_dim, 2)
        out = bound(a, b.reshape(*b.shape[:2], -1))
        return out.reshape(*out.shape[:2], *b.shape[2:])
    a, b = _to_front(a, a_dim, size), _to_front(b, b_dim, size)
    out = bound(_merge(a), _merge(b))
    return out.reshape(*a.shape[:2], *out.shape[1:])


def one_by_one(bound, operands, dims):
    """A loop over a batch of index arrays: a kernel reads one pattern, and a trace cannot compare patterns."""
    mapped = tuple(jnp.moveaxis(o, d, 0) for o, d in zip(operands, dims, strict=True) if d is not None)

    def one(taken):
        taken = iter(taken)
        return bound(*(o if d is None else next(taken) for o, d in zip(operands, dims, strict=True)))

    return lax.map(one, mapped)


def _to_front(a, dim, size):
    return jnp.broadcast_to(a, (size, *a.shape)) if dim is None else jnp.moveaxis(a, dim, 0)


def _merge(a):
    return a.reshape(-1, *a.shape[2:])


def _register(face: str, primitive: Any) -> None:
    def rule(of: Any) -> Any:
        return standard_promotion(functools.partial(of, face))

    primitive.def_abstract_eval(rule(_abstract))
    ad.primitive_jvps[primitive] = rule(_jvp)
    ad.primitive_transposes[primitive] = rule(_transpose)
    batching.primitive_batchers[primitive] = rule(_batch)
    vector_passes.lower_by_platform(primitive, functools.partial(_compute, face))


for _face, _primitive in PRIMITIVES.items():
    _register(_face, _primitive)
