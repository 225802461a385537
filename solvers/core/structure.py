"""What a program of JAX computes, as a key that two programs share only if they compute the same.

The printed text of a program is no such key: it leaves out most of a large array, digits of a small one, and which
function a callback is. Where this module does not know whether two parts are the same, they are not, at the price of
one more compilation.
"""

import dataclasses
import functools
import hashlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from jaxsparse_fmt.kernels.backends import jax_versions

DIGEST = 32  # bytes; longer contents are compared by a digest


@dataclasses.dataclass(frozen=True, eq=False)
class Itself:
    """An object compared by its identity, which no other object has while this one lives."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def hoisted(program: Jaxpr, consts: list[Any]) -> tuple[Jaxpr, list[Any]]:
    """The program with the literals of its equations as constants, so that it serves other values of them too.

    Integers stay, since XLA makes use of a constant index.
    """
    variables, values = [*program.constvars], [*consts]

    def atom(a: Any) -> Any:
        if not isinstance(a, Literal):
            return a
        is_array = isinstance(a.val, jax.Array) or np.ndim(a.val) > 0
        aval: Any = a.aval
        if not is_array and not jnp.issubdtype(aval.dtype, np.inexact):
            return a
        variables.append(Var(aval))
        values.append(a.val if is_array else np.asarray(a.val, aval.dtype))
        return variables[-1]

    equations = [e.replace(invars=[*map(atom, e.invars)]) for e in program.eqns]
    return program.replace(constvars=variables, eqns=equations), values


def key(program: Any) -> tuple[Any, ...]:
    """The equations of a program and the types of its inputs, hashable. The values of its constants are no part."""
    numbers: dict[Var, int] = {}

    def atom(a: Any) -> Any:
        if isinstance(a, Literal):
            return a.aval, _constant(a.val)
        if a in numbers:
            return numbers[a]
        numbers[a] = len(numbers)
        return a.aval

    parts: list[Any] = [(*map(atom, program.constvars), *map(atom, program.invars))]
    for e in program.eqns:
        params = e.params
        # JAX makes the rules of a custom derivative anew at each trace. They count where a derivative may follow.
        if e.primitive.name in ("custom_jvp_call", "custom_vjp_call") and not jax_versions.is_traced_here():
            params = {"call_jaxpr": params["call_jaxpr"]}
        named = [(name, _part(p)) for name, p in params.items()]
        parts.append((e.primitive, e.ctx, *map(atom, e.invars), *named, *map(atom, e.outvars)))
    return *parts, *map(atom, program.outvars)


def _constant(a: Any) -> Any:
    """What a program holds: a number or an array of NumPy by its content, others, which do not change, by identity."""
    array = None if isinstance(a, jax.Array) else np.asarray(a)
    if array is None or array.dtype.hasobject:
        return Itself(a)
    content = array.tobytes()
    return array.dtype, array.shape, content if len(content) <= DIGEST else hashlib.sha256(content).digest()


def _part(p: Any) -> Any:
    """A parameter of an equation, which JAX requires to be hashable, or what it holds.

    What a function reads when the program runs is compared by identity if it can change.
    """
    kind: Any = type(p)
    if isinstance(p, Jaxpr | ClosedJaxpr):
        return key(getattr(p, "jaxpr", p)), *map(_constant, getattr(p, "consts", ()))
    if isinstance(p, tuple):
        return kind, *map(_part, p)
    if isinstance(p, functools.partial):
        return kind, _part(p.func), *map(_part, p.args), *map(_part, p.keywords.items())
    if isinstance(p, types.FunctionType):
        cells = p.__closure__ or ()
        if p.__module__ == "jax._src.debugging":  # whose functions are made anew at each trace, and change nothing
            contents = [cell.cell_contents for cell in cells]
            return p.__code__, *[_part(tuple(c.items()) if isinstance(c, dict) else c) for c in contents]
        return p.__code__, _part(p.__defaults__), _part(p.__kwdefaults__), *map(Itself, (p.__globals__, *cells))
    options = getattr(kind, "__dataclass_params__", None)
    if options is not None and options.frozen and options.eq:
        return kind, *[_part(getattr(p, f.name)) for f in dataclasses.fields(kind)]
    if isinstance(p, float | complex | np.inexact):  # 0.0 == -0.0
        return kind, _constant(p)
    try:
        hash(p)
    except TypeError:
        return Itself(p)
    return kind, p  # 1 == 1.0
