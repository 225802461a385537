"""JAX operations in LLVM instructions, on one number and on LANES numbers, for `fusion_code.py`.

The instructions are written as text: objects of `llvmlite.ir` for each would cost a first solve 0.1 s.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LANES = 8  # numbers that an instruction takes; LLVM divides them among the registers that the CPU has
WORD = "i64"
TYPES = {
    **{np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(bool): "i1"},
    **{np.dtype(name): "i32" for name in ("int32", "uint32")},
    **{np.dtype(name): "i64" for name in ("int64", "uint64")},
}


class Number(NamedTuple):
    """An operand of instructions, as LLVM writes it."""

    type: str
    name: str


def wide(of: str) -> str:
    """The type of LANES numbers."""
    return f"<{LANES} x {of}>"


def word(number: int) -> Number:
    return Number(WORD, str(number))


class Text:
    """A function of LLVM, written instruction by instruction.

    Attributes:
      block: the label of the block in which the next instruction stands.
    """

    def __init__(self, signature: str):
        self.signature, self.block = signature, "begin"
        self.lines, self.declared = ["begin:"], dict[str, str]()

    def new(self, of: str, instruction: str) -> Number:
        """The result, of type `of`, of an instruction."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return Number(of, name)

    def op(self, name: str, x: Number, *others: Number) -> Number:
        """The result of an instruction whose operands and result are of one type."""
        return self.new(x.type, f"{name} {x.type} {', '.join(v.name for v in (x, *others))}")

    def compare(self, how: str, x: Number, y: Number) -> Number:
        return self.op(how, x, y)._replace(type=wide("i1") if x.type.startswith("<") else "i1")

    def select(self, *of: Number) -> Number:
        return self.new(of[1].type, "select " + ", ".join(f"{x.type} {x.name}" for x in of))

    def cast(self, name: str, x: Number, to: str) -> Number:
        return self.new(to, f"{name} {x.type} {x.name} to {to}")

    def intrinsic(self, name: str, *of: Number) -> Number:
        """A function of LLVM whose operands and result are of one type."""
        to = of[0].type
        suffix = to.strip("<>").replace(f"{LANES} x ", f"v{LANES}").replace("float", "f32").replace("double", "f64")
        full = f"@llvm.{name}.{suffix}"
        self.declared[full] = f"declare {to} {full}({', '.join(x.type for x in of)})"
        return self.new(to, f"call {to} {full}({', '.join(f'{x.type} {x.name}' for x in of)})")

    def at(self, pointer: Number, index: Number) -> Number:
        """The address of an array's number at `index`."""
        of = pointer.type.removesuffix("*")
        return self.new(pointer.type, f"getelementptr {of}, {pointer.type} {pointer.name}, {WORD} {index.name}")

    def load(self, pointer: Number, align: int = 8) -> Number:
        of = pointer.type.removesuffix("*")
        return self.new(of, f"load {of}, {pointer.type} {pointer.name}, align {align}")

    def store(self, x: Number, pointer: Number, align: int) -> None:
        self.lines.append(f"store {x.type} {x.name}, {pointer.type} {pointer.name}, align {align}")

    def begin(self, label: str) -> None:
        self.block = label
        self.lines.append(f"{label}:")

    def branch(self, condition: Number, first: str, second: str) -> None:
        self.lines.append(f"br i1 {condition.name}, label %{first}, label %{second}")

    def jump(self, label: str) -> None:
        self.lines.append(f"br label %{label}")

    def phi(self, first: Number, before: str) -> tuple[Number, int]:
        """A number that is `first` after the block `before`, and the place of its line, for `phi_from`."""
        return self.new(first.type, f"phi {first.type} [ {first.name}, %{before} ]"), len(self.lines) - 1

    def phi_from(self, place: int, x: Number) -> None:
        """The number is x after the present block."""
        self.lines[place] += f", [ {x.name}, %{self.block} ]"

    def __str__(self) -> str:
        return "\n".join([*self.declared.values(), f"define {self.signature} {{", *self.lines, "}", ""])


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


def _compared(b: Text, sign: str, dtype: np.dtype, x: Number, y: Number) -> Number:
    if is_float(dtype):
        return b.compare("fcmp une" if sign == "ne" else f"fcmp o{sign}", x, y)
    signed = "" if sign in ("eq", "ne") else "s" if dtype.kind == "i" else "u"
    return b.compare(f"icmp {signed}{sign}", x, y)


def _converted(b: Text, x: Number, old: np.dtype, new: np.dtype, to: str) -> Number:
    if old == new:
        return x
    if new.kind == "b":
        return _compared(b, "ne", old, x, constant(x.type, 0))
    if is_float(old):
        return b.cast("fpext" if new.itemsize > old.itemsize else "fptrunc", x, to)
    if is_float(new):
        return b.cast("sitofp" if old.kind == "i" else "uitofp", x, to)
    if old.kind != "b" and new.itemsize == old.itemsize:
        return x
    if old.kind != "b" and new.itemsize < old.itemsize:
        return b.cast("trunc", x, to)
    return b.cast("sext" if old.kind == "i" else "zext", x, to)


BINARY = {
    "add": ("fadd", "add"),
    "add_any": ("fadd", "add"),
    "sub": ("fsub", "sub"),
    "mul": ("fmul", "mul"),
    "and": ("", "and"),
    "or": ("", "or"),
    "xor": ("", "xor"),
    "div": ("fdiv", ""),
    "shift_left": ("", "shl"),
    "shift_right_logical": ("", "lshr"),
    "shift_right_arithmetic": ("", "ashr"),
}
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
EXTREMES = {"max": ("maximum", "gt"), "min": ("minimum", "lt")}  # NaN if either is, and 0.0 is larger than -0.0
UNARY = ("neg", "abs", "sqrt", "rsqrt", "not", "is_finite", "square", "copy")
UNARY += ("convert_element_type", "bitcast_convert_type")
# Reductions of all numbers of an array, each with the operation that adds one number.
SUMS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and", "reduce_or": "or"}
SUMS["dot_general"] = "add"


def compute(b: Text, op: Op, of: Sequence[Number], to: str, index: Any) -> Number:
    """The result of an operation that `has_code` accepts.

    Args:
      of: the operands, scalars or vectors of the same number of lanes.
      to: the type of the result.
      index: the place of the first number in its array.
    """
    name, dtype = op.name, op.ins[0].dtype if op.ins else op.outs[0].dtype
    if name in BINARY:
        return b.op(BINARY[name][not is_float(dtype)], *of)
    if name in COMPARED:
        return _compared(b, name, dtype, *of)
    if name in EXTREMES:
        of_floats, sign = EXTREMES[name]
        return b.intrinsic(of_floats, *of) if is_float(dtype) else b.select(_compared(b, sign, dtype, *of), *of)
    match name:
        case "neg":
            return b.op("fneg", of[0]) if is_float(dtype) else b.op("sub", constant(to, 0), of[0])
        case "abs" if is_float(dtype):
            return b.intrinsic("fabs", of[0])
        case "abs" if dtype.kind == "i":
            negative = b.op("sub", constant(to, 0), of[0])
            return b.select(b.compare("icmp slt", of[0], negative), negative, of[0])
        case "sqrt":
            return b.intrinsic("sqrt", of[0])
        case "rsqrt":
            return b.op("fdiv", constant(to, 1.0), b.intrinsic("sqrt", of[0]))
        case "not":
            return b.op("xor", of[0], constant(to, -1))
        case "is_finite":
            return b.compare("fcmp olt", b.intrinsic("fabs", of[0]), constant(of[0].type, np.inf))
        case "square" | "integer_pow":
            return b.op("fmul" if is_float(dtype) else "mul", of[0], of[0])
        case "select_n":
            return b.select(*(of[k] for k in (0, 2, 1)))
        case "convert_element_type":
            return _converted(b, of[0], dtype, op.outs[0].dtype, to)
        case "bitcast_convert_type":
            return b.cast("bitcast", of[0], to)
        case "iota":
            if to.startswith("<"):
                places = ", ".join(f"{WORD} {k}" for k in range(LANES))
                index = b.op("add", splat(b, index), Number(wide(WORD), f"<{places}>"))
            return _converted(b, index, np.dtype(np.int64), op.outs[0].dtype, to)
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


def constant(of: str, number: Any) -> Number:
    if of.startswith("<"):
        one = constant(of.strip("<>").removeprefix(f"{LANES} x "), number)
        return Number(of, f"<{', '.join([' '.join(one)] * LANES)}>")
    if of in ("float", "double"):
        return Number(of, f"0x{struct.pack('>d', number).hex()}")
    return Number(of, str(int(number)))


def splat(b: Text, x: Number) -> Number:
    of = wide(x.type)
    first = b.new(of, f"insertelement {of} undef, {x.type} {x.name}, i32 0")
    return b.new(of, f"shufflevector {of} {first.name}, {of} undef, <{LANES} x i32> zeroinitializer")
