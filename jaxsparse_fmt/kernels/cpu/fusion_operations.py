"""JAX operations in LLVM instructions, on one number and on LANES numbers, for `fusion_code.py`."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

LANES = 8  # numbers that an instruction takes; LLVM divides them among the registers that the CPU has
WORD = ir.IntType(64)
TYPES = {
    **{np.dtype(np.float32): ir.FloatType(), np.dtype(np.float64): ir.DoubleType(), np.dtype(bool): ir.IntType(1)},
    **{np.dtype(name): ir.IntType(32) for name in ("int32", "uint32")},
    **{np.dtype(name): ir.IntType(64) for name in ("int64", "uint64")},
}


class Value:
    """A number or an array, compared by identity."""

    def __init__(self, aval: Any):
        self.shape: tuple[int, ...] = tuple(aval.shape)
        self.dtype: Any = aval.dtype  # JAX's own for random keys

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Known(NamedTuple):
    """A number that the program contains."""

    number: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return ()


Atom = Value | Known


class Op(NamedTuple):
    """An operation: the name of JAX's primitive, its parameters, operands and results; `of` holds the rest."""

    name: str
    params: dict[str, Any]
    ins: tuple[Any, ...]
    outs: tuple[Value, ...]
    of: Any = None


# ------------------------------------------------------------------------------------------------------ operations


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f"


def _compared(b: ir.IRBuilder, sign: str, dtype: np.dtype, x: Any, y: Any) -> Any:
    if is_float(dtype):
        return b.fcmp_unordered("!=", x, y) if sign == "!=" else b.fcmp_ordered(sign, x, y)
    return b.icmp_signed(sign, x, y) if dtype.kind == "i" else b.icmp_unsigned(sign, x, y)


def _extreme(b: ir.IRBuilder, sign: str, dtype: np.dtype, x: Any, y: Any) -> Any:
    """The larger or smaller of two numbers; NaN if either is NaN, and 0.0 is larger than -0.0."""
    if is_float(dtype):
        return _intrinsic(b, "maximum" if sign == ">" else "minimum", x, y)
    return b.select(_compared(b, sign, dtype, x, y), x, y)


def _intrinsic(b: ir.IRBuilder, name: str, *of: Any) -> Any:
    to = of[0].type
    lanes, number = (f"v{to.count}", to.element) if isinstance(to, ir.VectorType) else ("", to)
    full, module = f"llvm.{name}.{lanes}{'f32' if number == ir.FloatType() else 'f64'}", b.module
    kind = ir.FunctionType(to, [x.type for x in of])
    return b.call(module.globals.get(full) or ir.Function(module, kind, full), of)


def _converted(b: ir.IRBuilder, x: Any, old: np.dtype, new: np.dtype, to: Any) -> Any:
    if old == new:
        return x
    if new.kind == "b":
        return _compared(b, "!=", old, x, constant(x.type, 0))
    if is_float(old):
        return (b.fpext if new.itemsize > old.itemsize else b.fptrunc)(x, to)
    if is_float(new):
        return (b.sitofp if old.kind == "i" else b.uitofp)(x, to)
    if old.kind != "b" and new.itemsize == old.itemsize:
        return x
    if old.kind != "b" and new.itemsize < old.itemsize:
        return b.trunc(x, to)
    return (b.sext if old.kind == "i" else b.zext)(x, to)


BINARY = {
    "add": ("fadd", "add"),
    "add_any": ("fadd", "add"),
    "sub": ("fsub", "sub"),
    "mul": ("fmul", "mul"),
    "and": ("", "and_"),
    "or": ("", "or_"),
    "xor": ("", "xor"),
    "div": ("fdiv", ""),
    "shift_left": ("", "shl"),
    "shift_right_logical": ("", "lshr"),
    "shift_right_arithmetic": ("", "ashr"),
}
COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
EXTREMES = {"max": ">", "min": "<"}
UNARY = ("neg", "abs", "sqrt", "rsqrt", "not", "is_finite", "square", "copy")
UNARY += ("convert_element_type", "bitcast_convert_type")
# Reductions of all numbers of an array, each with the operation that adds one number.
SUMS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and", "reduce_or": "or"}
SUMS["dot_general"] = "add"


def compute(b: ir.IRBuilder, op: Op, of: Sequence[Any], to: Any, index: Any) -> Any:
    """The result of an operation that `has_code` accepts.

    Args:
      of: the operands, scalars or vectors of the same number of lanes.
      to: the type of the result.
      index: the place of the first number in its array.
    """
    name, dtype = op.name, op.ins[0].dtype if op.ins else op.outs[0].dtype
    if name in BINARY:
        return getattr(b, BINARY[name][not is_float(dtype)])(*of)
    if name in COMPARED:
        return _compared(b, COMPARED[name], dtype, *of)
    if name in EXTREMES:
        return _extreme(b, EXTREMES[name], dtype, *of)
    match name:
        case "neg":
            return b.fneg(of[0]) if is_float(dtype) else b.neg(of[0])
        case "abs" if is_float(dtype):
            return _intrinsic(b, "fabs", of[0])
        case "abs" if dtype.kind == "i":
            negative = b.neg(of[0])
            return b.select(b.icmp_signed("<", of[0], negative), negative, of[0])
        case "sqrt":
            return _intrinsic(b, "sqrt", of[0])
        case "rsqrt":
            return b.fdiv(constant(of[0].type, 1.0), _intrinsic(b, "sqrt", of[0]))
        case "not":
            return b.not_(of[0])
        case "is_finite":
            size = _intrinsic(b, "fabs", of[0])
            return b.fcmp_ordered("<", size, constant(size.type, np.inf))
        case "square" | "integer_pow":
            return (b.fmul if is_float(dtype) else b.mul)(of[0], of[0])
        case "select_n":
            return b.select(*(of[k] for k in (0, 2, 1)))
        case "convert_element_type":
            return _converted(b, of[0], dtype, op.outs[0].dtype, to)
        case "bitcast_convert_type":
            return b.bitcast(of[0], to)
        case "iota":
            places = index if not isinstance(to, ir.VectorType) else _lanes_from(b, index)
            return _converted(b, places, np.dtype(np.int64), op.outs[0].dtype, to)
    return of[0]  # copies, and numbers that become arrays


def has_code(op: Op) -> bool:
    """Whether `compute`, or the sums of a pass, can make the results of an operation."""
    if any(getattr(a, "dtype", None) not in TYPES or 0 in a.shape for a in (*op.ins, *op.outs)) or len(op.outs) != 1:
        return False
    (out,), name = op.outs, op.name
    if name in SUMS:
        return (
            out.shape == ()
            and op.ins[0].shape != ()
            and all(a.dtype == out.dtype for a in op.ins)
            and _is_whole_sum(op)
        )
    if name == "iota":
        return len(out.shape) == 1
    if name == "broadcast_in_dim":
        return op.ins[0].shape == ()
    if any(a.shape not in ((), out.shape) for a in op.ins):
        return False
    if name.startswith("shift"):
        by = op.ins[1]
        return isinstance(by, Known) and 0 <= by.number < 8 * by.dtype.itemsize
    if name in BINARY:
        return bool(BINARY[name][not is_float(out.dtype)]) and (out.dtype.kind != "b" or name in ("and", "or", "xor"))
    if name == "convert_element_type":
        return not (is_float(op.ins[0].dtype) and out.dtype.kind in "iu")
    if name == "integer_pow":
        return op.params["y"] == 2
    if name == "bitcast_convert_type":
        return op.ins[0].dtype.itemsize == out.dtype.itemsize
    if name == "select_n":
        return len(op.ins) == 3 and op.ins[0].dtype.kind == "b"
    return name in COMPARED or name in EXTREMES or name in UNARY


def _is_whole_sum(op: Op) -> bool:
    if op.name != "dot_general":
        return (op.outs[0].dtype.kind == "b") == (op.name in ("reduce_and", "reduce_or"))
    return op.params["dimension_numbers"] == (((0,), (0,)), ((), ())) and is_float(op.outs[0].dtype)


def constant(of: Any, number: Any) -> Any:
    if isinstance(of, ir.VectorType):
        return ir.Constant(of, [constant(of.element, number)] * of.count)
    return ir.Constant(of, int(number) if isinstance(of, ir.IntType) else float(number))


def _lanes_from(b: ir.IRBuilder, index: Any) -> Any:
    return b.add(splat(b, index), ir.Constant(ir.VectorType(WORD, LANES), list(range(LANES))))


def splat(b: ir.IRBuilder, x: Any) -> Any:
    of = ir.VectorType(x.type, LANES)
    first = b.insert_element(ir.Constant(of, ir.Undefined), x, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return b.shuffle_vector(first, ir.Constant(of, ir.Undefined), places)
