"""How XLA calls the kernels of `native.py`: its C interface for foreign functions, read from Numba.

XLA hands one handler (`handler`) a call frame. A frame and all that it points to are structures of 8-byte words, laid
out in xla/ffi/api/c_api.h, which jaxlib ships and keeps stable: versions only add fields at the end.

    frame       0 size, 1 extensions, 2 api, 3 context, 4 stage, 5.. arguments, 10.. results, 15.. attributes
    group       +2 how many, +4 pointers to them; of attributes +5, since they also have names
    buffer      3 the data
    api         4 its version, 6 Error_Create, 8 Error_Destroy, 17 ThreadPool_Schedule, 18 ThreadPool_NumThreads

The one attribute is `sizes`, int64: what `ffi.SIZES` lists. It names the kernel, so one handler serves all, and says
into how many pieces the work is cut. XLA's own threads share the pieces out: each takes the next that is left, the
caller too, and the caller never waits for a thread that has not begun. So any number of devices may call at the same
time, no pool of threads comes on top of XLA's, and whoever computes a piece, it gives the same bits.

Compiled code is kept on disk by Numba. Its key holds the constants of the closures below, of which `stamp` stands for
the sources: each closure names it, or what is kept of another version would run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

from jaxsparse_fmt.kernels import native
from jaxsparse_fmt.kernels.ffi import MESSAGE, SIZES, TABLE
from jaxsparse_fmt.kernels.native import compiled

intrinsic: Any = numba_intrinsic  # whose first parameter no caller hands over
carray: Any = numba.carray  # pyright: ignore[reportPrivateImportUsage]

KERNEL, PIECES, BATCH, N_A, N_B, N_OUT, N_ROWS, N_COLS, P, LANES, N_INDEX, N_PTR, N_PERM, MASKED = range(len(SIZES))
METADATA, EXECUTE, FAILED_PRECONDITION = 1, 3, 9  # a type of extension, a stage, a kind of error


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
    """Adds to the word at `address`, whatever other threads do; what it was before."""
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
    """Where the data of argument or result k lie: group 5 or 10."""
    return _word(_word(_word(frame, group + 4), k), 3)


@compiled
def _sizes(frame):
    return _word(_word(_word(frame, 20), 0), 2)  # an array is its dtype, its length and its data


# --------------------------------------------------------------------------------------------------- pieces and threads

# A job is what threads share out: its words are the frame, the kernel, the next piece, how many are done, how many
# there are, and how many threads still know of it. The last of them frees it, which may be long after the call.
FRAME, FUNCTION, NEXT, DONE, COUNT, KNOWN, JOB_WORDS = range(7)


@compiled
def _share(job):
    """Takes piece after piece, until none is left."""
    while True:
        piece = _add_to(job + 8 * NEXT, 1)
        if piece >= _word(job, COUNT):
            break
        _call_kernel(_word(job, FUNCTION), _word(job, FRAME), piece)
        _add_to(job + 8 * DONE, 1)


@compiled
def _leave(job):
    if _add_to(job + 8 * KNOWN, -1) == 1:
        _free(job)


@compiled
def _failed(api, error, scratch):
    """Whether a function of XLA's returned an error, which is freed."""
    if error != 0:
        _set_words(scratch, 24, 0, error, 0, 0)
        _call_one(_word(api, 8), scratch)
    return error != 0


@compiled
def _helpers(api, context, scratch):
    """How many threads XLA has beside the one that calls."""
    if _word(api, 0) < 8 * 19:
        return 0
    _set_words(scratch, 32, 0, context, scratch + 32, 0)
    error = _call_one(_word(api, 18), scratch)
    return 0 if _failed(api, error, scratch) else _word(scratch, 4) - 1


@compiled
def _shared_out(frame, function, pieces, scratch):
    """Runs the kernel on all pieces, with XLA's threads; says whether it has any."""
    api, context = _word(frame, 2), _word(frame, 3)
    helpers = min(_helpers(api, context, scratch), pieces - 1)
    if helpers <= 0:
        return False
    job = _malloc(8 * JOB_WORDS)
    if job == 0:
        return False
    _set_words(job, frame, function, 0, 0, pieces)
    _store(job + 8 * KNOWN, helpers + 1)
    for _ in range(helpers):
        _set_words(scratch, 40, 0, context, _word(_table(), 0), job)
        if _failed(api, _call_one(_word(api, 17), scratch), scratch):
            _leave(job)
    _share(job)
    while _add_to(job + 8 * DONE, 0) < pieces:
        _yield()
    _leave(job)
    return True


@compiled
def _run(frame):
    """0, or the error that the kernel is none of this process: the program was compiled by another."""
    sizes, api, scratch = _sizes(frame), _word(frame, 2), _malloc(40)
    pieces, function, error = _word(sizes, PIECES), _word(_table(), _word(sizes, KERNEL)), 0
    if function == 0:
        _set_words(scratch, 32, 0, _word(_table(), MESSAGE), FAILED_PRECONDITION, 0)
        error = _call_one(_word(api, 6), scratch)
    elif pieces == 1 or scratch == 0 or not _shared_out(frame, function, pieces, scratch):
        for piece in range(pieces):
            _call_kernel(function, frame, piece)
    _free(scratch)
    return error


def task(stamp: int) -> Callable:
    """What a thread of XLA's runs: (job) -> nothing."""

    def task(job):
        if stamp >= 0:
            _share(job)
            _leave(job)

    return task


def handler(stamp: int) -> Callable:
    """What XLA calls: (frame) -> error, or 0. Asked what it is, it says that it is of XLA's own version."""

    def handler(frame):
        extension = _word(frame, 1)
        if extension != 0 and _word(extension, 1) & 0xFFFFFFFF == METADATA:
            _store(_word(extension, 3) + 24, _word(_word(frame, 2), 4))
        elif _word(frame, 4) & 0xFFFFFFFF == EXECUTE:
            return _run(frame)
        return stamp * 0

    return handler


# --------------------------------------------------------------------------------------------- kernels, of given dtypes


@numba.njit(error_model="numpy", nogil=True)
def _array(frame, group, k, start, n, dtype, itemsize):
    """Numbers from `start` on of argument or result k."""
    return carray(_pointer(_data(frame, group, k) + start * itemsize), (n,), dtype)


def kernel(kind: str, a: Any, b: Any, out: Any, ptr: Any, stamp: int) -> Callable:
    """(frame, piece) -> nothing, for operands of dtypes `a` and `b`, a result of `out`, and pointers of `ptr`.

    Args:
      kind: which kernel of `native.py`. All but the one for diagonals take col_idx, ptr and perm, that one offsets,
        start and pattern.
    """
    na, nb, no, ni = a.itemsize, b.itemsize, out.itemsize, ptr.itemsize
    int32, uint8 = np.dtype(np.int32), np.dtype(np.uint8)

    def kernel(frame, piece):
        if stamp < 0:
            return
        z = _sizes(frame)
        n, m, p, lanes, pieces = (
            _word(z, N_ROWS),
            _word(z, N_COLS),
            _word(z, P),
            _word(z, LANES),
            _word(z, PIECES) // _word(z, BATCH),
        )
        i, piece = piece // pieces, piece % pieces
        first = _array(frame, 5, 0, i * _word(z, N_A), _word(z, N_A), a, na)
        second = _array(frame, 5, 1, i * _word(z, N_B), _word(z, N_B), b, nb)
        index = _array(frame, 5, 2, 0, _word(z, N_INDEX), int32, 4)
        pointers = _array(frame, 5, 3, 0, _word(z, N_PTR), ptr, ni)
        if kind == "product diagonals":
            result = _array(frame, 10, 0, i * _word(z, N_OUT), _word(z, N_OUT), out, no)
            begin, end = n * piece // pieces, n * (piece + 1) // pieces
            pattern = _array(frame, 5, 4, 0, _word(z, N_PERM), uint8, 1)
            native.product_diagonals(
                first, second, index, pointers, pattern, result, p, m, _word(z, MASKED), begin, end
            )
            return
        perm = _array(frame, 5, 4, 0, _word(z, N_PERM), int32, 4)
        # Of a transposed product every piece has a result of its own.
        member = i * pieces + piece if kind == "transposed rows" or kind == "transposed lanes" else i
        result = _array(frame, 10, 0, member * _word(z, N_OUT), _word(z, N_OUT), out, no)
        if kind == "product rows" or kind == "transposed rows" or kind == "outer rows":
            begin = native.rows_before(pointers, n, piece, pieces)
            end = native.rows_before(pointers, n, piece + 1, pieces)
            if kind == "product rows":
                native.product_rows(first, second, index, pointers, perm, result, p, m, begin, end)
            elif kind == "transposed rows":
                native.transposed_rows(first, second, index, pointers, perm, result, p, m, begin, end)
            else:
                native.outer_rows(first, second, index, pointers, perm, result, p, m, begin, end)
        else:
            s, lane = native.lanes_before(pointers, lanes, piece, pieces)
            t, stop = native.lanes_before(pointers, lanes, piece + 1, pieces)
            if kind == "product lanes":
                native.product_lanes(first, second, index, pointers, perm, result, p, m, n, lanes, s, lane, t, stop)
            elif kind == "transposed lanes":
                native.transposed_lanes(first, second, index, pointers, perm, result, p, m, n, lanes, s, lane, t, stop)
            else:
                native.outer_lanes(first, second, index, pointers, perm, result, p, m, n, lanes, s, lane, t, stop)
        if (kind == "outer rows" or kind == "outer lanes") and piece == pieces - 1:
            result[pointers[_word(z, N_PTR) - 1] :] = 0  # behind the last row

    return kernel
