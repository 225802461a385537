"""The seam between the kernels and what runs them: Triton, Mosaic GPU, or the interpreter.

A kernel is a function `kernel(d, **refs)` over flat arrays. It works on a vector of lanes, one storage row a lane,
and reaches memory only through its dialect `d`. In Triton, `load`, `store` and `sum_threads` also take a second axis:
the right-hand sides that a lane reads at once (`runs.py`).

    d.program_id()                     which block this is
    d.lanes()                          0, 1, ..., rows - 1 as int32
    d.full(value, dtype)               one value in every lane
    d.load(ref, idx, live, other)      ref[idx] where live, else other; dead lanes touch no invalid address.
                                       once=True: nothing reads it again, so it need not stay in cache. Of global
                                       memory nothing that the kernel has stored
    d.store(ref, idx, value, live)     ref[idx] = value where live
    d.own(i, n)                        where part i of scratch begins, n numbers each; 0 where it is shared memory
    d.barrier()                        what the lanes of the block have stored, all of them now read
    d.sum_threads(value, n, stride)    in every lane the sum over its group: n lanes at distances of `stride`. Both are
                                       powers of two, and the group lies in a warp
    d.total(ref)                       in every lane the sum of a short array
    d.store_sums(ref, i, value, m)     ref[m·i : m·(i + 1)], as far as it reaches: numbers that add up to the sum over
                                       all lanes; m is no less than the warps of a Mosaic block

so the same body lowers through both of Pallas' GPU dialects: Triton (`triton.py`), from Ampere on, deprecated since
JAX 0.11 but at work; and Mosaic GPU (`mosaic.py`), from Hopper on. Launch parameters, the choice of a backend and the
differences between JAX versions live in this file and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax import lax

from jaxsparse_fmt.kernels.mosaic import WARPGROUP, Mosaic
from jaxsparse_fmt.kernels.triton import Interpreted, Triton

Kernel = Callable[..., None]


# ---------------------------------------------------------------------------------------------------- launch parameters


@dataclasses.dataclass(frozen=True)
class Launch:
    """Launch parameters of the kernels, from the sweeps in `benchmarks/results` but for what is said to be by hand."""

    rows: int = 128  # lanes of one block; Mosaic GPU works in warpgroups, so a multiple of 128 there
    very_short_rows: int = 4  # mean entries below which rows are very short
    long_rows: int = 32  # mean entries from which rows are long
    very_long_rows: int = 256  # and from which the lanes that share one have many each
    warp: int = 32  # threads
    stages: int = 2
    columns_a_lane: int = 4  # right-hand sides that a lane has in registers, and the most that it reads at once
    run_bytes: int = 16  # and so many bytes of them at most, the longest load
    lanes_a_row: int = 8  # neighbouring lanes that share more of them, before A is read again
    columns_alone: int = 8  # in registers, where neighbouring lanes do not share them
    most_kept: int = 2**12  # sums that a block keeps to itself until it has them all
    # And then, in bytes of sums, the entries of a lane that are loaded before the first use: by hand, 16 of 4 bytes and
    # 8 of 8 were the fastest on most of nine matrices.
    kept_loads: int = 64
    stream: bool = True  # Triton: evict what is read once, the matrix, before what is read again, x
    # Lanes that one thread works for, and entries of a lane whose loads are issued before the first use, by what a lane
    # has to do beside its values. Where that is little, one lane a thread keeps too few bytes in flight.
    loads: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=lambda: {
            "full": (1, 4),  # a 4-byte index, or its own bounds
            "permuted": (1, 8),  # the same where a 4-byte sum goes to its row through a permutation
            "deltas": (2, 4),  # a 2-byte index in a slice
            "long deltas": (2, 8),
            "very short deltas": (2, 2),
            "whole diagonals": (1, 4),  # from the first row to the last
            "narrow whole diagonals": (2, 4),  # the same for sums of 4 bytes or fewer
            "diagonals": (2, 8),  # of a slice: no index, and short rows that one trip covers
            "shared": (4, 4),  # neighbouring lanes share a row of CSR
            "very long shared": (4, 8),
            "tiles": (1, 8),  # a lane passes from row to row
            "columns": (1, 4),  # tiles and shared rows, where a lane has several right-hand sides to itself
        }
    )
    # Mosaic GPU has one lane a thread, since more cost it registers, and so threads; but for some of these.
    mosaic_loads: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=lambda: {
            "permuted": (1, 4),
            "diagonals": (4, 2),  # 2026-11-23_dialects_diagonals_h200.md
            "very short deltas": (2, 3),
            "very long shared": (1, 12),  # by hand: float32 gained 4%; with 16 float64 lost 2%
        }
    )
    # Triton: lanes of a block of whole diagonals, so that it meets its x and values again in the L1 cache; but fewer
    # where so many blocks would not be left, two for each multiprocessor of an H200.
    diagonal_rows: int = 512
    least_blocks: int = 264
    sweep_rows: int = 1024  # numbers of each vector that a block of a sweep over vectors takes at a time
    sweep_blocks: int = 512  # and how many blocks share the vectors; each leaves 4 partial sums
    most_parts: int = 4096  # partial sums that every block of a later sweep adds up for itself
    # The CPU. Numba takes half a second to import and begin, its kernels save 0.1 to 1 ms a product of so many places.
    native_places: int = 2**14
    serial_entries: int = 2**15  # a product of fewer, 10 µs of work, is not worth waking a thread for
    piece_entries: int = 2**15  # that a thread takes at a time
    most_pieces: int = 64
    most_copies: int = 8  # of the result, into which pieces of a transposed product add
    entries_a_copy: int = 4  # times n_cols, that a piece has at least, since each copy is written and read


LAUNCH = Launch()


@dataclasses.dataclass(frozen=True)
class Block:
    """The shape of one block: lanes, the lanes that one thread works for, and entries in flight."""

    rows: int
    lanes_per_thread: int
    unroll: int


def block(dialect: str, load: str, slice_size: int) -> Block:
    """The block for a storage.

    Args:
      load: a key of `LAUNCH.loads`.
      slice_size: lanes of a slice; of whole diagonals all rows. A block is a whole slice where that is a power of two
        that fits, so that its bounds are scalars.
    """
    per_thread, unroll = LAUNCH.loads[load]
    if dialect == "mosaic":
        per_thread, unroll = LAUNCH.mosaic_loads.get(load, (1, unroll))
        return Block(LAUNCH.rows * per_thread, per_thread, unroll)
    rows = LAUNCH.diagonal_rows if load.endswith("whole diagonals") else LAUNCH.rows
    while rows > LAUNCH.rows and slice_size < rows * LAUNCH.least_blocks:
        rows //= 2
    fits = LAUNCH.warp * per_thread <= slice_size <= rows and slice_size & (slice_size - 1) == 0
    return Block(slice_size if fits else rows, per_thread, unroll)


def tile_block(lanes: int, p: int, kept_bytes: int = 0) -> Block:
    """The block for a tile of `lanes` and p right-hand sides. In Mosaic GPU it has several warpgroups, which only
    barriers may bring together, since its sums and maxima over lanes are those of one.

    Args:
      kept_bytes: of a sum, where the block keeps them; else 0.
    """
    per_thread, unroll = LAUNCH.loads["tiles" if p == 1 else "columns"]
    return Block(lanes, per_thread, LAUNCH.kept_loads // kept_bytes if kept_bytes else unroll)


def columns_block(dialect: str, load: str, lanes_a_row: int) -> Block:
    """The block for several right-hand sides: at least a warp of rows. One warpgroup of Mosaic GPU works for all."""
    rows = max(LAUNCH.warp * lanes_a_row, LAUNCH.rows)
    return Block(rows, rows // LAUNCH.rows if dialect == "mosaic" else 1, LAUNCH.loads[load][1])


def sweep_block(dialect: str) -> Block:
    """The block of a sweep over vectors. Mosaic GPU holds four rounds of a warpgroup, Triton four lanes a thread."""
    rows = LAUNCH.sweep_rows
    return Block(LAUNCH.rows, 1, rows // LAUNCH.rows) if dialect == "mosaic" else Block(rows, 4, 1)


# ------------------------------------------------------------------------------------------------------------- backends

BACKENDS = ("auto", "triton", "mosaic", "numba", "xla", "interpret")

# A user context takes part in jit's cache key, so a function traced under one backend is traced again under another.
_backend = jax.make_user_context("auto")


def check_backend(name: str) -> str:
    """`name`, if it is a backend.

    Raises:
      ValueError: it is not; the message lists those that are.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; choose one of {', '.join(BACKENDS)}")
    return name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Inside the context, matrices whose own backend is "auto" run on `name`.

    Args:
      name: "auto" (a Pallas kernel on NVIDIA GPUs, on CPUs a kernel of Numba for matrices of some size, plain jnp
        elsewhere), "triton", "mosaic", "numba", "xla" (plain jnp everywhere) or "interpret" (the Pallas kernel,
        interpreted; for tests).

    Raises:
      ValueError: unknown name.
    """
    with _backend(check_backend(name)):
        yield


def active_backend(own: str) -> str:
    """The backend that a matrix with the backend `own` uses here."""
    return _backend.value if own == "auto" else own


def resolve(backend: str, platform: str | None, places: int = 0, shared: bool = False) -> str:
    """What runs for `backend` where a face is lowered for `platform`: "cuda", "cpu", or None for any other.

    Args:
      places: that are stored. Below `LAUNCH.native_places`, "auto" does not start Numba for them.
      shared: the kernel is faster where the lanes of a block share memory.

    Returns:
      "xla", "triton", "mosaic", "numba" or "interpret".

    Raises:
      ValueError: a GPU dialect asked for by name on another platform, or Numba where it cannot run.
    """
    if backend == "numba":
        if platform != "cpu":
            raise ValueError(
                "backend 'numba' runs on CPUs only, and not in a program that is exported; use backend='auto'"
            )
        if not native_importable():
            raise ValueError("backend 'numba' needs the numba package: pip install numba; or use backend='auto'")
        return "numba"
    if platform != "cuda":
        if backend in ("triton", "mosaic"):
            raise ValueError(
                f"backend {backend!r} needs an NVIDIA GPU; use backend='auto', or 'interpret' to run the kernel "
                "slowly anywhere"
            )
        if backend == "auto" and platform == "cpu" and places >= LAUNCH.native_places and native_importable():
            return "numba"
        return "interpret" if backend == "interpret" else "xla"
    return _preferred_dialect(shared) if backend == "auto" else backend


def shares_memory(resolved: str) -> bool:
    """Whether scratch is memory that the lanes of a block share, where it costs little to bring numbers in order."""
    return resolved == "mosaic"


def is_pallas(resolved: str) -> bool:
    """Whether what `resolve` says is a kernel of Pallas."""
    return resolved not in ("xla", "numba")


def native_importable() -> bool:
    """Whether Numba is installed; it is not imported."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _preferred_dialect(shared: bool = False) -> str:
    """Triton from Ampere on where Pallas has it, else Mosaic GPU from Hopper on, else plain jnp with one warning. Where
    shared memory helps Mosaic GPU comes first, which alone lets a kernel of Pallas address it.
    """
    gpus = [d for d in jax.devices() if d.platform == "gpu"]
    capability = float(getattr(gpus[0], "compute_capability", "9.0")) if gpus else 9.0
    least = {"triton": 8.0, "mosaic": 9.0}
    module = {"triton": "jax.experimental.pallas.triton", "mosaic": "jax.experimental.pallas.mosaic_gpu"}
    for name in ("mosaic",) if shared else ("triton", "mosaic"):
        if capability >= least[name] and _importable(module[name]):
            return name
    if shared:
        return _preferred_dialect()
    warnings.warn(
        "this JAX has no Pallas dialect for this GPU; products run as plain XLA, several times slower. Triton needs "
        "compute capability 8.0, Mosaic GPU 9.0 and the absl-py package.",
        stacklevel=2,
    )
    return "xla"


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------ versions of JAX


@contextlib.contextmanager
def without_deprecation() -> Iterator[None]:
    """Quiet about the end of Pallas' Triton lowering while something is lowered: the choice of dialect foresees it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Triton.*", category=DeprecationWarning)
        yield


def lowering_platform(platform: str | None, ctx: Any) -> str | None:
    """`platform`, or None where a program is lowered to be exported: that may not call what other processes lack."""
    parameters = getattr(ctx.module_context, "lowering_parameters", None)
    return None if platform == "cpu" and getattr(parameters, "for_export", False) else platform


def varying_axes(a: jax.Array) -> frozenset[Any]:
    """The mesh axes over which `a` varies inside shard_map."""
    aval = jax.typeof(a)
    manual = getattr(aval, "manual_axis_type", None)  # JAX 0.10 and later; before and perhaps after: `vma`
    return manual.varying if manual is not None else getattr(aval, "vma", frozenset())


def vary(a: jax.Array, axes: frozenset[Any]) -> jax.Array:
    """`a` as an array that varies over `axes`; the transpose of this sums over those it did not vary over."""
    missing = tuple(axes - varying_axes(a))
    return lax.pcast(a, missing, to="varying") if missing else a


def _varying_like(out: jax.ShapeDtypeStruct, a: jax.Array) -> jax.ShapeDtypeStruct:
    """`out`, declared to vary over the mesh axes that `a` does; inside shard_map Pallas wants to be told."""
    manual = getattr(jax.typeof(a), "manual_axis_type", None)
    if manual is None:
        return out
    return jax.ShapeDtypeStruct(out.shape, out.dtype, manual_axis_type=manual)


# ------------------------------------------------------------------------------------------------------------ launching


def launch(
    kernel: Kernel,
    dialect: str,
    *,
    name: str,
    block: Block,
    blocks: int,
    inputs: Mapping[str, jax.Array | None],
    outputs: Mapping[str, jax.ShapeDtypeStruct | jax.Array],
    scratch: Mapping[str, jax.ShapeDtypeStruct] | None = None,
) -> tuple[jax.Array, ...]:
    """Runs `kernel(d, **refs)` in each of `blocks`, with `inputs` that are not None and `outputs`, all flat.

    Args:
      dialect: "triton", "mosaic" or "interpret".
      block: the shape of one block.
      blocks: how many; one axis, since CUDA allows only 65,535 along the others.
      outputs: or one array alone, which is updated in place.
      scratch: what the lanes of a block leave for one another, from `d.own` on: the parts of all blocks, but where
        a block's lanes share memory (`shares_memory`), the one of a block.
    """
    given, scratch = {k: v for k, v in inputs.items() if v is not None}, scratch or {}
    names = (*given, *outputs, *scratch)
    assert not any(isinstance(o, jax.Array) for o in outputs.values()) or (len(outputs) == 1 and not scratch)
    like = next(iter(given.values()))
    out = tuple(o if isinstance(o, jax.Array) else _varying_like(o, like) for o in outputs.values())
    run = _launch_mosaic if dialect == "mosaic" else functools.partial(_launch_triton, dialect == "interpret")

    def body(d: Any, *refs: Any) -> None:
        kernel(d, **dict(zip(names, refs, strict=True)))

    return run(body, name, block, blocks, out, tuple(scratch.values()), tuple(given.values()))


def _launch_triton(interpret: bool, body, name, block: Block, blocks, out, scratch, inputs):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    params = triton.CompilerParams(
        num_warps=max(block.rows // (LAUNCH.warp * block.lanes_per_thread), 1), num_stages=LAUNCH.stages
    )
    d = (Interpreted if interpret else Triton)(block.rows, LAUNCH.stream)
    # Without shared memory to itself a block has a part of an output that nobody reads.
    beside, n_in = tuple(_varying_like(s, inputs[0]) for s in scratch), len(inputs)
    updated = [o for o in out if isinstance(o, jax.Array)]
    return pl.pallas_call(
        lambda *refs: body(d, *refs[:n_in], *refs[n_in + len(updated) :]),
        out_shape=(*out, *beside),
        grid=(blocks,),
        input_output_aliases={n_in + i: i for i in range(len(updated))},
        interpret=interpret,
        compiler_params=params,
        name=name,
    )(*inputs, *updated)[: len(out)]


def _launch_mosaic(body, name, block: Block, blocks, out, scratch, inputs):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    warpgroups = block.rows // (WARPGROUP * block.lanes_per_thread)
    grid: dict[str, Any] = {"grid": (blocks,), "grid_names": ("block",)}
    grid |= {"num_threads": warpgroups, "thread_name": "warpgroup"} if warpgroups > 1 else {}
    params = plgpu.CompilerParams()

    def kernel(*refs):
        body(Mosaic(block.rows, warpgroups), *refs)

    kernel.__name__ = name
    if not isinstance(out[0], jax.Array):
        own: Any = tuple(plgpu.SMEM(s.shape, s.dtype) for s in scratch)
        return plgpu.kernel(kernel, out_type=out, scratch_types=own, compiler_params=params, **grid)(*inputs)

    def update(ref):
        # Not `plgpu.kernel`, which in JAX 0.10 takes no reference.
        run: Any = pl.kernel(kernel, out_type=(), mesh=plgpu.Mesh(**grid), compiler_params=params, name=name)
        run(*inputs, ref)

    return (pl.run_state(update)(out[0]),)
