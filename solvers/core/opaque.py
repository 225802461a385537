"""Programs with derivatives of their own that every transformation keeps.

`jax.custom_jvp` loses its rule under partial evaluation, for instance in the body of a scan under reverse mode: JAX
then differentiates the operations inside. For a Krylov loop the result is a wrong derivative in forward mode (0 for a
solve that took no step) and an error in reverse mode. A primitive keeps its rule and has a transpose of its own, which
`jax.custom_jvp` lacks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt._tracing import PROGRAMS, sizes, standard_promotion
from jaxsparse_fmt.core import mesh_axes

Leaves = tuple[Any, ...]


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Operation:
    """What a program computes of a pytree, and its derivatives; hashable, as a parameter of the primitive.

    A subclass is a frozen dataclass that is compared by all its fields: with fewer, JAX would run the program of
    another one.

    Attributes:
      tree: the structure of the pytree, as `__call__` sets it.
    """

    tree: Any = dataclasses.field(default=None, kw_only=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True)(cls)

    def __call__(self, inputs: Any) -> Any:
        """The results of the program."""
        leaves, tree = jax.tree.flatten(inputs)
        operation = dataclasses.replace(self, tree=tree)
        # JAX keys a trace by the static operation, the types of the leaves and the ambient mesh, which a context sets.
        with jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
            traced = _jitted(operation, sizes(leaves)).trace(*leaves)
        out = linear_solve_p.bind(*leaves, operation=operation, program=traced.jaxpr)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), out)

    def inputs(self, leaves: Leaves) -> Any:
        """The pytree with these leaves."""
        return jax.tree.unflatten(self.tree, leaves)

    def compute(self, inputs: Any, /) -> Any:
        """The results, a pytree."""
        raise NotImplementedError

    def jvp(self, inputs: Any, tangents: Any, /) -> tuple[Any, Any]:
        """The results and their tangents; None stands for a zero tangent, and for that of an integer."""
        raise NotImplementedError

    def linear(self) -> int | None:
        """Index of the leaf in which the first result is linear, or None. The first result must not depend on later
        leaves.
        """
        return None

    def transpose(self, inputs: Any, cotangent: Any, /) -> Any:
        """The cotangent of that leaf for one of the first result, without reading the leaf's values."""
        raise NotImplementedError

    def columns(self, inputs: Any, dims: Any, /) -> Any:
        """The results under vmap over `dims`, by their last axes, if the program shares work; else None."""
        return None


@remembered(PROGRAMS, "programs of solvers")
def _jitted(operation: Operation, sizes: Any) -> Any:
    """The program of an operation on leaves of these sizes, compiled."""
    del sizes
    return jax.jit(lambda *leaves: operation.compute(jax.tree.unflatten(operation.tree, leaves)))


class Mapped(Operation):
    """A program under vmap over the axes `dims` of its leaves."""

    operation: Operation
    program: ClosedJaxpr
    dims: tuple[Any, ...]
    name: Any

    def _vmap(self, f: Callable[..., Any], *dims: Any) -> Callable[..., Any]:
        return jax.vmap(f, dims, 0, spmd_axis_name=self.name)

    def compute(self, inputs: Any) -> Any:
        return self._vmap(jaxpr_as_fun(self.program), *self.dims)(*inputs)

    def jvp(self, inputs: Any, tangents: Any) -> tuple[Any, Any]:
        return self._vmap(lambda *both: self.operation.jvp(*map(self.operation.inputs, both)), self.dims, self.dims)(
            inputs, tangents
        )

    def linear(self) -> int | None:
        return self.operation.linear()

    def transpose(self, inputs: Any, cotangent: Any) -> Any:
        def transpose_one(leaves: Leaves, cotangent: Any) -> Any:
            return self.operation.transpose(self.operation.inputs(leaves), cotangent)

        dim = self.dims[self.operation.linear() or 0]
        every = self._vmap(transpose_one, self.dims, 0)(inputs, cotangent)
        return jnp.sum(every, 0) if dim is None else jnp.moveaxis(every, 0, dim)


def _is_none(tangent: Any) -> bool:
    """Whether the tangent is zero, or that of an integer."""
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _compute(*leaves: Any, operation: Operation, program: ClosedJaxpr) -> list[Any]:
    del operation
    return jaxpr_as_fun(program)(*leaves)


def _jvp(primals: Leaves, tangents: Leaves, *, operation: Operation, program: ClosedJaxpr) -> tuple[Leaves, Leaves]:
    del program
    directions = tuple(None if _is_none(t) else t for t in tangents)
    out, of_out = operation.jvp(operation.inputs(primals), operation.inputs(directions))
    leaves, tree = jax.tree.flatten(out)
    both = zip(leaves, tree.flatten_up_to(of_out), strict=True)
    return tuple(leaves), tuple(ad.Zero(jax.typeof(a).to_tangent_aval()) if t is None else t for a, t in both)


def _transpose(cotangents: Leaves, *leaves: Any, operation: Operation, program: ClosedJaxpr) -> list[Any]:
    del program
    unknown, linear = [ad.is_undefined_primal(leaf) for leaf in leaves], operation.linear()
    if linear is None or any(unknown[:linear]):
        raise TypeError(
            "jax.linear_transpose of a solve needs a function of b alone that returns x, such as lambda b: cg(A, b).x, "
            "because x is linear in b and not in A, M or x0"
        )
    first, *others = (None if _is_none(ct) else ct for ct in cotangents)
    result: list[Any] = [None] * len(leaves)
    if unknown[linear] and not (first is None and all(ct is None for ct in others)):
        known = [jnp.zeros(a.aval.shape, a.aval.dtype) if u else a for a, u in zip(leaves, unknown, strict=True)]
        inputs = operation.inputs(tuple(known))
        ct = jnp.zeros_like(known[linear]) if first is None else operation.transpose(inputs, first)
        result[linear] = ct + undefined(known[linear], others)
    return result


def _batch(
    axis: Any, leaves: Leaves, dims: Leaves, *, operation: Operation, program: ClosedJaxpr
) -> tuple[Any, Leaves]:
    if all(dim is None for dim in dims):
        out = linear_solve_p.bind(*leaves, operation=operation, program=program)
        return out, (None,) * len(out)
    if axis.spmd_name is None:
        found = operation.columns(operation.inputs(leaves), operation.inputs(tuple(dims)))
        if found is not None:
            out = jax.tree.leaves(found)
            return out, tuple(a.ndim - 1 for a in out)
    out = Mapped(operation, program, tuple(dims), axis.spmd_name)(tuple(leaves))
    return out, (0,) * len(out)


def both(f: Callable[[Any], Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """f(primals), and its tangent for tangents of which None stands for zero; (None, None) if all are None."""
    leaves, inside = jax.tree.flatten(primals)
    flat = inside.flatten_up_to(tangents)  # a field that is None in the primals is no leaf
    move = [i for i, t in enumerate(flat) if t is not None]

    def of_moving(*moving: Any) -> Any:
        now = dict(zip(move, moving, strict=True))
        return f(jax.tree.unflatten(inside, [now.get(i, leaf) for i, leaf in enumerate(leaves)]))

    return jax.jvp(of_moving, [leaves[i] for i in move], [flat[i] for i in move]) if move else (None, None)


def jvp(f: Callable[[Any], Any], primals: Any, tangents: Any) -> Any:
    """The tangent of f(primals), None if all tangents are None."""
    return both(f, primals, tangents)[1]


def undefined(results: Any, tangents: Any) -> Any:
    """Tangents of results that have no derivative: NaN unless all `tangents` are zero; None for integers.

    In reverse mode a zero cotangent of such a result stays zero, and any other becomes NaN in all of them. So a loop
    may carry such a result along if the loss does not read it.
    """

    def tangent(result: Array) -> Array | None:
        if not jnp.issubdtype(result.dtype, jnp.inexact):
            return None
        each = (jnp.sum(undefined_p.bind(t)).real.astype(result.dtype) for t in jax.tree.leaves(tangents))
        # Once more of the result: else cotangents that add up to 0 would cancel.
        return undefined_p.bind(jnp.broadcast_to(sum(each, jnp.zeros((), result.dtype)), result.shape))

    return jax.tree.map(tangent, results)


def unless(failed: Array | None, tangent: Array) -> Array:
    """The tangent, with NaN for every number but 0 where `failed` is set.

    It is linear in the tangent, and its transpose does the same to cotangents. So a loss that masks x has no NaN in its
    gradient; nor has Σ x² where a failed x is 0.
    """
    return tangent if failed is None else jnp.where(failed, undefined_p.bind(tangent), tangent)


def besides(failed: Array | None, x: Array, tangents: Any) -> Array | None:
    """The tangent of x, which depends on inputs with these tangents only where it `failed`; None for zero."""
    if failed is None or not jax.tree.leaves(tangents):
        return None
    return jnp.where(failed, undefined(x, tangents), 0)


def witness(failed: Array | None, x: Array) -> Array:
    """x [n] or [n, k] for a tangent dA·x, which shows whether dA is 0: where x `failed`, it may be 0 itself.

    There the square roots of 2, 3, … replace it, which no dA but 0 takes to 0, unless it was built for that.
    """
    if failed is None:
        return x
    numbers = jnp.sqrt(2 + lax.iota(x.real.dtype, x.shape[0])).reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.where(failed, mesh_axes.varying(numbers.astype(x.dtype), x), x)


class Withheld(Operation):
    """x, with no derivative but NaN where the flag of the pair (x, flag) is set."""

    def compute(self, inputs: tuple[Array, Array]) -> Array:
        return inputs[0]

    def jvp(self, inputs: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Any]:
        return self(inputs), None if tangents[0] is None else unless(inputs[1], tangents[0])


def _undefined(tangent: Array) -> Array:
    # Under jax_debug_nans a NaN in a tangent that the caller does not use would stop the program.
    nothing = jnp.inf if jax.config.jax_debug_nans else jnp.nan  # pyright: ignore[reportAttributeAccessIssue]
    return jnp.where(tangent == 0, 0, nothing).astype(tangent.dtype)


linear_solve_p = Primitive("linear_solve")
linear_solve_p.multiple_results = True
linear_solve_p.def_impl(_compute)
linear_solve_p.to_lojax = _compute  # since JAX 0.11 `custom_root`, which A may call, is a primitive of a higher level
linear_solve_p.def_effectful_abstract_eval(lambda *avals, operation, program: (program.out_avals, program.effects))
ad.primitive_jvps[linear_solve_p] = standard_promotion(_jvp)
ad.primitive_transposes[linear_solve_p] = standard_promotion(_transpose)
batching.fancy_primitive_batchers[linear_solve_p] = standard_promotion(_batch)
mlir.register_lowering(linear_solve_p, mlir.lower_fun(_compute, multiple_results=True))

undefined_p = Primitive("undefined_derivative")
undefined_p.def_impl(_undefined)
undefined_p.def_abstract_eval(lambda tangent: tangent)
ad.deflinear2(undefined_p, lambda cotangent, _: [undefined_p.bind(cotangent)])
batching.defvectorized(undefined_p)
mlir.register_lowering(undefined_p, mlir.lower_fun(_undefined, multiple_results=False))
