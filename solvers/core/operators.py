"""What users pass as A and M, as an `Operator`: matrices, dense arrays, diagonals, functions, anything with `@`.

jit keeps the arrays that a function closed over at its first call. So a function is traced at each call instead, which
costs about a millisecond. A function with the same equations as one before reuses the solver compiled for that one.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import as_floating, as_vector, owned
from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._text import nearest
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis, Operator
from solvers.core import structure
from solvers.core.vectors import times

FUNCTIONS = 64  # of users' functions that are kept; the least recently used goes


@pytree
class Wrapped(Operator):
    """A dense array, or a user's pytree with a shape and `@`."""

    A: Any

    @property
    def shape(self) -> Any:
        return self.A.shape

    @property
    def dtype(self) -> Any:
        return getattr(self.A, "dtype", None)

    @property
    def T(self) -> "Wrapped":
        return Wrapped(self.A.T)

    @property
    def astype(self) -> Callable[[Any], "Wrapped"]:
        narrowed = self.A.astype  # which A may lack
        return lambda dtype: Wrapped(narrowed(dtype))

    def __matmul__(self, x: Any) -> Array:
        return times(self.A, x)


def operand(M: Any, r: Any, leaf: Array, ndim: int, order: Basis = IDENTITY) -> Array:
    """r in the form in which M multiplies it: [n] or [n, k], of floats or complex numbers, where `order` accepts it.

    ValueError: another shape, or a stack of operators, whose array `leaf` has more than `ndim` dimensions.
    """
    if leaf.ndim != ndim:
        raise ValueError(
            f"M is a stack of {' × '.join(map(str, leaf.shape[: leaf.ndim - ndim]))} preconditioners, as vmap makes "
            "them; apply it inside vmap too: jax.vmap(lambda M, r: M @ r)(M, R)"
        )
    return order.accept(as_vector(r, M, 1, f"M @ r with M of shape {M.shape} takes r"), r)


def rows_scaled(d: Array, r: Array) -> Array:
    """d [n] times the rows of r, [n] or [n, k]."""
    return (d if r.ndim == 1 else d[:, None]) * r


@pytree
class Diagonal(Operator):
    """diag(d) as an operator: `@ r` for r of [n] or [n, k]. Reads n entries.

    Attributes:
      d: [n].
    """

    d: Array

    @property
    def shape(self) -> tuple[int, int]:
        return self.d.shape[-1], self.d.shape[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.d.dtype

    @property
    def T(self) -> Self:
        return self

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        return rows_scaled(self.d, operand(self, r, self.d, 1))

    def _entered(self, basis: Basis) -> Self:
        return dataclasses.replace(self, d=basis.enter(self.d))

    def _partition(self, axis: Any) -> PartitionSpec:
        return PartitionSpec(axis)


@pytree
class Function(Operator):
    """A function of one vector, traced: its program, and every array that it closed over as a leaf."""

    consts: list[Any]
    program: Jaxpr = dataclasses.field(metadata={"static": True})  # compared by identity
    result: Any = dataclasses.field(metadata={"static": True})  # its tree

    def __matmul__(self, v: Array) -> Any:
        of_one: Any = self.program.invars[-1].aval
        if v.ndim > of_one.ndim:
            return jax.vmap(self, 1, 1)(v)  # columns
        return jax.tree.unflatten(self.result, jaxpr_as_fun(ClosedJaxpr(self.program, self.consts))(v))

    __call__ = __matmul__


@remembered(FUNCTIONS, "functions as A or M")
def _same(key: Any) -> list[Jaxpr]:
    """The first program with this key, once it is put in."""
    del key
    return []


def traced(f: Callable[[Any], Any], example: Any) -> Function:
    """f traced anew. JAX caches traces by the identity of a function, hence the new lambda.

    Programs that compute the same are one object, for which jit compiles once.
    """
    closed, shape = jax.make_jaxpr(lambda v: f(v), return_shape=True)(example)
    program, consts = structure.hoisted(closed.jaxpr, closed.consts)
    same = _same(structure.key(program))
    if not same:
        same.append(program)
    return Function(consts, same[0], jax.tree.structure(shape))


@dataclasses.dataclass(frozen=True, eq=False)
class UserFunction(Operator):
    """A user's function before it is traced.

    Attributes:
      apply: v -> the function of v, for one vector.
      user: what the user passed, which errors name.
    """

    apply: Callable[[Any], Any]
    user: Any

    dtype = None  # known once it is traced

    def __matmul__(self, v: Any) -> Any:
        return self.apply(v) if v.ndim == 1 else jax.vmap(self.apply, 1, 1)(v)

    def _traced(self, like: Any) -> Function:
        """The function traced for vectors like `like`. ValueError: it communicates between devices over which a solve
        does not.
        """
        found = traced(self.__matmul__, like)
        spread = mesh_axes.varying_axes(*jax.tree.leaves(like)) | mesh_axes.untyped_axes()
        if spread and (over := sorted(spread & _axes_of_collectives(found.program))):
            raise ValueError(
                "inside shard_map a solve takes its inner products over one device's piece, and the function "
                f"communicates over {over}, over which its vectors are spread, or may be without check_vma; call the "
                "solver outside, on the sharded matrix"
            )
        return found


def _inside(program: Any) -> Iterator[Any]:
    """The programs inside the equations of a program, at any depth."""
    for e in program.eqns:
        for part in jax.tree.leaves([*e.params.values()]):
            if isinstance(part, Jaxpr | ClosedJaxpr):
                yield part
                yield from _inside(part)


def _axes_of_collectives(program: Jaxpr) -> set[Any]:
    """The mesh axes over which a program, or one inside it, communicates."""
    axes: set[Any] = set()
    for e in [e for part in (program, *_inside(program)) for e in part.eqns]:
        if e.primitive.name not in ("pvary", "pcast"):  # which only change types
            names = e.params.get("axes", e.params.get("axis_name", ()))
            axes |= {name for name in (names if isinstance(names, tuple) else (names,)) if isinstance(name, str)}
    return axes


def is_function(A: Any) -> TypeGuard[Callable[[Array], Array]]:
    """Whether A is a user's function, and no matrix."""
    if isinstance(A, Operator):
        return isinstance(A, UserFunction)
    return callable(A) and not hasattr(A, "__matmul__")


def operator(A: Any, n: int, name: str) -> Operator:
    """What a user passed as A, or as M, for vectors of n; an M of shape (n,) is a diagonal.

    ValueError: not square, or not of b's size. TypeError: neither a function nor anything with a shape and `@`.
    """
    if isinstance(A, UserFunction) or (isinstance(A, Operator) and A.shape == (n, n)):
        return A
    if is_function(A) or getattr(A, "shape", None) is None:
        if not callable(A):
            got = repr(A) if isinstance(A, str) else type(A).__name__
            cure = f"; {call_for(A)}" if isinstance(A, str) and name == "M" else ""
            raise TypeError(f"{name} must be a matrix with a shape and @, or a function v -> {name}·v; got {got}{cure}")
        refuse_scipy(getattr(A, "__self__", None), name)  # a method, such as solve of SuperLU's factors
        return UserFunction(A, A)
    shape = tuple(A.shape)
    if name == "M" and shape == (n,):
        return Diagonal(as_floating(A, "M"))
    if shape != (n, n):
        hint = ""
        if name == "M":
            hint = f", or ({n},) for a diagonal"
        elif shape == (n,):
            hint = f"; for a diagonal {name} pass lambda r: d * r"
        elif name == "A" and len(shape) == 2 and shape[0] == n:
            hint = "; lsmr takes a rectangular A"
        if manual := jax.sharding.get_abstract_mesh().manual_axes:
            hint += f"; inside shard_map over {manual} b is one device's piece: call the solver outside of shard_map"
        if name == "A" and len(shape) == 2 and shape[0] == shape[1]:
            takes = f"({shape[0]},) or ({shape[0]}, k)"
            raise ValueError(f"b has length {n}; A of shape {shape} takes b of shape {takes}{hint}")
        raise ValueError(f"{name} has shape {shape}; a system with b of length {n} needs ({n}, {n}){hint}")
    return wrapped(A, name)


def wrapped(A: Any, name: str) -> Operator:
    """A matrix of any library but SciPy as an operator. TypeError: it is SciPy's."""
    if isinstance(A, Operator):
        return A
    refuse_scipy(A, name)
    if isinstance(A, np.ndarray):
        A = owned(A)
    is_opaque = jax.tree_util.all_leaves([A]) and not isinstance(A, jax.Array)
    return UserFunction(lambda v: A @ v, A) if is_opaque else Wrapped(A)


def preconditioner(M: Any, like: Any, cure: str = "make b complex") -> Operator | None:
    """M as an operator on vectors like `like`; None unchanged.

    TypeError, which advises `cure`: M·r is complex and `like` is not.
    """
    if M is None:
        return None
    M, complex_ = operator(M, like.shape[0], "M"), jnp.complexfloating
    applied = promoted(product_dtype(M, like, "M"), like.dtype)
    if jnp.issubdtype(applied, complex_) and not jnp.issubdtype(like.dtype, complex_):
        raise TypeError(f"M·r is {applied} in a system of {like.dtype}, which would drop its imaginary part; {cure}")
    return M


def product_dtype(A: Operator, v: Any, name: str) -> Any:
    """The dtype of A, or, if that is unknown, of A·v. ValueError: then A·v does not have v's shape."""
    if (dtype := A.dtype) is not None:
        return dtype  # a trace of A·v would cost a millisecond
    out = jax.eval_shape(lambda v: A @ (v if v.ndim == 1 else v[:, 0]), v)
    got = out.shape if isinstance(out, jax.ShapeDtypeStruct) else out
    if got != v.shape[:1]:
        raise ValueError(f"{name}·v must be a vector of shape {v.shape[:1]} like v; got {got}")
    return out.dtype


def promoted(*dtypes: Any) -> Any:
    """As `jnp.result_type`, which costs 10 µs."""
    return jax.dtypes.canonicalize_dtype(functools.reduce(jnp.promote_types, dtypes))


def refuse_scipy(A: Any, name: str) -> None:
    """Raises TypeError: A is an object of SciPy."""
    if type(A).__name__ == "SuperLU":
        raise TypeError(
            f"{name} computes on the host with SciPy's SuperLU; use M=precond.ilu(A) in place of spilu, and "
            "M=factorized(A) or direct(A, b) in place of splu"
        )
    if type(A).__module__.partition(".")[0] == "scipy":
        raise TypeError(
            f"{name} is SciPy's; convert a sparse matrix once with jaxsparse.from_scipy, and write a "
            "LinearOperator as a function of jax.numpy"
        )


# The preconditioners by what other libraries call them.
PRECONDITIONERS = {name: name for name in ("block_jacobi", "chebyshev", "ilu", "incomplete_lu", "jacobi", "multigrid")}
PRECONDITIONERS |= dict.fromkeys(("diag", "diagonal", "pointjacobi"), "jacobi") | {"bjacobi": "block_jacobi"}
PRECONDITIONERS |= dict.fromkeys(("amg", "gamg", "mg", "ml", "pyamg"), "multigrid")
PRECONDITIONERS |= dict.fromkeys(("ic", "ic0", "icc", "ichol", "incomplete_cholesky"), "incomplete_cholesky")
PRECONDITIONERS |= dict.fromkeys(("ilu0", "ilut", "spilu"), "ilu")


def call_for(word: str) -> str:
    """The call that makes the preconditioner that a user named by a word."""
    if word == "auto":
        return "use solve(A, b), which chooses one, or M=precond.jacobi(A)"
    key = word.lower().replace("-", "_")
    name = PRECONDITIONERS.get(key) or PRECONDITIONERS.get(nearest(key, PRECONDITIONERS), "jacobi")
    return f"use M=precond.{name}(A), with precond of jaxsparse"
