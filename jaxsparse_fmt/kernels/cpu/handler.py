"""The function by which XLA calls native code, written in LLVM instructions, which compile in milliseconds.

XLA passes a call frame. A frame and all that it points to are structures of 8-byte words, laid out in
xla/ffi/api/c_api.h, which jaxlib ships: versions only add fields at the end.

    frame       0 size, 1 extensions, 2 api, 3 context, 4 stage, 5.. arguments, 10.. results, 15.. attributes
    group       +0 size, +2 how many, +4 pointers to them; of attributes +5, since they also have names
    buffer      2 the dtype, 3 the data, 4 how many axes, 5 their sizes
    api         0 size, 6 Error_Create, 8 Error_Destroy, 17 ThreadPool_Schedule, 18 ThreadPool_NumThreads

When XLA registers a handler, it asks for the version of the interface for which the handler was written, and refuses
one that it no longer supports. Where the structures have other sizes, a handler leaves the version at 0.0, which XLA
never supports.

The only attribute is `sizes`, the int64 words that `abi.SIZES` lists. XLA's threads and the caller compute the pieces
of the work: each takes the next piece that is left, and the caller never waits for a thread that has not begun. So any
number of devices may call at the same time.

A kernel is a C function of 8 words: the data of a, b and the result, of one member of the batch; those of columns, ptr
and pattern; the sizes; and the piece.

No Python runs between XLA's call and the address of a kernel: Python could raise KeyboardInterrupt there, which a C
caller loses. So a kernel must be in the table when a program calls it; an empty place is an error in words.

XLA takes fresh memory for a large result, and the first write to each of its pages takes longer than a kernel's work on
the page. So the handler asks Linux for huge pages.
"""

import contextlib
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir

from jaxsparse_fmt.kernels.cpu import abi
from jaxsparse_fmt.kernels.cpu.abi import OPERANDS, SIZES, TARGET

WORD = ir.IntType(64)
HALF = ir.IntType(32)
YIELD = "sched_yield"
# The words of a job: the next piece, the address of how many are done, how many there are, how many threads still hold
# the job (the last of them frees it, perhaps long after the call), and the frame.
NEXT, DONE, COUNT, HOLDERS, FRAME, JOB_WORDS = range(6)
SCRATCH = 7  # words
GUARDED = "guarded"
NAN = 0x7FF8 << 48  # the bits of a float64
HUGE = 4 * 2**20  # bytes; a result of at least this size gets huge pages

UNMADE = (
    "a program that another process has compiled calls a native kernel that this process lacks; compile the program's "
    'function here once, by jax.jit(f).lower(...).compile(), or for all processes under use_backend("xla")'
)
BEYOND = (
    "the pointers of a sparse matrix lead beyond its entries, as after jax.tree.map over all its arrays; scale it by "
    "2 * A, and give it other numbers by A.with_data(data)"
)
NO_MEMORY = "no memory for a call of a native kernel"


def module(table: int) -> ir.Module:
    """A module with the handler, the function `abi.TARGET`: (frame) -> an error of XLA, or 0.

    Args:
      table: the address of the addresses of the kernels, 0 for those that are not compiled.
    """
    made = ir.Module(TARGET)
    called = [("malloc", 1), ("free", 1), (YIELD, 0)] + [("madvise", 3)] * (sys.platform == "linux")
    outside = {name: _function(made, name, n) for name, n in called}

    one = _Code(made, "one", 2)  # computes a piece: (frame, piece)
    kernel = one.word(one.add(WORD(table), one.mul(one.size("kernel"), WORD(8))))
    one.call_address(kernel, *_kernel_arguments(one, one.arguments[1]))
    one.ret(WORD(0))

    work = _Code(made, "work", 1)  # (job): computes piece after piece until none is left, then lets go of the job
    job = work.arguments[0]
    with work.loop() as leave_if:
        piece = work.add_to(job, NEXT, 1)
        leave_if(work.icmp_signed(">=", piece, work.word(job, COUNT)))
        work.call(one.function, [work.word(job, FRAME), piece])
        work.add_to(work.word(job, DONE), 0, 1)
    with work.if_then(work.icmp_signed("==", work.add_to(job, HOLDERS, -1), WORD(1))):
        work.call(outside["free"], [job])
    work.ret(WORD(0))

    code = _Code(made, TARGET, 1)
    frame, scratch = code.arguments[0], code.ptrtoint(code.alloca(WORD, SCRATCH), WORD)
    api, context, size = code.word(frame, 2), code.word(frame, 3), code.size
    _answer_versions(code)
    with code.if_then(code.icmp_signed("!=", code.low(code.word(frame, 4)), WORD(abi.EXECUTE))):
        code.ret(WORD(0))
    kernel = code.word(code.add(WORD(table), code.mul(size("kernel"), WORD(8))))
    with code.if_then(code.icmp_signed("==", kernel, WORD(0))):
        _refuse(code, scratch, UNMADE, abi.MISSING)
    with code.if_then(code.icmp_signed(">=", size("most"), WORD(0))):
        last = _last_pointer(code, scratch)
        with code.if_then(code.icmp_unsigned(">", last, size("most"))):
            _refuse(code, scratch, BEYOND, abi.INVALID)
    pieces = code.mul(size("batch"), size("pieces"))
    if "madvise" in outside:
        of_pieces = code.mul(pieces, size("piece_bytes"))
        _take_huge_pages(code, outside["madvise"], code.add(code.mul(size("batch"), size("out_bytes")), of_pieces))
    with code.if_then(code.icmp_signed("==", pieces, WORD(1))):
        code.call(one.function, [frame, WORD(0)])
        code.ret(WORD(0))
    job = code.call(outside["malloc"], [WORD(8 * JOB_WORDS)])
    with code.if_then(code.icmp_signed("==", job, WORD(0))):
        _refuse(code, scratch, NO_MEMORY, abi.EXHAUSTED)
    code.put(scratch, 32, 0, context, code.address(scratch, 4), 1)
    _fails(code, api, code.call_address(code.word(api, 18), scratch), scratch)
    helpers, others = code.sub(code.word(scratch, 4), WORD(1)), code.sub(pieces, WORD(1))
    helpers = code.select(code.icmp_signed("<", helpers, others), helpers, others)
    done = code.address(scratch, 6)
    code.put(job, 0, done, pieces, code.add(helpers, WORD(1)), frame)
    code.put(code.address(scratch, 5), helpers, 0)
    with code.loop() as leave_if:  # wakes one thread at a time
        left = code.word(scratch, 5)
        leave_if(code.icmp_signed("<=", left, WORD(0)))
        code.put(code.address(scratch, 5), code.sub(left, WORD(1)))
        code.put(scratch, 40, 0, context, code.ptrtoint(work.function, WORD), job)
        with code.if_then(_fails(code, api, code.call_address(code.word(api, 17), scratch), scratch)):
            code.add_to(job, HOLDERS, -1)
    code.call(work.function, [job])
    with code.loop() as leave_if:
        leave_if(code.icmp_signed(">=", code.add_to(done, 0, 0), pieces))
        code.call(outside[YIELD], [])
    code.ret(WORD(0))
    return made


def guarded(address: int) -> ir.Module:
    """A module with the handler GUARDED, which calls another one and answers its failure with a result of NaN.

    Args:
      address: of a handler, registered for this version of the interface, whose result is one array in float64.
    """
    made = ir.Module(GUARDED)
    code = _Code(made, GUARDED, 1)
    frame, scratch = code.arguments[0], code.ptrtoint(code.alloca(WORD, SCRATCH), WORD)
    error = code.call_address(WORD(address), frame)
    with code.if_then(code.icmp_signed("!=", code.low(code.word(frame, 4)), WORD(abi.EXECUTE))):
        code.ret(error)
    with code.if_then(_fails(code, code.word(frame, 2), error, scratch)):
        buffer = code.word(code.word(frame, 14))
        rank, sizes = code.word(buffer, 4), code.word(buffer, 5)
        code.put(scratch, 0, 1)  # the axes that are counted, and the numbers they make
        with code.loop() as leave_if:
            axis, count = code.word(scratch), code.word(scratch, 1)
            leave_if(code.icmp_signed(">=", axis, rank))
            size = code.word(code.add(sizes, code.mul(axis, WORD(8))))
            code.put(scratch, code.add(axis, WORD(1)), code.mul(count, size))
        with code.loop() as leave_if:
            left = code.word(scratch, 1)
            leave_if(code.icmp_signed("<=", left, WORD(0)))
            left = code.sub(left, WORD(1))
            code.put(code.address(scratch, 1), left)
            code.put(code.add(code.result(), code.mul(left, WORD(8))), NAN)
    code.ret(WORD(0))
    return made


def _answer_versions(code: "_Code") -> None:
    """Returns from the handler if XLA asks for its version."""
    frame = code.arguments[0]
    extension, api = code.word(frame, 1), code.word(frame, 2)
    given = code.if_then(code.icmp_signed("!=", extension, WORD(0)))
    with given, code.if_then(code.icmp_signed("==", code.low(code.word(extension, 1)), WORD(abi.METADATA))):
        version, (major, minor) = code.address(code.word(extension, 3), 3), abi.API_VERSION
        code.put(version, 0)
        readable = code.icmp_unsigned(">=", code.word(frame), WORD(abi.FRAME_BYTES))
        with code.if_then(code.and_(readable, code.icmp_signed("!=", api, WORD(0)))):
            known = code.icmp_unsigned(">=", code.word(api), WORD(abi.API_BYTES))
            for k, size in ((5, abi.ARGUMENTS_BYTES), (10, abi.RESULTS_BYTES), (15, abi.ATTRIBUTES_BYTES)):
                known = code.and_(known, code.icmp_signed("==", code.word(frame, k), WORD(size)))
            code.put(version, code.select(known, WORD(major + (minor << 32)), WORD(0)))
        code.ret(WORD(0))


def _refuse(code: "_Code", scratch: Any, message: str, kind: int) -> None:
    """Returns an error of XLA."""
    code.put(scratch, 32, 0, code.text(message), kind)
    code.ret(code.call_address(code.word(code.word(code.arguments[0], 2), 6), scratch))


def _last_pointer(code: "_Code", scratch: Any) -> Any:
    """The last of the pointers, int32 or int64."""
    buffer = code.operand("ptr")
    data, index = code.word(buffer, 3), code.sub(code.size("n_ptr"), WORD(1))
    with code.if_else(code.icmp_signed("==", code.low(code.word(buffer, 2)), WORD(abi.INT64))) as (wide, narrow):
        with wide:
            code.put(scratch, code.word(code.add(data, code.mul(index, WORD(8)))))
        with narrow:
            place = code.inttoptr(code.add(data, code.mul(index, WORD(4))), HALF.as_pointer())
            code.put(scratch, code.sext(code.load(place), WORD))
    return code.word(scratch)


class _Code(ir.IRBuilder):
    """Writes a function of words; an address is a word too. Some read the call's frame, their first argument."""

    def __init__(self, module: ir.Module, name: str, n_arguments: int):
        function = _function(module, name, n_arguments)
        super().__init__(function.append_basic_block())
        self.arguments = list(function.args)

    def address(self, start: Any, k: int) -> Any:
        """The address of the k-th word from an address on."""
        return self.add(start, WORD(8 * k))

    def word(self, start: Any, k: int = 0) -> Any:
        return self.load(self.inttoptr(self.address(start, k), WORD.as_pointer()))

    def operand(self, name: str) -> Any:
        """The buffer of an operand, by its name in `abi.OPERANDS`."""
        return self.word(self.word(self.arguments[0], 9), OPERANDS.index(name))

    def result(self) -> Any:
        """The data of the result."""
        return self.word(self.word(self.word(self.arguments[0], 14)), 3)

    def sizes(self) -> Any:
        """The numbers of the call; the attribute, an array, is its dtype, its length and its data."""
        return self.word(self.word(self.word(self.arguments[0], 20)), 2)

    def size(self, name: str) -> Any:
        """One of the numbers of the call, by its name in `abi.SIZES`."""
        return self.word(self.sizes(), SIZES.index(name))

    def low(self, word: Any) -> Any:
        """The lower four bytes of a word, an int of C."""
        return self.and_(word, WORD(0xFFFFFFFF))

    def put(self, start: Any, *words: Any) -> None:
        """Stores words from an address on."""
        for k, word in enumerate(words):
            word = WORD(word) if isinstance(word, int) else word
            self.store(word, self.inttoptr(self.address(start, k), WORD.as_pointer()))

    def add_to(self, start: Any, k: int, value: int) -> Any:
        """Adds to a word atomically; returns the word before."""
        return self.atomic_rmw("add", self.inttoptr(self.address(start, k), WORD.as_pointer()), WORD(value), "seq_cst")

    def text(self, text: str) -> Any:
        """The address of a text of the module."""
        content = bytearray(text.encode() + b"\0")
        kind = ir.ArrayType(ir.IntType(8), len(content))
        made = ir.GlobalVariable(self.module, kind, self.module.get_unique_name("text"))
        made.initializer, made.linkage = ir.Constant(kind, content), "internal"
        return self.ptrtoint(made, WORD)

    def call_address(self, function: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD] * len(arguments))
        return self.call(self.inttoptr(function, kind.as_pointer()), arguments)

    @contextlib.contextmanager
    def loop(self) -> Iterator[Callable[[Any], None]]:
        """Repeats the block of the `with` statement, which gets a function that leaves the loop if its word is true."""
        again, after = self.append_basic_block(), self.append_basic_block()
        self.branch(again)
        self.position_at_end(again)

        def leave_if(holds: Any) -> None:
            rest = self.append_basic_block()
            self.cbranch(holds, after, rest)
            self.position_at_end(rest)

        yield leave_if
        self.branch(again)
        self.position_at_end(after)


def _function(module: ir.Module, name: str, n_arguments: int) -> ir.Function:
    return ir.Function(module, ir.FunctionType(WORD, [WORD] * n_arguments), name)


def _fails(code: _Code, api: Any, error: Any, scratch: Any) -> Any:
    """Whether a function of XLA returned an error, which is freed."""
    failed = code.icmp_signed("!=", error, WORD(0))
    with code.if_then(failed):
        code.put(scratch, 24, 0, error)
        code.call_address(code.word(api, 8), scratch)
    return failed


def _take_huge_pages(code: _Code, madvise: Any, n_bytes: Any) -> None:
    """Asks for huge pages for the result, if it is large."""
    with code.if_then(code.icmp_signed(">=", n_bytes, WORD(HUGE))):
        page, data = mmap.PAGESIZE, code.result()
        first = code.and_(code.add(data, WORD(page - 1)), WORD(-page))
        code.call(madvise, [first, code.and_(code.sub(code.add(data, n_bytes), first), WORD(-page)), WORD(14)])


def _kernel_arguments(code: _Code, piece: Any) -> list[Any]:
    """The arguments of a kernel for one of the pieces of all members of the batch."""
    member, part = code.sdiv(piece, code.size("pieces")), code.srem(piece, code.size("pieces"))
    a, b, *index = (code.word(code.operand(name), 3) for name in OPERANDS)
    a, b = (code.add(x, code.mul(member, code.size(name))) for x, name in ((a, "a_bytes"), (b, "b_bytes")))
    out = code.add(code.result(), code.mul(member, code.size("out_bytes")))
    return [a, b, code.add(out, code.mul(piece, code.size("piece_bytes"))), *index, code.sizes(), part]
