"""Checks of the arguments of solvers, and their conversion into pytrees that jit takes."""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from jaxsparse_fmt._arguments import as_floating, is_sparse, owned, real_number, whole_number
from jaxsparse_fmt._dtypes import floating_dtype
from jaxsparse_fmt._progress import BAR, Reports, Watcher
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import Parameters, Result
from jaxsparse_fmt.core.basis import IDENTITY, Operator
from jaxsparse_fmt.formats import memory
from solvers.core.operators import UserFunction, is_function
from solvers.solution import raise_lost_process

# Keywords of SciPy before version 1.14, of lineax and others, and their names here.
ELSEWHERE = {"tol": "rtol", "max_steps": "maxiter", "max_iter": "maxiter", "y0": "x0", "verbose": "progress"}
ELSEWHERE |= {"preconditioner": "M", "precond": "M"}
# What infinity stands for: float32 holds it, and its product with ‖b‖ = 0 is 0, where that of infinity is NaN.
ANY = 2.0**126
MAX_HISTORY = 10_000  # iterations whose norms `history=True` keeps


def door(f: Callable[Parameters, Result], signature: inspect.Signature | None = None) -> Callable[Parameters, Result]:
    """A function of a matrix, as under `standard_promotion`; what one process refuses of a sharded matrix, all refuse.

    TypeError: a keyword that f does not have, with those that it has.

    Args:
      signature: that which users see; None takes that of f.
    """
    known = (signature or inspect.signature(f)).parameters

    @functools.wraps(f)
    def called(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        A: Any = args[0] if args else keywords.get("A")
        together = A._failing_together(f.__name__) if isinstance(A, Operator) else contextlib.nullcontext()
        try:
            with together, jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                if not keywords.keys() <= known.keys():
                    raise _unknown_keyword(f.__name__, keywords, known)
                return f(*args, **keywords)
        except (RuntimeError, ValueError) as error:
            raise_lost_process(error)
            raise

    if signature is not None:
        vars(called)["__signature__"] = signature
    return called


def _unknown_keyword(name: str, keywords: Iterable[str], known: Collection[str]) -> TypeError:
    unknown = next(word for word in keywords if word not in known)
    here = f": here it is {ELSEWHERE[unknown]!r}" if ELSEWHERE.get(unknown) in known else ""
    names = ", ".join(word for word in known if word not in ("A", "b")) or "none"
    return TypeError(f"{name} has no keyword {unknown!r}{here}; it has {names}")


@dataclasses.dataclass(frozen=True)
class Ravel:
    """The map between a pytree of arrays, or a number, and one vector: the leaves in order, each by rows.

    Attributes:
      tree: the structure of the pytree.
      shapes: of its leaves.
      dtypes: of its leaves, which their parts of a vector take; empty if they are all the same.
      callback: a user's function of pytrees, of which this object is one of vectors; equal ones share programs.
    """

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...] = ()
    callback: Any = None

    def __call__(self, v: Array) -> None:
        self.callback(self.pytree(v))

    def vector(self, a: Any, name: str) -> Array:
        """The leaves of `a` as one vector [n]. ValueError: another structure or other shapes."""
        if isinstance(a, list) and jax.tree_util.treedef_is_leaf(self.tree):  # of the numbers of one array
            a = as_floating(a, name)
        leaves, tree = jax.tree.flatten(a)
        if (tree, tuple(map(jnp.shape, leaves))) != (self.tree, self.shapes):
            like = jax.tree.unflatten(self.tree, self.shapes)
            raise ValueError(f"{name} must have b's structure and shapes, {like}; got {jax.tree.map(jnp.shape, a)}")
        return jnp.concatenate([as_floating(jnp.ravel(owned(leaf)), name) for leaf in leaves])

    def pytree(self, v: Array) -> Any:
        """The pytree whose leaves are the parts of v [n]."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = [part.reshape(shape) for part, shape in zip(jnp.split(v, ends[:-1]), self.shapes, strict=True)]
        if self.dtypes:
            kept = [jnp.promote_types(d, jnp.complex64) if jnp.iscomplexobj(v) else d for d in self.dtypes]
            parts = [part.astype(dtype) for part, dtype in zip(parts, kept, strict=True)]
        return jax.tree.unflatten(self.tree, parts)

    def function(self, f: Any, name: str) -> Any:
        """A user's function of pytrees as a function of vectors; None and matrices, which act on vectors, unchanged."""
        return UserFunction(lambda v: self.vector(f(self.pytree(v)), f"{name}·v"), f) if is_function(f) else f


def ravel(b: Any, A: Any) -> Ravel | None:
    """The map from the unknowns of one system to a vector; None if b is a vector, or A a matrix and b columns.

    For a function A every b is one unknown, of any shape, as in JAX and lineax.

    ValueError: b is empty, or its systems are rows. TypeError: it is sparse, or a pytree while A is not a function.
    """
    if is_sparse(b):
        raise TypeError(f"b is a sparse {type(b).__name__}, and a right-hand side is dense; pass b.todense()")
    leaves, of_function = jax.tree.leaves(b), is_function(A)
    is_array = _is_array(b, leaves)
    shape = np.shape(b) if is_array else ()
    if len(shape) == 2 and shape[0] != shape[1] and getattr(A, "shape", None) == (shape[1], shape[1]):
        raise ValueError(f"b has shape {shape}; several right-hand sides are columns, ({shape[1]}, k): pass b.T")
    if not is_array and not of_function:
        raise TypeError(f"b is a {type(b).__name__}; a matrix A takes one array, and a function A a pytree like b")
    if not sum(map(np.size, leaves)) and (of_function or not (len(shape) == 2 and shape[0])):
        raise ValueError(f"b is empty, of shape {jax.tree.map(np.shape, b)}; a system needs at least one unknown")
    if not of_function or (is_array and len(shape) == 1):
        return None
    dtypes = tuple(floating_dtype(jnp.result_type(leaf), "b") for leaf in leaves)
    return Ravel(jax.tree.structure(b), tuple(map(np.shape, leaves)), dtypes if len(set(dtypes)) > 1 else ())


def _is_array(a: Any, leaves: list[Any]) -> bool:
    """Whether `a` with these leaves is one array, or numbers in lists, and not a pytree of arrays."""
    is_list = isinstance(a, (list, tuple)) and not any(hasattr(leaf, "dtype") for leaf in leaves)
    return is_list or jax.tree_util.all_leaves([a])


def unknowns(A: Any, b: Any) -> int:
    """The number of unknowns of one system. Errors as of `ravel`."""
    if ravel(b, A) is not None:
        return sum(map(np.size, jax.tree.leaves(b)))
    return np.shape(b)[0] if np.ndim(b) else 1


def vectors(a: Any, name: str) -> Array:
    """`a` as a vector, or several as columns, of floats or complex numbers of a dtype that promotion keeps.

    ValueError: neither one- nor two-dimensional. TypeError: not numeric.
    """
    a = as_floating(a, name)
    if a.ndim not in (1, 2):
        raise ValueError(f"{name} must be a vector of shape (n,), or several as columns (n, k); got {a.shape}")
    return a.astype(a.dtype) if jax.typeof(a).weak_type else a


def nonempty(a: Any, name: str, needs: str, axes: int = 2) -> Array:
    """`a` as `vectors` returns it. TypeError: a pytree. ValueError: nothing along one of so many `axes`."""
    if not _is_array(a, jax.tree.leaves(a)):
        raise TypeError(
            f"{name} must be one array, of shape (n,) or (n, k); got a {type(a).__name__}. "
            "Ravel a pytree with jax.flatten_util.ravel_pytree"
        )
    a = vectors(a, name)
    if 0 in a.shape[:axes]:
        raise ValueError(f"{name} is empty, of shape {a.shape}; {needs}")
    return a


def is_addressable(tree: Any) -> bool:
    """Whether this process can read all arrays of a pytree."""
    return all(leaf.is_fully_addressable for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))


def still(tree: Any) -> Any:
    """Without derivatives: under `jax.grad` outside jit its values are known."""
    return jax.tree.map(lambda a: lax.stop_gradient(a) if isinstance(a, Tracer) else a, tree)


def part(A: Any) -> float:
    """The fraction of a vector of A's that lies in the memory which `memory.free` measures."""
    basis: Any = A._in_bases()[1] if isinstance(A, Operator) else IDENTITY
    if basis.devices == 1:
        return 1.0
    here = basis.over.mesh.local_devices
    return (1 if memory.is_own(here[0]) else len(here)) / basis.devices


def cast(a: Array, dtype: Any) -> Array:
    """`a.astype(dtype)`, which costs 10 µs outside jit even if nothing changes."""
    return a if a.dtype == dtype and not jax.typeof(a).weak_type else a.astype(dtype)


def nonnegative(value: Any, name: str, infinite: bool = False) -> Any:
    """A number from 0 up: a float of Python, or traced, in JAX's default float.

    Args:
      infinite: whether infinity stands for `ANY`, as for rtol and atol, where SciPy takes it.

    ValueError: negative or NaN, or infinite where that has no sense. TypeError: not one number.
    """
    if type(value) is float and 0 <= value < math.inf:
        return value
    if isinstance(value, Tracer):
        _check_traced(value, name, np.floating, np.integer)
        return jnp.asarray(value, float)
    number = real_number(name, value)
    number = ANY if number == math.inf and infinite else number
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be a number from 0 up; got {value}")
    return number


def tolerance(value: Any, name: str) -> Any:
    """As `nonnegative`, with NumPy's number for Python's, which jit takes in less time; a device's would cost 50 µs."""
    number = nonnegative(value, name)
    return number if isinstance(number, Tracer) else np.asarray(number, jax.dtypes.canonicalize_dtype(float))


def _check_traced(value: Tracer, name: str, *kinds: Any) -> None:
    """Raises TypeError: `value` is an array, or its dtype is of none of `kinds`."""
    if value.ndim or not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
        raise TypeError(f"{name} must be one {kinds[0].__name__} number; got {value.dtype}{list(value.shape)}")


def int_at_least(value: Any, name: str, least: int) -> int:
    """A whole number from `least` up, at most the largest that 32 bits hold."""
    return min(whole_number(name, value, least), 2**31 - 1)


def maxiter(value: Any, otherwise: int) -> Any:
    """A limit of iterations, from 1 up, in 32 bits, traced or a NumPy scalar; `otherwise` for None."""
    if isinstance(value, Tracer):
        return traced_maxiter(value)
    return np.asarray(int_at_least(otherwise if value is None else value, "maxiter", 1), np.int32)


def traced_maxiter(value: Tracer) -> Array:
    _check_traced(value, "maxiter", np.integer)
    return jnp.asarray(value, jnp.int32)


def history(value: Any) -> bool | int:
    """Whether to keep residual norms, or how many."""
    return bool(value) if isinstance(value, (bool, np.bool_)) else int_at_least(value, "history", 0)


def history_length(history: bool | int, maxiter: Any) -> int:
    """The number of residual norms to keep, that of the start included; 0 for False, at most MAX_HISTORY for True."""
    if isinstance(history, bool):
        return (MAX_HISTORY if isinstance(maxiter, Tracer) else min(int(maxiter), MAX_HISTORY)) + 1 if history else 0
    check_free_memory(
        8 * (history + 1), f"history={history}", "keep fewer norms, or pass progress= to see them", memory.free
    )
    return history + 1


def check_free_memory(needed: int, what: str, cure: str, free_bytes: Callable[[], int | None]) -> None:
    """Raises ValueError for arrays of `needed` bytes if less memory is free; arrays up to 1 GB are not checked.

    Args:
      what, cure: for the message: which arrays, and what to do instead.
      free_bytes: of the memory in which they will lie; None: unknown.
    """
    free = None if needed <= 10**9 else free_bytes()
    if free is not None and needed > free:
        raise ValueError(
            f"{what} take {readable_bytes(needed)}, and only {readable_bytes(free)} of memory are free; {cure}"
        )


def watcher(progress: Any) -> Watcher | None:
    """What a solver reports to; the bar for True."""
    if progress is None or isinstance(progress, (bool, np.bool_)):
        return BAR if progress else None
    if not callable(progress):
        raise TypeError(f"progress must be True, a function or None; got {progress!r}")
    return progress if isinstance(progress, Watcher) else Reports(progress)


def function_or_none(f: Any, name: str) -> Any:
    if f is not None and not callable(f):
        raise TypeError(f"{name} must be a function or None; got {f!r}")
    return f
