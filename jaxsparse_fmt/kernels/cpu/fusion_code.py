"""LLVM instructions for elementwise operations and sums of JAX: one function for each group.

`fusion.py` chooses the groups. A function compiles in a few milliseconds, where XLA takes 20 to 28 ms for every few
operations.

A group is a list of stages. A stage computes its scalars first, then passes once over arrays of each shape: it loads
what it needs, eight numbers at a time, and leaves the sums to the next stage. The order of a sum depends only on the
length of its array and the number of pieces: eight partial sums for each BLOCK, then the other numbers one by one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt.kernels.cpu.fusion_operations import (
    LANES,
    SUMS,
    TYPES,
    WORD,
    Atom,
    Known,
    Number,
    Op,
    Text,
    Value,
    compute,
    constant,
    is_float,
    splat,
    wide,
    word,
)

BLOCK = 1024  # numbers that are summed before they are added to the totals, since long chains lose digits


def _of_lanes(b: Text, add: Callable[[Any, Any], Any], x: Number) -> Number:
    """The sum of a vector's numbers, by adding its halves until one number is left."""
    of = x.type.strip("<>").removeprefix(f"{LANES} x ")
    parts = [b.new(of, f"extractelement {x.type} {x.name}, i32 {k}") for k in range(LANES)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [add(u, v) for u, v in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


NAME = "group"


class Group(NamedTuple):
    """What one function computes: operations by stage, and the arrays that it reads and writes."""

    stages: list[list[Op]]
    ins: list[Value]
    outs: list[Value]
    pieces: int


def text_of(group: Group) -> str:
    """An LLVM module with the function `NAME`, which takes (XLA's call frame, piece)."""
    return _Code(group).text()


class _Code:
    def __init__(self, group: Group):
        self.group = group
        self.b = Text(f"{WORD} @{NAME}({WORD} %frame, {WORD} %piece)")
        self.piece = Number(WORD, "%piece")
        self.known: dict[Value, Any] = {}  # scalars
        self.pointer: dict[Value, Number] = {}

    def text(self) -> str:
        b, group = self.b, self.group
        frame = b.cast("inttoptr", Number(WORD, "%frame"), f"{WORD}*")
        for of, start in ((group.ins, 9), (group.outs, 14)):  # words of the frame, see `handler.py`
            buffers = b.cast("inttoptr", b.load(b.at(frame, word(start))), f"{WORD}**")
            for k, v in enumerate(of):
                data = b.load(b.at(b.load(b.at(buffers, word(k))), word(3)))
                self.pointer[v] = b.cast("inttoptr", data, f"{'i8' if v.dtype.kind == 'b' else TYPES[v.dtype]}*")
        self.known |= {v: self._load(v, word(0), 1) for v in group.ins if v.shape == ()}
        written = set(group.outs)
        for stage in group.stages:
            for op in stage:
                if op.name == "total":
                    self._total(op)
                elif op.outs[0].shape == () and op.name not in SUMS:
                    self.known[op.outs[0]] = self._computed(op, self.known, None, 0)
            passes: dict[tuple[int, ...], list[Op]] = {}
            for op in stage:
                shape = (op.ins if op.name in SUMS else op.outs)[0].shape
                if op.name != "total" and shape != ():
                    passes.setdefault(shape, []).append(op)
            for ops in passes.values():
                self._pass(ops, written)
        b.branch(b.compare("icmp eq", self.piece, word(0)), "first", "end")
        b.begin("first")
        for v in group.outs:
            if v.shape == ():
                self._store(v, word(0), self.known[v])
        b.jump("end")
        b.begin("end")
        b.lines.append(f"ret {WORD} 0")
        return str(b)

    # ------------------------------------------------------------------------------------------------- memory

    def _at(self, v: Value, index: Number, lanes: int) -> Number:
        pointer = self.pointer[v]
        pointer = pointer if index.name == "0" else self.b.at(pointer, index)
        return pointer if lanes == 1 else self.b.cast("bitcast", pointer, f"{wide(pointer.type.removesuffix('*'))}*")

    def _load(self, v: Value, index: Number, lanes: int) -> Number:
        x = self.b.load(self._at(v, index, lanes), v.dtype.itemsize)
        return self.b.compare("icmp ne", x, constant(x.type, 0)) if v.dtype.kind == "b" else x

    def _store(self, v: Value, index: Number, x: Number) -> None:
        pointer = self._at(v, index, LANES if x.type.startswith("<") else 1)
        x = self.b.cast("zext", x, pointer.type.removesuffix("*")) if v.dtype.kind == "b" else x
        self.b.store(x, pointer, v.dtype.itemsize)

    # ------------------------------------------------------------------------------------------------- numbers

    def _computed(self, op: Op, known: dict[Value, Any], index: Any, lanes: int) -> Any:
        """The result of an operation for `lanes` places of an array; `lanes` is 0 for a scalar."""
        is_array = op.outs[0].shape != () or op.name in SUMS
        of = [self._operand(a, known, index, lanes if is_array else 0) for a in op.ins]
        to = TYPES[op.outs[0].dtype]
        return compute(self.b, op, of, wide(to) if is_array and lanes > 1 else to, index)

    def _operand(self, a: Atom, known: dict[Value, Any], index: Any, lanes: int) -> Any:
        if isinstance(a, Known):
            of = TYPES[a.dtype]
            return constant(wide(of) if lanes > 1 else of, np.asarray(a.number, a.dtype).item())
        if a not in known and a.shape == ():
            known[a] = splat(self.b, self.known[a]) if lanes > 1 else self.known[a]
        if a not in known:
            known[a] = self._load(a, index, lanes)
        return known[a]

    def _add(self, op: Op) -> Callable[[Any, Any], Any]:
        dtype, one = op.outs[0].dtype, op._replace(name=SUMS[op.name], ins=op.outs * 2)
        return lambda x, y: compute(self.b, one, (x, y), TYPES[dtype], None)

    def _nothing(self, op: Op, lanes: int) -> Any:
        """The neutral element of a sum."""
        dtype = op.outs[0].dtype
        of = TYPES[dtype] if lanes == 1 else wide(TYPES[dtype])
        number: Any = 0
        if op.name in ("reduce_max", "reduce_min"):
            sign = -1 if op.name == "reduce_max" else 1
            limits = None if is_float(dtype) else np.iinfo(dtype)
            number = sign * np.inf if limits is None else limits.min if sign < 0 else limits.max
        return constant(of, int(op.name == "reduce_and") if dtype.kind == "b" else number)

    def _total(self, op: Op) -> None:
        """Adds up the parts that all pieces wrote."""
        add = self._add(op.of)

        def more(k: Any, total: list[Any]) -> list[Any]:
            return [add(total[0], self._load(op.ins[0], k, 1))]

        _, (total,) = self._loop(word(0), word(op.ins[0].size), 1, [self._nothing(op.of, 1)], more)
        self.known[op.outs[0]] = total

    # -------------------------------------------------------------------------------------------------- passes

    def _pass(self, ops: list[Op], written: set[Value]) -> None:
        """One pass over this piece of the arrays of a shape."""
        b, pieces = self.b, self.group.pieces
        size = (ops[0].ins if ops[0].name in SUMS else ops[0].outs)[0].size
        begin, end = word(0), word(size)
        if pieces > 1:
            begin, last = self._cut(self.piece, size), self._cut(b.op("add", self.piece, word(1)), size)
            end = b.select(b.compare("icmp slt", last, word(size)), last, word(size))
        sums = [op for op in ops if op.name in SUMS]

        def step(lanes: int) -> Callable[[Any, list[Any]], list[Any]]:
            def body(index: Any, totals: list[Any]) -> list[Any]:
                known: dict[Value, Any] = {}
                out, new = [], []
                for op in ops:
                    if op.name not in SUMS:
                        known[op.outs[0]] = self._computed(op, known, index, lanes)
                        if op.outs[0] in written:
                            new.append(op.outs[0])
                        continue
                    of = [self._operand(a, known, index, lanes) for a in op.ins]
                    term = b.op("fmul", *of) if op.name == "dot_general" else of[0]
                    out.append(self._add(op)(totals[len(out)], term))
                for v in new:  # after all loads, since XLA may give a result the memory of an operand
                    self._store(v, index, known[v])
                return out

            return body

        nothing = [self._nothing(op, LANES) for op in sums]
        at = begin
        if size >= LANES and sums:

            def block(index: Any, totals: list[Any]) -> list[Any]:
                last = b.op("add", index, word(BLOCK))
                last = b.select(b.compare("icmp slt", last, end), last, end)
                _, found = self._loop(index, last, LANES, nothing, step(LANES))
                return [self._add(op)(x, y) for op, x, y in zip(sums, totals, found, strict=True)]

            # The last block may be short: all whole steps of LANES up to `whole` are in some block.
            steps = b.op("sdiv", b.op("sub", end, begin), word(LANES))
            whole = b.op("add", begin, b.op("mul", steps, word(LANES)))
            _, found = self._loop(begin, whole, 1, nothing, block, by=BLOCK)
            at = whole
            narrow = [_of_lanes(b, self._add(op), x) for op, x in zip(sums, found, strict=True)]
        else:
            if size >= LANES:
                at, _ = self._loop(begin, end, LANES, [], step(LANES))
            narrow = [self._nothing(op, 1) for op in sums]
        if size % LANES or size < LANES:
            _, narrow = self._loop(at, end, 1, narrow, step(1))
        for op, x in zip(sums, narrow, strict=True):
            if op.of is None:
                self.known[op.outs[0]] = x
            else:
                self._store(op.of, self.piece, x)

    def _loop(
        self, begin: Any, end: Any, lanes: int, totals: list[Any], step: Callable[..., list[Any]], by: int | None = None
    ) -> tuple[Any, list[Any]]:
        """Steps from begin on while `lanes` more places lie before the end; returns (the next place, the totals)."""
        b, before, k = self.b, self.b.block, len(self.b.lines)
        head, body, after = f"head{k}", f"body{k}", f"after{k}"
        b.jump(head)
        b.begin(head)
        phis = [b.phi(x, before) for x in (begin, *totals)]
        index, *sums = (x for x, _ in phis)
        b.branch(b.compare("icmp sle", b.op("add", index, word(lanes)), end), body, after)
        b.begin(body)
        found = step(index, sums)
        for (_, place), x in zip(phis, (b.op("add", index, word(by or lanes)), *found), strict=True):
            b.phi_from(place, x)
        b.jump(head)
        b.begin(after)
        return index, sums

    def _cut(self, piece: Number, size: int) -> Number:
        """The place of an array at which a piece begins."""
        b, steps = self.b, word(-(-size // LANES))
        return b.op("mul", b.op("sdiv", b.op("mul", piece, steps), word(self.group.pieces)), word(LANES))
