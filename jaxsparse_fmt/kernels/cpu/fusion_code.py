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
from llvmlite import ir

from jaxsparse_fmt.kernels.cpu.fusion_operations import (
    LANES,
    SUMS,
    TYPES,
    WORD,
    Atom,
    Known,
    Op,
    Value,
    compute,
    constant,
    is_float,
    splat,
)

BLOCK = 1024  # numbers that are summed before they are added to the totals, since long chains lose digits


def _of_lanes(b: ir.IRBuilder, add: Callable[[Any, Any], Any], x: Any) -> Any:
    """The sum of a vector's numbers, by adding its halves until one number is left."""
    parts = [b.extract_element(x, ir.Constant(ir.IntType(32), k)) for k in range(LANES)]
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


KEPT = 1000  # texts
_texts: dict[Any, str] = {}


def text_of(group: Group) -> str:
    """An LLVM module with the function `NAME`, which takes (XLA's call frame, piece).

    The text is kept for equal groups, since a derivative's solve has most groups of the solve.
    """
    numbers: dict[Value, int] = {}

    def atom(a: Any) -> Any:
        own = (repr(a.number),) if isinstance(a, Known) else (numbers.setdefault(a, len(numbers)), a.shape)
        return *own, a.dtype

    def one(op: Op) -> Any:
        of = one(op.of) if isinstance(op.of, Op) else atom(op.of) if isinstance(op.of, Value) else None
        return op.name, *map(atom, (*op.ins, *op.outs)), of

    stages = tuple(tuple(map(one, stage)) for stage in group.stages)
    key = stages, *(tuple(map(atom, vs)) for vs in (group.ins, group.outs)), group.pieces
    if key not in _texts:
        if len(_texts) >= KEPT:
            _texts.clear()
        _texts[key] = _Code(group).text()
    return _texts[key]


class _Code:
    def __init__(self, group: Group):
        self.group = group
        self.module = ir.Module(NAME)
        function = ir.Function(self.module, ir.FunctionType(WORD, [WORD, WORD]), NAME)
        self.b = ir.IRBuilder(function.append_basic_block())
        self.frame, self.piece = function.args
        self.known: dict[Value, Any] = {}  # scalars
        self.address: dict[Value, Any] = {}

    def text(self) -> str:
        b, group = self.b, self.group
        for of, start in ((group.ins, 9), (group.outs, 14)):  # words of the frame, see `handler.py`
            buffers = self._word(self.frame, start)
            self.address |= {v: self._word(self._word(buffers, k), 3) for k, v in enumerate(of)}
        self.known |= {v: self._load(v, WORD(0), 1) for v in group.ins if v.shape == ()}
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
        first = b.icmp_signed("==", self.piece, WORD(0))
        with b.if_then(first):
            for v in group.outs:
                if v.shape == ():
                    self._store(v, WORD(0), self.known[v])
        b.ret(WORD(0))
        return str(self.module)

    # ------------------------------------------------------------------------------------------------- memory

    def _word(self, of: Any, k: int) -> Any:
        return self.b.load(self.b.inttoptr(self.b.add(of, WORD(8 * k)), WORD.as_pointer()))

    def _pointer(self, v: Value, index: Any, lanes: int) -> Any:
        of = ir.IntType(8) if v.dtype.kind == "b" else TYPES[v.dtype]
        of = of if lanes == 1 else ir.VectorType(of, lanes)
        at = self.b.add(self.address[v], self.b.mul(index, WORD(v.dtype.itemsize)))
        return self.b.inttoptr(at, of.as_pointer())

    def _load(self, v: Value, index: Any, lanes: int) -> Any:
        x = self.b.load(self._pointer(v, index, lanes), align=v.dtype.itemsize)
        return self.b.icmp_unsigned("!=", x, constant(x.type, 0)) if v.dtype.kind == "b" else x

    def _store(self, v: Value, index: Any, x: Any) -> None:
        lanes = LANES if isinstance(x.type, ir.VectorType) else 1
        pointer = self._pointer(v, index, lanes)
        x = self.b.zext(x, pointer.type.pointee) if v.dtype.kind == "b" else x
        self.b.store(x, pointer, align=v.dtype.itemsize)

    # ------------------------------------------------------------------------------------------------- numbers

    def _computed(self, op: Op, known: dict[Value, Any], index: Any, lanes: int) -> Any:
        """The result of an operation for `lanes` places of an array; `lanes` is 0 for a scalar."""
        is_array = op.outs[0].shape != () or op.name in SUMS
        wide = lambda dtype: ir.VectorType(TYPES[dtype], LANES) if is_array and lanes > 1 else TYPES[dtype]  # noqa: E731
        of = [self._operand(a, known, index, lanes if is_array else 0) for a in op.ins]
        return compute(self.b, op, of, wide(op.outs[0].dtype), index)

    def _operand(self, a: Atom, known: dict[Value, Any], index: Any, lanes: int) -> Any:
        if isinstance(a, Known):
            of = TYPES[a.dtype]
            return constant(ir.VectorType(of, LANES) if lanes > 1 else of, np.asarray(a.number, a.dtype).item())
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
        of = TYPES[dtype] if lanes == 1 else ir.VectorType(TYPES[dtype], lanes)
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

        _, (total,) = self._loop(WORD(0), WORD(op.ins[0].size), 1, [self._nothing(op.of, 1)], more)
        self.known[op.outs[0]] = total

    # -------------------------------------------------------------------------------------------------- passes

    def _pass(self, ops: list[Op], written: set[Value]) -> None:
        """One pass over this piece of the arrays of a shape."""
        b, pieces = self.b, self.group.pieces
        size = (ops[0].ins if ops[0].name in SUMS else ops[0].outs)[0].size
        cut = lambda k: b.mul(b.sdiv(b.mul(k, WORD(-(-size // LANES))), WORD(pieces)), WORD(LANES))  # noqa: E731
        begin, end = WORD(0), WORD(size)
        if pieces > 1:
            begin, last = cut(self.piece), cut(b.add(self.piece, WORD(1)))
            end = b.select(b.icmp_signed("<", last, WORD(size)), last, WORD(size))
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
                    term = b.fmul(*of) if op.name == "dot_general" else of[0]
                    out.append(self._add(op)(totals[len(out)], term))
                for v in new:  # after all loads, since XLA may give a result the memory of an operand
                    self._store(v, index, known[v])
                return out

            return body

        wide = [self._nothing(op, LANES) for op in sums]
        at = begin
        if size >= LANES and wide:

            def block(index: Any, totals: list[Any]) -> list[Any]:
                last = b.add(index, WORD(BLOCK))
                last = b.select(b.icmp_signed("<", last, end), last, end)
                _, found = self._loop(index, last, LANES, wide, step(LANES))
                return [self._add(op)(x, y) for op, x, y in zip(sums, totals, found, strict=True)]

            # The last block may be short: all whole steps of LANES up to `whole` are in some block.
            whole = b.add(begin, b.mul(b.sdiv(b.sub(end, begin), WORD(LANES)), WORD(LANES)))
            _, found = self._loop(begin, whole, 1, wide, block, by=BLOCK)
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
        b, before = self.b, self.b.block
        head, body, after = (b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        index, sums = b.phi(WORD), [b.phi(t.type) for t in totals]
        b.cbranch(b.icmp_signed("<=", b.add(index, WORD(lanes)), end), body, after)
        b.position_at_end(body)
        found = step(index, list(sums))
        following = b.add(index, WORD(by or lanes))
        for phi, first, new in zip((index, *sums), (begin, *totals), (following, *found), strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(new, b.block)
        b.branch(head)
        b.position_at_end(after)
        return index, list(sums)
