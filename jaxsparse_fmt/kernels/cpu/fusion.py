"""Programs of JAX with few kernels: what a solver computes between two products becomes a few calls of native code.

`fused` evaluates a program as JAX would, operation by operation, but collects those for which `fusion_operations.py`
has code into groups. It first lists all operations, including those of inner functions, then assigns each to a group.
Group h holds the operations that depend on one without code that needs group h − 1, and those not needed earlier.
Bodies of loops and branches are lists of their own. A loop computes its condition together with the numbers of a trip.

A group of short arrays is one call. Otherwise each stage is a call of its own, shared by XLA's threads, since a sum
must be complete before the next stage begins. Native code stays in memory until the process ends.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jaxsparse_fmt.kernels.backends.jax_versions import consts_of_loop
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.cpu import ffi
from jaxsparse_fmt.kernels.cpu.fusion_code import Group, text_of
from jaxsparse_fmt.kernels.cpu.fusion_operations import SUMS, Atom, Known, Op, Value, has_code


class Body(NamedTuple):
    """Operations with their operands and results; a program, a trip of a loop, or a branch."""

    ops: list[Op]
    ins: list[Value]
    outs: list[Any]


@functools.lru_cache(maxsize=64)
def fused(program: ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program as a function for one CPU; jitted, so that all its calls are lowered once."""

    def run(*operands: Any) -> list[Any]:
        values: dict[Value, Any] = {}
        return _run(_body_of(program.jaxpr, program.consts, values), values, operands)

    return jax.jit(run)


# ------------------------------------------------------------------------------------------------------- the operations


def _body_of(jaxpr: Jaxpr, consts: Sequence[Any], values: dict[Value, Any]) -> Body:
    ins = [Value(v.aval) for v in jaxpr.invars]
    ops: list[Op] = []
    outs = _listed(jaxpr, consts, ins, ops, values)
    return _simplified(ops, ins, outs)


def _listed(
    jaxpr: Jaxpr, consts: Sequence[Any], ins: Sequence[Any], ops: list[Op], values: dict[Value, Any]
) -> list[Any]:
    """Appends the operations of a program to `ops`; returns the results of the program.

    Args:
      values: gets the arrays that the program contains.
    """
    env: dict[Any, Any] = dict(zip(jaxpr.invars, ins, strict=True))
    for v, const in zip(jaxpr.constvars, consts, strict=True):
        env[v] = Value(v.aval)
        values[env[v]] = const

    def atom(a: Any) -> Any:
        if not isinstance(a, Literal):
            return env[a]
        if np.ndim(a.val) == 0 and hasattr(a.val, "dtype"):
            return Known(np.asarray(a.val).item(), np.dtype(a.val.dtype))
        constant = Value(a.aval)
        values[constant] = a.val
        return constant

    for e in jaxpr.eqns:
        of, name, params = [atom(a) for a in e.invars], e.primitive.name, e.params
        outs: Sequence[Any] = [Value(v.aval) if hasattr(v.aval, "dtype") else v for v in e.outvars]
        if name in ("jit", "pjit", "closed_call"):
            inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            if any(e.primitive.name in ("while", "cond") for e in inner.eqns):  # JAX lowers it once for all calls
                ops.append(Op(name, params, tuple(of), tuple(outs), inner))
            else:
                outs = _listed(inner.jaxpr, inner.consts, of, ops, values)
        elif name == "scan" and (n_consts := consts_of_loop(params, len(of), len(outs))) is not None:
            inner = params["jaxpr"]
            if params["length"] == 1:
                outs = _listed(inner.jaxpr, inner.consts, of, ops, values)
            else:
                made = _body_of(inner.jaxpr, inner.consts, values)
                ops.append(Op(name, params | {"num_consts": n_consts}, tuple(of), tuple(outs), made))
        elif name == "while" and not params["cond_jaxpr"].out_avals[0].shape:  # vmap makes conditions with a shape
            outs = _while(params, of, ops, values)
        elif name == "cond":
            branches = [_body_of(b.jaxpr, b.consts, values) for b in params["branches"]]
            ops.append(Op(name, params, tuple(of), tuple(outs), branches))
        elif name in ("reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_sum") and not params["axes"]:
            outs = of
        else:
            ops.append(Op(name, params, tuple(of), tuple(outs), e))
        env |= zip(e.outvars, outs, strict=True)
    return [atom(a) for a in jaxpr.outvars]


def _while(params: dict[str, Any], of: list[Any], ops: list[Op], values: dict[Value, Any]) -> list[Value]:
    """Appends a loop whose first carried number is true while the loop goes on."""
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, first = of[:n_cond], of[n_cond : n_cond + n_body], of[n_cond + n_body :]
    (goes_on,) = _listed(condition.jaxpr, condition.consts, [*of_cond, *first], ops, values)
    inner: list[Op] = []
    of_cond, of_body = ([Value(a) for a in group] for group in (of_cond, of_body))
    carry, flag = [Value(v.aval) for v in body.jaxpr.invars[n_body:]], Value(condition.out_avals[0])
    new = _listed(body.jaxpr, body.consts, [*of_body, *carry], inner, values)
    (again,) = _listed(condition.jaxpr, condition.consts, [*of_cond, *new], inner, values)
    made = _simplified(inner, [*of_cond, *of_body, flag, *carry], [again, *new])
    outs = Value(flag), *(Value(v) for v in carry)
    ops.append(Op("while", {"num_consts": n_cond + n_body}, (*of[: n_cond + n_body], goes_on, *first), outs, made))
    return list(outs[1:])


def _simplified(ops: list[Op], ins: list[Value], outs: list[Any]) -> Body:
    """A body without dead operations and without duplicates.

    Operations on arrays take a number in place of an array that repeats it.
    """
    seen: dict[Any, Value] = {}
    same: dict[Any, Any] = {}
    spread: dict[Any, Any] = {}
    each = []
    for op in ops:
        op = op._replace(ins=tuple(same.get(a, a) for a in op.ins))
        if has_code(op):
            if op.name not in SUMS:
                op = op._replace(ins=tuple(spread.get(a, a) for a in op.ins))
            (out,) = op.outs
            of = tuple((repr(a.number), a.dtype) if isinstance(a, Known) else a for a in op.ins)
            if (first := seen.setdefault((op.name, of, out.shape, out.dtype), out)) is not out:
                same[out] = first
                continue
            if op.name == "broadcast_in_dim":
                spread[out] = op.ins[0]
        each.append(op)
    outs = [same.get(a, a) for a in outs]
    needed, kept = {a for a in outs if isinstance(a, Value)}, []
    for op in reversed(each):
        if _has_effect(op) or any(v in needed for v in op.outs):
            kept.append(op)
            needed |= {a for a in op.ins if isinstance(a, Value)}
    return Body(kept[::-1], ins, outs)


def _has_effect(op: Op) -> bool:
    if isinstance(op.of, Body):
        return any(map(_has_effect, op.of.ops))
    if isinstance(op.of, list):
        return any(_has_effect(inner) for body in op.of for inner in body.ops)
    return bool(op.of.effects)


# ----------------------------------------------------------------------------------------------------------- the groups


def _levels(body: Body, native: list[bool]) -> tuple[list[int], int]:
    """The group of every operation, and the last group.

    An operation without code runs after the group of its number, as early as it can; one with code joins the latest
    group that it can.
    """
    made: dict[Value, tuple[int, bool]] = {}
    levels, last_effect = [], -1
    for op, is_native in zip(body.ops, native, strict=True):
        # Operations without code at h may read what group h makes; groups from h + 1 on may read their results.
        level = max((made[a][0] + (is_native and not made[a][1]) for a in op.ins if a in made), default=-1 + is_native)
        if not is_native and _has_effect(op):
            level = last_effect = max(level, last_effect)
        levels.append(level)
        made |= {v: (level, is_native) for v in op.outs}
    most = max(levels, default=0)
    late = dict.fromkeys(body.outs, most)
    for k, op in reversed(list(enumerate(body.ops))):
        if native[k]:
            levels[k] = max(levels[k], late[op.outs[0]])
        for a in op.ins:
            late[a] = min(late.get(a, most), levels[k])
    return levels, most


def _stages(ops: list[Op]) -> list[list[Op]]:
    """The operations of a group by stage: a sum is known in the stage after its own."""
    known: dict[Value, int] = {}
    at = []
    for op in ops:
        stage = max((known[a] for a in op.ins if a in known), default=0)
        at.append(stage)
        known |= {v: stage + (op.name in SUMS) for v in op.outs}
    stages: list[list[Op]] = [[] for _ in range(max(at, default=-1) + 1)]
    for op, stage in zip(ops, at, strict=True):
        stages[stage].append(op)
    return stages


# ----------------------------------------------------------------------------------------------------------- evaluation


def _run(body: Body, values: dict[Value, Any], operands: Sequence[Any], pairs: dict[Any, Value] | None = None) -> Any:
    """The results of a body.

    Args:
      values: arrays that programs contain.
      pairs: results that may take the memory of an operand.
    """
    env = values | dict(zip(body.ins, operands, strict=True))
    native = [has_code(op) for op in body.ops]
    levels, most = _levels(body, native)
    at = list(zip(body.ops, levels, native, strict=True))
    for level in range(-1, most + 1):
        if group := [op for op, own, is_native in at if own == level and is_native]:
            used = {a for op, own, is_native in at if own > level or not is_native for a in op.ins} | set(body.outs)
            _call(group, [v for op in group for v in op.outs if v in used], env, pairs or {})
        for op in (op for op, own, is_native in at if own == level and not is_native):
            env |= zip(op.outs, _evaluated(op, [_read(a, env) for a in op.ins], values), strict=True)
    return [_read(a, env) for a in body.outs]


def _read(a: Any, env: dict[Value, Any]) -> Any:
    return jnp.asarray(a.number, a.dtype) if isinstance(a, Known) else env[a]


def _evaluated(op: Op, of: list[Any], values: dict[Value, Any]) -> Sequence[Any]:
    if isinstance(op.of, Body):
        n = op.params["num_consts"]
        consts, first = of[:n], tuple(of[n:])
        pairs = {new: old for new, old in zip(op.of.outs, op.of.ins[n:], strict=True) if isinstance(new, Value)}
        trip = lambda carry: tuple(_run(op.of, values, [*consts, *carry], pairs))  # noqa: E731
        if op.name == "scan":
            return lax.fori_loop(0, op.params["length"], lambda _, carry: trip(carry), first)
        return lax.while_loop(lambda carry: carry[0], trip, first)
    if isinstance(op.of, list):
        branches = [lambda *of, body=body: _run(body, values, of) for body in op.of]
        which = of[0].astype(jnp.int32)
        return lax.switch(which, branches, *of[1:])
    if isinstance(op.of, ClosedJaxpr):
        return fused(op.of)(*of)
    primitive = op.of.primitive
    with op.of.ctx.manager:
        found = primitive.bind(*of, **primitive.get_bind_params(op.params))
    return found if primitive.multiple_results else [found]


def _call(ops: list[Op], outs: list[Value], env: dict[Value, Any], pairs: dict[Any, Value]) -> None:
    """Adds the results of a group to `env`."""
    size = max(v.size for op in ops for v in (*op.ins, *op.outs) if isinstance(v, Value))
    pieces = 1 if size < LAUNCH.serial_entries else min(size // LAUNCH.piece_entries, LAUNCH.most_pieces)
    stages = _stages(ops)
    if pieces == 1:
        return _call_stages(stages, outs, 1, env, pairs)
    totals: list[Op] = []
    for k, stage in enumerate([*stages, []]):
        later = {a for s in stages[k + 1 :] for op in s for a in op.ins} | set(outs)
        now, totals = totals + [op for op in stage if op.name not in SUMS], []
        written = [v for op in now for v in op.outs if v in later]
        for op in stage:
            if op.name in SUMS:  # every piece writes a part
                parts = Value(jax.ShapeDtypeStruct((pieces,), op.outs[0].dtype))
                now.append(op._replace(of=parts))
                totals.append(Op("total", {}, (parts,), op.outs, op))
                written.append(parts)
        if now:
            is_cut = any(v.shape != () for v in written)
            _call_stages([now], written, pieces if is_cut else 1, env, pairs)
    return None


def _call_stages(
    stages: list[list[Op]], outs: list[Value], pieces: int, env: dict[Value, Any], pairs: dict[Any, Value]
) -> None:
    ops = [op for stage in stages for op in stage]
    if pieces == 1:
        stages = [[op if op.name == "total" else op._replace(of=None) for op in stage] for stage in stages]
    made = {v for op in ops for v in op.outs}
    ins = list(dict.fromkeys(a for op in ops for a in op.ins if isinstance(a, Value) and a not in made))
    # The call writes the results, and the arrays that a later stage reads.
    at = {v: k for k, stage in enumerate(stages) for op in stage for v in op.outs}
    last_read: dict[Atom, int] = {a: k for k, stage in enumerate(stages) for op in stage for a in op.ins}
    between = [v for v in made if v.shape != () and last_read.get(v, 0) > at[v] and v not in outs]
    between = sorted(between, key=list(at).index)
    outs = [*outs, *between]
    text = text_of(Group(stages, ins, outs, pieces))
    aliases = {}
    for k, v in enumerate(outs):
        old = pairs.get(v)
        if old is None or old not in ins or (old.shape, old.dtype) != (v.shape, v.dtype):
            continue
        # One piece reads all numbers before it writes any; the last stage that reads an array may overwrite it.
        if pieces == 1 if v.shape == () else last_read[old] <= at[v]:
            aliases[ins.index(old)] = k
    results = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in outs]
    found = ffi.call_text(text, [env[v] for v in ins], results, pieces, aliases)
    env |= zip(outs, found, strict=True)
