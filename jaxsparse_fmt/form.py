"""The trilinear form t(v, x, y) = Σₖ vₖ·x[colₖ]·y[rowₖ], as three JAX primitives.

The three faces of the form are its derivatives with respect to one argument:

    product      ∂t/∂y   (v, x) -> A·x        y[row] += v·x[col]
    transposed   ∂t/∂x   (v, y) -> Aᵀ·y       x[col] += v·y[row]
    outer        ∂t/∂v   (y, x) -> vₖ = y[rowₖ]·x[colₖ], zero in padding

Each is linear in either of its two operands, and its transpose with respect to one operand is another of the three:
the face that yields that operand's kind of array from the two others. So `jvp`, `transpose` and `vmap` close over
them and every derivative of every order exists, forward, reverse and mixed.

Operands carry two spare axes: v [b, n_stored], x [b, n_cols, p], y [b, n_rows, p]. A batch over vectors alone goes to
the column axis p (one reading of A serves all of them); a batch over values goes to b. `vmap` is thus never a loop.

A format joins by handing over `faces`, a hashable object that computes the three on plain arrays, and the integer
arrays (`structure`) that describe its pattern.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxsparse_fmt import vectors
from jaxsparse_fmt.kernels import dialect

Array = jax.Array


class Faces(Protocol):
    """What a format provides: the three faces on plain arrays. Must be hashable; equal faces share compiled code.

    A format whose kernels are faster where the lanes of a block share memory also has `wants_shared_memory(face, p)`,
    which says so of a face with p right-hand sides.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def n_stored(self) -> int: ...

    def product(self, values: Array, x: Array, structure: tuple[Array, ...], backend: str) -> Array: ...

    def transposed(self, values: Array, y: Array, structure: tuple[Array, ...], backend: str) -> Array: ...

    def outer(self, y: Array, x: Array, structure: tuple[Array, ...], backend: str) -> Array: ...


# Which argument of the form each face takes and which it yields. Everything below follows from this table.
OPERANDS = {"product": ("v", "x", "y"), "transposed": ("v", "y", "x"), "outer": ("y", "x", "v")}
FACE_OF = {frozenset(names[:2]): face for face, names in OPERANDS.items()}
PRIMITIVES = {face: Primitive(f"sparse_{face}") for face in OPERANDS}


def product(faces: Faces, values: Array, x: Array, structure: tuple[Array, ...], backend: str) -> Array:
    """A·x for values [n_stored] and x [n_cols] or [n_cols, p]."""
    return _apply("product", faces, values, x, structure, backend)


def transposed(faces: Faces, values: Array, y: Array, structure: tuple[Array, ...], backend: str) -> Array:
    """Aᵀ·y for values [n_stored] and y [n_rows] or [n_rows, p]."""
    return _apply("transposed", faces, values, y, structure, backend)


def product_dot(
    faces: Faces, values: Array, x: Array, w: Array, structure: tuple[Array, ...], backend: str
) -> tuple[Array, vectors.Parts]:
    """A·x and wᵀ·A·x, which leaves the kernel of the product in parts. It has no derivative.

    Args:
      values, x, w: [n_stored], [n_cols], [n_rows], real and of one dtype.
    """
    backend = dialect.active_backend(backend)
    y, sums = product_dot_p.bind(values, x, w, *structure, faces=faces, backend=backend)
    return y, vectors.Parts(sums)


def _product_dot(values, x, w, *structure, faces, backend):
    if dialect.is_pallas(backend):
        return faces.product_dot(values, x, w, structure, backend)
    y = faces.product(values[None], x[None, :, None], structure, backend)[0, :, 0]
    return y, _one_part(faces, w, y)


def _product_then_dot(values, x, w, *structure, faces, backend):
    y = product(faces, values, x, structure, backend)
    return y, _one_part(faces, w, y)


def _one_part(faces, w, y):
    return jnp.zeros(faces.sums, y.dtype).at[0].set(jnp.vdot(w, y))


product_dot_p = vectors.platform_primitive("sparse_product_dot", _product_dot, _product_then_dot)


@functools.partial(jax.jit, static_argnums=(0, 1, 5), inline=True)
def _apply(face, faces, values, vector, structure, backend):
    """Compiled, so that the two spare axes are views and cost no copy of the values."""
    columns = vector if vector.ndim == 2 else vector[:, None]
    out = _bind(face, faces, values[None], columns[None], structure, backend)[0]
    return out if vector.ndim == 2 else out[:, 0]


def _bind(face, faces, a, b, structure, backend):
    shape = _out_shape(face, faces, a, b)
    if 0 in (*a.shape, *b.shape, *shape):
        return jnp.zeros(shape, jnp.result_type(a, b))
    # Inside shard_map both operands must vary over the same mesh axes; casting says so, and its transpose sums.
    axes = frozenset().union(*(dialect.varying_axes(o) for o in (a, b, *structure)))
    a, b = dialect.vary(a, axes), dialect.vary(b, axes)
    return PRIMITIVES[face].bind(a, b, *structure, faces=faces, backend=dialect.active_backend(backend))


def _out_shape(face, faces, a, b):
    batch = a.shape[0]
    if face == "outer":
        return (batch, faces.n_stored)
    return (batch, faces.shape[face == "transposed"], b.shape[2])


def _compute(a, b, *structure, face, faces, backend, platform):
    shared = wants_shared_memory(faces, face, b.shape[2])
    return getattr(faces, face)(a, b, structure, dialect.resolve(backend, platform, faces.n_stored, shared))


def wants_shared_memory(faces: Faces, face: str, p: int) -> bool:
    """What `faces` says of it, if it does."""
    asked = getattr(faces, "wants_shared_memory", None)
    return asked is not None and asked(face, p)


def _abstract(face, a, b, *_, faces, backend):
    del backend
    return a.update(shape=_out_shape(face, faces, a, b), dtype=jnp.result_type(a.dtype, b.dtype), weak_type=False)


def _lower(face, platform, ctx, *operands, **params):
    # The body is ordinary code over one device's arrays; which mesh axes they vary over no longer matters.
    bare = ctx.replace(avals_in=[*map(_bare, ctx.avals_in)], avals_out=[*map(_bare, ctx.avals_out)])
    compute = functools.partial(_compute, face=face, platform=dialect.lowering_platform(platform, ctx))
    with dialect.without_deprecation():
        return mlir.lower_fun(compute, multiple_results=False)(bare, *operands, **params)


def _bare(aval):
    return ShapedArray(aval.shape, aval.dtype)


def _jvp(face, primals, tangents, *, faces, backend):
    a, b, *structure = primals
    out = _bind(face, faces, a, b, structure, backend)
    terms = []
    if not isinstance(tangents[0], ad.Zero):
        terms.append(_bind(face, faces, tangents[0], b, structure, backend))
    if not isinstance(tangents[1], ad.Zero):
        terms.append(_bind(face, faces, a, tangents[1], structure, backend))
    return out, functools.reduce(jnp.add, terms) if terms else ad.Zero(jax.typeof(out))


def _transpose(face, cotangent, a, b, *structure, faces, backend):
    """The cotangent of the linear operand: the face that yields its kind from the cotangent and the other operand."""
    names, position = OPERANDS[face], 0 if ad.is_undefined_primal(a) else 1
    aval, known = (a.aval, b) if position == 0 else (b.aval, a)
    if isinstance(cotangent, ad.Zero):
        result = ad.Zero(aval)
    else:
        given = {names[2]: cotangent, names[1 - position]: known}
        back = FACE_OF[frozenset(given)]
        first, second = (given[name] for name in OPERANDS[back][:2])
        result = _as_dtype(_bind(back, faces, first, second, structure, backend), aval.dtype)
    results = (result, None) if position == 0 else (None, result)
    return *results, *(None for _ in structure)


def _as_dtype(a, dtype):
    """`a` in the operand's own dtype: the operand was widened implicitly, and that is undone here."""
    if jnp.issubdtype(a.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        a = a.real
    return a.astype(dtype)


def _batch(face, operands, dims, *, faces, backend):
    a, b, *structure = operands
    a_dim, b_dim, *structure_dims = dims
    if any(d is not None for d in structure_dims):
        raise ValueError(
            "vmap over a matrix's index arrays is not possible: the pattern is shared. Map over data and build the "
            "matrix inside with A.with_data(data)"
        )
    size = a.shape[a_dim] if a_dim is not None else b.shape[b_dim]
    if face != "outer" and a_dim is None:  # vectors alone: more columns
        b = jnp.moveaxis(b, b_dim, 2)
        columns = b.reshape(*b.shape[:2], -1)
        out = _bind(face, faces, a, columns, structure, backend)
        return out.reshape(*out.shape[:2], *b.shape[2:]), 2
    a, b = _to_front(a, a_dim, size), _to_front(b, b_dim, size)
    out = _bind(face, faces, _merge(a), _merge(b), structure, backend)
    return out.reshape(*a.shape[:2], *out.shape[1:]), 0


def _to_front(a, dim, size):
    return jnp.broadcast_to(a, (size, *a.shape)) if dim is None else jnp.moveaxis(a, dim, 0)


def _merge(a):
    return a.reshape(-1, *a.shape[2:])


def _register(face: str, primitive: Any) -> None:
    def impl(*operands, **params):
        return _compiled(face, *operands, **params)

    primitive.def_impl(impl)
    primitive.def_abstract_eval(functools.partial(_abstract, face))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, face)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, face)
    batching.primitive_batchers[primitive] = functools.partial(_batch, face)
    mlir.register_lowering(primitive, functools.partial(_lower, face, None))
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, functools.partial(_lower, face, platform), platform=platform)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("faces", "backend"))
def _compiled(face, *operands, faces, backend):
    """Outside jit a face is compiled by itself, once per layout shape."""
    return PRIMITIVES[face].bind(*operands, faces=faces, backend=backend)


for _face, _primitive in PRIMITIVES.items():
    _register(_face, _primitive)
