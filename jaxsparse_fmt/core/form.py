"""The trilinear form t(v, x, y) = Σₖ vₖ·x[colₖ]·y[rowₖ], as three JAX primitives.

The three faces of the form are its derivatives with respect to one argument:

    product      ∂t/∂y   (v, x) -> A·x        y[row] += v·x[col]
    transposed   ∂t/∂x   (v, y) -> Aᵀ·y       x[col] += v·y[row]
    outer        ∂t/∂v   (y, x) -> vₖ = y[rowₖ]·x[colₖ], zero in padding

Each face is linear in either of its two operands. Its transpose with respect to one operand is the face that yields
that operand's kind of array from the two others. So `jvp`, `transpose` and `vmap` of a face are made of faces, and
derivatives of every order exist, forward, reverse and mixed.

Operands have two more axes: v [b, n_stored], x [b, n_cols, p], y [b, n_rows, p]. A batch over vectors alone becomes
part of the column axis p, so that one reading of A serves all of them; a batch over values becomes part of b. A batch
over index arrays, as over a whole stack of matrices, is a loop.

After its two operands a primitive takes the other arrays of the matrix (`Faces._without_values`); their tree is a
parameter. The lowering puts the matrix together again and calls its `_product_face`, `_transposed_face` or
`_outer_face`.
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
from jaxsparse_fmt.core.faces import Faces
from jaxsparse_fmt.kernels.backends import jax_versions, selection

# The two arguments of the form that each face takes, and the one that it yields. All rules below follow from these.
OPERANDS = {"product": ("v", "x", "y"), "transposed": ("v", "y", "x"), "outer": ("y", "x", "v")}
FACE_OF = {frozenset(names[:2]): face for face, names in OPERANDS.items()}
# The axes of v, x and y for `mesh_axes.by_pieces`: along b and p a face consists of independent faces.
AXES = {"v": "b.", "x": "b.p", "y": "b.p"}
PRIMITIVES = {face: Primitive(f"sparse_{face}") for face in OPERANDS}


def apply(face: str, A: Faces, vector: Array) -> Array:
    """A·x as the "product" with x [n_cols] or [n_cols, p]; Aᵀ·y as "transposed" with y [n_rows] or [n_rows, p].

    Callers compile it, so that the axes that it adds are views and the values are not copied.
    """
    columns = vector if vector.ndim == 2 else vector[:, None]
    leaves, tree = jax.tree.flatten(A._without_values)
    out = bind(face, A.values[None], columns[None], leaves, tree=tree, backend=A.backend)[0]
    return out if vector.ndim == 2 else out[:, 0]


def bind(face: str, a: Array, b: Array, leaves: Any, *, tree: Any, backend: str) -> Array:
    """A face of operands with all their axes; `leaves` and `tree` are those of the matrix without its values."""
    if mesh_axes.are_explicit(a, b, leaves):
        pieces = functools.partial(_bind_pieces, face, tree=tree, backend=backend)
        first, second, out = (AXES[name] for name in OPERANDS[face])
        return mesh_axes.by_pieces(pieces, (a, b, leaves), (first, second, ""), out)
    return _bind_pieces(face, a, b, leaves, tree=tree, backend=backend)


def _bind_pieces(face, a, b, leaves, *, tree, backend):
    shape = _out_shape(face, tree, a, b, leaves)
    if 0 in (*a.shape, *b.shape, *shape):
        return jnp.zeros(shape, jnp.result_type(a, b))
    # Inside shard_map both operands must vary over the same mesh axes; the transpose of that cast is a sum.
    a, b = mesh_axes.varying((a, b), leaves)
    return PRIMITIVES[face].bind(a, b, *leaves, tree=tree, backend=selection.active_backend(backend))


def _out_shape(face, tree, a, b, leaves):
    A = jax.tree.unflatten(tree, leaves)
    return (a.shape[0], A.n_stored) if face == "outer" else (a.shape[0], A.shape[face == "transposed"], b.shape[2])


def _abstract(face, a, b, *leaves, tree, backend):
    del backend
    return jax_versions.abstract_like((a, b), _out_shape(face, tree, a, b, leaves), jnp.result_type(a.dtype, b.dtype))


def _compute(face, a, b, *leaves, platform, tree, backend):
    A = jax.tree.unflatten(tree, leaves)
    resolved = selection.resolve(backend, platform, A._wants_shared_memory(face, b.shape[2]))
    return computed(face, A, a, b, resolved)


def computed(face: str, A: Faces, a: Array, b: Array, backend: str) -> Array:
    """A face on a backend that `selection.resolve` has returned."""
    if backend == "numba":
        native = A._native_face(face, a, b)
        if native is not None:
            return native
        backend = "xla"
    compute = {"product": A._product_face, "transposed": A._transposed_face, "outer": A._outer_face}[face]
    return compute(a, b, backend)


# ---------------------------------------------------------------------------------------------- transformations of JAX


def _for_other_values(tree, *leaves):
    """The matrix's leaves, of each of several lists, and its tree, for values that are not the matrix's own."""
    kept, tree = jax.tree.flatten(jax.tree.unflatten(tree, range(tree.num_leaves))._for_other_values)
    return *([a[i] for i in kept] for a in leaves), tree


def _jvp(face, primals, tangents, **params):
    a, b, *leaves = primals
    out = bind(face, a, b, leaves, **params)
    terms = []
    if not isinstance(tangents[0], ad.Zero):
        others, tree = _for_other_values(params["tree"], leaves)
        terms.append(bind(face, tangents[0], b, others, **params | {"tree": tree}))
    if not isinstance(tangents[1], ad.Zero):
        terms.append(bind(face, a, tangents[1], leaves, **params))
    return out, functools.reduce(jnp.add, terms) if terms else ad.Zero(jax.typeof(out))


def _transpose(face, cotangent, a, b, *leaves, **params):
    """The cotangent of the linear operand: the face that yields its kind from the cotangent and the other operand."""
    position = 0 if ad.is_undefined_primal(a) else 1
    results: list[Any] = [None] * (2 + len(leaves))
    linear, known = (a, b) if position == 0 else (b, a)
    if position == 0 and face != "outer":  # some leaves may be made of the values
        leaves, params["tree"] = _for_other_values(params["tree"], leaves)
    if isinstance(cotangent, ad.Zero):
        results[position] = ad.Zero(linear.aval)
    else:
        names = OPERANDS[face]
        given = {names[2]: cotangent, names[1 - position]: known}
        back = FACE_OF[frozenset(given)]
        first, second = (given[name] for name in OPERANDS[back][:2])
        results[position] = _as_dtype(bind(back, first, second, leaves, **params), linear.aval.dtype)
    return results


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

    def one(a, b, *leaves):
        return bind(face, a, b, leaves, **params)

    if any(d is not None for d in leaf_dims):
        axes = ["" if d is None else "_" * d + "k" for d in dims]
        return mesh_axes.by_pieces(lambda *operands: one_by_one(one, operands, dims), operands, axes, "k"), 0
    out_dim = 2 if face != "outer" and a_dim is None else 0

    def mapped(a, b, leaves):
        return batched(lambda a, b: one(a, b, *leaves), a, b, a_dim, b_dim, columns=out_dim == 2)

    first, second, out = (AXES[name] for name in OPERANDS[face])
    labels = _with_k(first, a_dim), _with_k(second, b_dim), ""
    return mesh_axes.by_pieces(mapped, (a, b, leaves), labels, _with_k(out, out_dim)), out_dim


def _with_k(axes, dim):
    """The letters, with k for the axis that is mapped over."""
    return axes if dim is None else f"{axes[:dim]}k{axes[dim:]}"


def batched(bound, a, b, a_dim, b_dim, columns):
    """bound(a, b) of batches of a and b, whose own first axis is a batch too; the result's axis is 2 or 0.

    Args:
      columns: whether a batch of b alone, [b, n, p], becomes more columns, so that one reading of a serves all.
    """
    if columns:
        b = jnp.moveaxis(b, b_dim, 2)
        out = bound(a, b.reshape(*b.shape[:2], -1))
        return out.reshape(*out.shape[:2], *b.shape[2:])
    size = a.shape[a_dim] if a_dim is not None else b.shape[b_dim]
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


def _register(face: str, primitive: Primitive) -> None:
    def rule(f: Any) -> Any:
        return standard_promotion(functools.partial(f, face))

    primitive.def_abstract_eval(rule(_abstract))
    ad.primitive_jvps[primitive] = rule(_jvp)
    ad.primitive_transposes[primitive] = rule(_transpose)
    batching.primitive_batchers[primitive] = rule(_batch)
    vector_passes.lower_by_platform(primitive, functools.partial(_compute, face))


for _face, _primitive in PRIMITIVES.items():
    _register(_face, _primitive)


# ---------------------------------------------------------------------------------- a product with the sums of a pass


def product_sums(A: Faces, x: Array, what: vector_passes.Pass, *others: Array):
    """A·x, and the sums of a pass over it and `others`, in parts as the product's kernel leaves them; no derivative.

    Args:
      x, others: [n_cols], [n_rows] each, real and of the dtype of A.
    """
    leaves, tree = jax.tree.flatten(A._without_values)
    vectors = mesh_axes.varying((A.values, x, *others), leaves)
    params = {"tree": tree, "what": what, "count": len(others), "backend": selection.active_backend(A.backend)}
    y, *sums = product_sums_p.bind(*vectors, *leaves, **params)
    return y, tuple(map(vector_passes.Parts, sums))


def _product_sums(values, x, *operands, tree, what, count, backend):
    others, A = operands[:count], jax.tree.unflatten(tree, operands[count:])
    if selection.is_pallas(backend):
        return A._product_sums(values, x, others, what, backend)
    y = computed("product", A, values[None], x[None, :, None], backend)[0, :, 0]
    return y, _one_part(A, what, y, *others)


def _product_then_sums(values, x, *operands, what, count, **params):
    others, leaves = operands[:count], operands[count:]
    y = bind("product", values[None], x[None, :, None], leaves, **params)[0, :, 0]
    return y, _one_part(jax.tree.unflatten(params["tree"], leaves), what, y, *others)


def _one_part(A, what, *vectors):
    return [jnp.zeros(A._sums, a.dtype).at[0].set(jnp.vdot(a, b)) for a, b in what.each((), *vectors)[1]]


product_sums_p = vector_passes.platform_primitive("sparse_product_sums", _product_sums, _product_then_sums)
