"""XLA's C interface for foreign functions, in Numba, by which XLA calls the kernels of `numba_kernels.py`.

XLA passes a call frame to one `handler`. A frame and all that it points to are structures of 8-byte words, laid out in
xla/ffi/api/c_api.h, which jaxlib ships and keeps stable: versions only add fields at the end.

    frame       0 size, 1 extensions, 2 api, 3 context, 4 stage, 5.. arguments, 10.. results, 15.. attributes
    group       +2 how many, +4 pointers to them; of attributes +5, since they also have names
    buffer      3 the data
    api         4 its version, 6 Error_Create, 8 Error_Destroy, 17 ThreadPool_Schedule, 18 ThreadPool_NumThreads

The one attribute is `sizes`, int64, the numbers that `abi.SIZES` lists: among them the number of the kernel, so that
one handler serves all, and the number of pieces of the work. XLA's own threads and the caller compute the pieces: each
takes the next that is left, and the caller never waits for a thread that has not begun. So any number of devices may
call at the same time, and no second pool of threads competes with XLA's. A piece has the same bits on any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

from jaxsparse_fmt.kernels.cpu.abi import COMPILE, INTERNAL, MESSAGE, METADATA, SIZES, TABLE
from jaxsparse_fmt.kernels.cpu.numba_kernels import compiled

intrinsic: Any = numba_intrinsic  # whose first parameter no caller passes

KERNEL, PIECES = SIZES.index("kernel"), SIZES.index("pieces")
EXECUTE = 3  # a stage


# ------------------------------------------------------------------------------------------------------- machine words


@intrinsic
def _pointer(typingctx, address):
    del typingctx, address

    def codegen(context, builder, signature, args):
        del context, signature
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic
def _add_to(typingctx, address, value):
    """Adds to the word at `address` atomically; returns its value before."""
    del typingctx, address, value

    def codegen(context, builder, signature, args):
        del context, signature
        word = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", word, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _call_one(typingctx, function, argument):
    """function(argument), of 8-byte words."""
    del typingctx, function, argument

    def codegen(context, builder, signature, args):
        del context, signature
        word = ir.IntType(64)
        return builder.call(builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _call_kernel(typingctx, function, frame, piece):
    del typingctx, function, frame, piece

    def codegen(context, builder, signature, args):
        del signature
        word = ir.IntType(64)
        kernel = ir.FunctionType(ir.VoidType(), [word, word]).as_pointer()
        builder.call(builder.inttoptr(args[0], kernel), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _table(typingctx):
    """The address of the table of kernels."""
    del typingctx

    def codegen(context, builder, signature, args):
        del context, signature, args
        word = ir.IntType(64)
        symbol = builder.module.globals.get(TABLE) or ir.GlobalVariable(builder.module, word, TABLE)
        return builder.ptrtoint(symbol, word)

    return types.int64(), codegen


_malloc = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))
_yield = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


@intrinsic
def _load(typingctx, address):
    del typingctx, address

    def codegen(context, builder, signature, args):
        del context, signature
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), codegen


@intrinsic
def _store(typingctx, address, value):
    del typingctx, address, value

    def codegen(context, builder, signature, args):
        del signature
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@compiled
def _word(address, k):
    return _load(address + 8 * k)


@compiled
def _set_words(address, a, b, c, d, e):
    _store(address, a)
    _store(address + 8, b)
    _store(address + 16, c)
    _store(address + 24, d)
    _store(address + 32, e)


@compiled
def _data(frame, group, k):
    """The address of the data of argument (group 5) or result (group 10) k."""
    return _word(_word(_word(frame, group + 4), k), 3)


@compiled
def _sizes(frame):
    return _word(_word(_word(frame, 20), 0), 2)  # an array is its dtype, its length and its data


# --------------------------------------------------------------------------------------------------- pieces and threads

# The words of a job: the frame, the kernel, the next piece, how many pieces are done, how many there are, and how many
# threads still hold the job. The last of those threads frees it, perhaps long after the call.
FRAME, FUNCTION, NEXT, DONE, COUNT, HOLDERS, JOB_WORDS = range(7)


@compiled
def _take_pieces(job):
    """Computes piece after piece, until none is left."""
    while True:
        piece = _add_to(job + 8 * NEXT, 1)
        if piece >= _word(job, COUNT):
            break
        _call_kernel(_word(job, FUNCTION), _word(job, FRAME), piece)
        _add_to(job + 8 * DONE, 1)


@compiled
def _leave(job):
    if _add_to(job + 8 * HOLDERS, -1) == 1:
        _free(job)


@compiled
def _failed(api, error, scratch):
    """Whether a function of XLA returned an error; frees the error."""
    if error != 0:
        _set_words(scratch, 24, 0, error, 0, 0)
        _call_one(_word(api, 8), scratch)
    return error != 0


@compiled
def _helpers(api, context, scratch):
    """The number of XLA's threads beside the caller's."""
    if _word(api, 0) < 8 * 19:
        return 0
    _set_words(scratch, 32, 0, context, scratch + 32, 0)
    error = _call_one(_word(api, 18), scratch)
    return 0 if _failed(api, error, scratch) else _word(scratch, 4) - 1


@compiled
def _ran_on_threads(frame, function, pieces, scratch):
    """Runs the kernel on all pieces with XLA's threads; False if there are none, and then nothing ran."""
    api, context = _word(frame, 2), _word(frame, 3)
    helpers = min(_helpers(api, context, scratch), pieces - 1)
    if helpers <= 0:
        return False
    job = _malloc(8 * JOB_WORDS)
    if job == 0:
        return False
    _set_words(job, frame, function, 0, 0, pieces)
    _store(job + 8 * HOLDERS, helpers + 1)
    for _ in range(helpers):
        _set_words(scratch, 40, 0, context, _word(_table(), 0), job)
        if _failed(api, _call_one(_word(api, 17), scratch), scratch):
            _leave(job)
    _take_pieces(job)
    while _add_to(job + 8 * DONE, 0) < pieces:
        _yield()
    _leave(job)
    return True


@compiled
def _execute(frame):
    """Runs the kernel that the frame names, and compiles it if only another process has; returns 0 or an error."""
    sizes, api, scratch = _sizes(frame), _word(frame, 2), _malloc(40)
    pieces, function, error = _word(sizes, PIECES), _word(_table(), _word(sizes, KERNEL)), 0
    if function == 0:
        function = _call_one(_word(_table(), COMPILE), _word(sizes, KERNEL))
    if function == 0:
        _set_words(scratch, 32, 0, _word(_table(), MESSAGE), INTERNAL, 0)
        error = _call_one(_word(api, 6), scratch)
    elif pieces == 1 or scratch == 0 or not _ran_on_threads(frame, function, pieces, scratch):
        for piece in range(pieces):
            _call_kernel(function, frame, piece)
    _free(scratch)
    return error


def task() -> Callable:
    """The function that a thread of XLA runs: (job) -> nothing."""

    def task(job):
        _take_pieces(job)
        _leave(job)

    return task


def handler() -> Callable:
    """The function that XLA calls: (frame) -> error, or 0. To a query for metadata it answers XLA's own version."""

    def handler(frame):
        extension = _word(frame, 1)
        if extension != 0 and _word(extension, 1) & 0xFFFFFFFF == METADATA:
            _store(_word(extension, 3) + 24, _word(_word(frame, 2), 4))
        elif _word(frame, 4) & 0xFFFFFFFF == EXECUTE:
            return _execute(frame)
        return 0

    return handler
