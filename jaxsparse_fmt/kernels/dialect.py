"""The seam between the kernels and what runs them: Triton, Mosaic GPU, or the interpreter.

A kernel is a function `kernel(d, **refs)` over flat arrays. It works on a vector of lanes, one storage row a lane,
and reaches memory only through its dialect `d`:

    d.program_id()                     which block this is
    d.lanes()                          0, 1, ..., rows - 1 as int32
    d.full(value, dtype)               one value in every lane
    d.load(ref, idx, live, other)      ref[idx] where live, else other; dead lanes touch no invalid address.
                                       once=True: nothing reads it again, so it need not stay in cache
    d.store(ref, idx, value, live)     ref[idx] = value where live
    d.sum_threads(value, n, stride)    in every lane the sum over its group: n lanes at distances of `stride`. Both are
                                       powers of two, and the group lies in a warp

so the same body lowers through both of Pallas' GPU dialects. Launch parameters and the differences between JAX
versions live in this file and nowhere else.

Pallas' Triton lowering is deprecated since JAX 0.11 but works, from Ampere on; Mosaic GPU needs Hopper or newer and has
no array-indexed loads of its own, so its gather and scatter are written a register at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Kernel = Callable[..., None]

BACKENDS = ("auto", "triton", "mosaic", "xla", "interpret")

# A user context takes part in jit's cache key, so a function traced under one backend is traced again under another.
_backend = jax.make_user_context("auto")


@dataclasses.dataclass(frozen=True)
class Launch:
    """Launch parameters of the kernels, from the sweeps in `benchmarks/results`."""

    rows: int = 128  # lanes of one block; Mosaic GPU works in warpgroups, so a multiple of 128 there
    long_rows: int = 32  # mean entries from which rows are long
    warp: int = 32  # threads
    stages: int = 2
    max_columns: int = 8  # right-hand sides one block accumulates in registers
    stream: bool = True  # Triton: evict what is read once, the matrix, before what is read again, x
    # Lanes that one thread works for, and entries of a lane whose loads are issued before the first use, by what a lane
    # has to do beside its values. Where that is little, one lane a thread keeps too few bytes in flight.
    loads: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=lambda: {
            "full": (1, 4),  # a 4-byte index, or its own bounds
            "permuted": (1, 8),  # the same where a 4-byte sum goes to its row through a permutation
            "deltas": (2, 4),  # a 2-byte index in a slice
            "long deltas": (2, 8),
            "diagonals": (2, 8),  # of a slice: no index, and short rows that one trip covers
            "shared": (4, 4),  # neighbouring lanes share a row of CSR
        }
    )


LAUNCH = Launch()


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
      name: "auto" (a Pallas kernel on NVIDIA GPUs, plain jnp elsewhere), "triton", "mosaic", "xla" (plain jnp
        everywhere) or "interpret" (the Pallas kernel, interpreted; for tests).

    Raises:
      ValueError: unknown name.
    """
    with _backend(check_backend(name)):
        yield


def active_backend(own: str) -> str:
    """The backend that a matrix with the backend `own` uses here."""
    return _backend.value if own == "auto" else own


def resolve(backend: str, platform: str | None) -> str:
    """What runs for `backend` where a face is lowered for `platform`, None if that is no NVIDIA GPU.

    Returns:
      "xla", "triton", "mosaic" or "interpret".

    Raises:
      ValueError: a GPU dialect asked for by name on another platform.
    """
    if platform != "cuda":
        if backend in ("triton", "mosaic"):
            raise ValueError(
                f"backend {backend!r} needs an NVIDIA GPU; use backend='auto', or 'interpret' to run the kernel "
                "slowly anywhere"
            )
        return "interpret" if backend == "interpret" else "xla"
    return _preferred_dialect() if backend == "auto" else backend


@functools.cache
def _preferred_dialect() -> str:
    """Triton from Ampere on where Pallas has it, else Mosaic GPU from Hopper on, else plain jnp with one warning."""
    gpus = [d for d in jax.devices() if d.platform == "gpu"]
    capability = float(getattr(gpus[0], "compute_capability", "9.0")) if gpus else 9.0
    if capability >= 8.0 and _importable("jax.experimental.pallas.triton"):
        return "triton"
    if capability >= 9.0 and _importable("jax.experimental.pallas.mosaic_gpu"):
        return "mosaic"
    warnings.warn(
        "this JAX has no Pallas dialect for this GPU; products run as plain XLA, several times slower. Triton needs "
        "compute capability 8.0, Mosaic GPU 9.0 and the absl-py package.",
        stacklevel=2,
    )
    return "xla"


def _importable(module: str) -> bool:
    import importlib

    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def without_deprecation() -> Iterator[None]:
    """Quiet about the end of Pallas' Triton lowering while something is lowered: the choice of dialect foresees it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Triton.*", category=DeprecationWarning)
        yield


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


def launch(
    kernel: Kernel,
    dialect: str,
    *,
    name: str,
    block: Block,
    blocks: int,
    inputs: Mapping[str, jax.Array | None],
    output: tuple[str, jax.ShapeDtypeStruct],
) -> jax.Array:
    """Runs `kernel(d, **refs)` in each of `blocks`, with `inputs` that are not None and one output, all flat.

    Args:
      dialect: "triton", "mosaic" or "interpret".
      block: the shape of one block.
      blocks: how many; one axis, since CUDA allows only 65,535 along the others.
    """
    given = {k: v for k, v in inputs.items() if v is not None}
    names = (*given, output[0])
    out = _varying_like(output[1], next(iter(given.values())))
    run = _launch_mosaic if dialect == "mosaic" else functools.partial(_launch_triton, dialect == "interpret")

    def body(d: Any, *refs: Any) -> None:
        kernel(d, **dict(zip(names, refs, strict=True)))

    return run(body, name, block, blocks, out, tuple(given.values()))


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
      slice_size: lanes of a slice. A whole slice where it is a power of two that fits, so that its bounds are scalars.
    """
    per_thread, unroll = LAUNCH.loads[load]
    if dialect == "mosaic":
        return Block(LAUNCH.rows, 1, unroll)
    fits = LAUNCH.warp * per_thread <= slice_size <= LAUNCH.rows and slice_size & (slice_size - 1) == 0
    return Block(slice_size if fits else LAUNCH.rows, per_thread, unroll)


# ---------------------------------------------------------------------------------------------------------- Triton


class _Triton:
    def __init__(self, rows: int):
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        self._pl, self._triton, self.rows = pl, triton, rows

    def program_id(self) -> jax.Array:
        return self._pl.program_id(0)

    def lanes(self) -> jax.Array:
        return jnp.arange(self.rows, dtype=jnp.int32)

    def full(self, value: Any, dtype: Any) -> jax.Array:
        return jnp.full((self.rows,), value, dtype)

    def load(self, ref: Any, idx: jax.Array, live: Any = None, other: Any = 0, once: bool = False) -> jax.Array:
        policy = "evict_first" if once and LAUNCH.stream else None
        if live is None:
            return self._triton.load(ref.at[idx], eviction_policy=policy)
        live = jnp.broadcast_to(live, idx.shape)
        other = jnp.asarray(other, ref.dtype)
        return self._triton.load(ref.at[idx], mask=live, other=other, eviction_policy=policy)

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        self._triton.store(ref.at[idx], value.astype(ref.dtype), mask=jnp.broadcast_to(live, idx.shape))

    def sum_threads(self, value: jax.Array, n: int, stride: int) -> jax.Array:
        groups = value.reshape(self.rows // (n * stride), n, stride)
        sums = jnp.sum(groups, axis=1)[:, None, :]
        return jnp.broadcast_to(sums, groups.shape).reshape(self.rows)


class _Interpreted(_Triton):
    """Triton's dialect under Pallas' interpreter, whose masked store writes dead lanes back where they point."""

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        past_the_end = jnp.full_like(idx, ref.shape[0])
        super().store(ref, jnp.where(live, idx, past_the_end), value, live)


def _launch_triton(interpret: bool, body, name, block: Block, blocks, out, inputs):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    params = triton.CompilerParams(
        num_warps=max(block.rows // (LAUNCH.warp * block.lanes_per_thread), 1), num_stages=LAUNCH.stages
    )
    d = (_Interpreted if interpret else _Triton)(block.rows)
    return pl.pallas_call(
        lambda *refs: body(d, *refs),
        out_shape=out,
        grid=(blocks,),
        interpret=interpret,
        compiler_params=params,
        name=name,
    )(*inputs)


# ------------------------------------------------------------------------------------------------------ Mosaic GPU


class _Mosaic:
    def __init__(self, rows: int):
        from jax.experimental.pallas import mosaic_gpu as plgpu

        self._plgpu, self.rows = plgpu, rows
        self._layout = plgpu.Layout.WG_STRIDED((rows,), vec_size=1)

    def program_id(self) -> jax.Array:
        return lax.axis_index("block")

    def lanes(self) -> jax.Array:
        return self._plgpu.broadcasted_iota(jnp.int32, (self.rows,), 0, layout=self._layout)

    def full(self, value: Any, dtype: Any) -> jax.Array:
        return self._plgpu.layout_cast(jnp.full((self.rows,), value, dtype), self._layout)

    def load(self, ref: Any, idx: jax.Array, live: Any = None, other: Any = 0, once: bool = False) -> jax.Array:
        del once  # no cache hints here
        if idx.ndim == 0:
            return ref[idx]
        if live is None:
            return self._gather(ref, idx)
        # No predicated load here: dead lanes read the first element, one cached line for all of them.
        live = jnp.broadcast_to(live, idx.shape)
        values = self._gather(ref, jnp.where(live, idx, jnp.zeros_like(idx)))
        return jnp.where(live, values, jnp.asarray(other, values.dtype))

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        idx = jnp.where(jnp.broadcast_to(live, idx.shape), idx, -jnp.ones_like(idx))
        self._scatter(ref, idx, value.astype(ref.dtype))

    def sum_threads(self, value: jax.Array, n: int, stride: int) -> jax.Array:
        plgpu, dtype = self._plgpu, value.dtype
        out = plgpu.ShapeDtypeStruct((self.rows,), dtype, layout=self._layout)
        distance = stride
        while distance < n * stride:

            @plgpu.inline_mgpu(arg_types=(self._layout,), return_type=out)
            def partner(_, value, distance=distance):
                from jax.experimental.mosaic import gpu as mgpu
                from jaxlib.mlir.dialects import vector

                registers = np.empty_like(value.registers)
                for position, register in np.ndenumerate(value.registers):
                    other = _from_lane(_only(register), distance)
                    registers[position] = vector.broadcast(_vector_of_one(other.type), other)
                return mgpu.FragmentedArray(_registers=registers, _layout=value.layout, _is_signed=value.is_signed)

            value, distance = value + partner(value), 2 * distance
        return value

    def _gather(self, ref, idx):
        plgpu = self._plgpu
        narrow = jnp.issubdtype(ref.dtype, jnp.unsignedinteger) and jnp.dtype(ref.dtype).itemsize < 4
        dtype = jnp.dtype(jnp.int32) if narrow else ref.dtype  # widened at once: registers hold signed integers here
        out = plgpu.ShapeDtypeStruct((self.rows,), dtype, layout=self._layout)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), self._layout), return_type=out)
        def gather(_, ref, idx):
            from jax.experimental.mosaic import gpu as mgpu
            from jaxlib.mlir import ir
            from jaxlib.mlir.dialects import arith, llvm, vector

            registers = np.empty_like(idx.registers)
            for position, register in np.ndenumerate(idx.registers):
                address, element = _address(ref, register)
                value = llvm.load(element, address)
                if narrow:
                    element = ir.IntegerType.get_signless(32)
                    value = arith.extui(element, value)
                registers[position] = vector.broadcast(_vector_of_one(element), value)
            return mgpu.FragmentedArray(_registers=registers, _layout=idx.layout, _is_signed=_signed(element))

        return gather(ref, idx)

    def _scatter(self, ref, idx, value):
        plgpu = self._plgpu

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), self._layout, self._layout))
        def scatter(_, ref, idx, value):
            from jaxlib.mlir.dialects import arith, llvm, scf

            for position, register in np.ndenumerate(idx.registers):
                at = _only(register)
                zero = arith.constant(at.type, 0)
                store = scf.IfOp(arith.cmpi(arith.CmpIPredicate.sge, at, zero))
                with _insertion_point(store.then_block):
                    address, _ = _address(ref, register)
                    llvm.store(_only(value.registers[position]), address)
                    scf.yield_([])

        scatter(ref, idx, value)


def _only(register):
    """The element of a one-element vector register."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import vector

    at = ir.DenseI64ArrayAttr.get([0])
    return vector.extract(register, dynamic_position=[], static_position=at)


def _address(ref, register):
    """Where `ref[register]` lies, and the type of what lies there; 64-bit arithmetic throughout."""
    from jax.experimental.mosaic.gpu import utils
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import arith

    element = ir.MemRefType(ref.type).element_type
    index, i64 = _only(register), ir.IntegerType.get_signless(64)
    if index.type != i64:
        index = arith.extui(i64, index)
    return utils.getelementptr(utils.memref_ptr(ref), [index], element), element


def _from_lane(value, distance: int):
    """The value of the lane whose number differs in the bit `distance`; 64 bits travel as two halves."""
    from jax.experimental.mosaic.gpu import utils
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import arith

    i32, i64 = (ir.IntegerType.get_signless(n) for n in (32, 64))
    if value.type != ir.F64Type.get():
        return utils.shfl_bfly(value, distance)
    bits, half = arith.bitcast(i64, value), arith.constant(i64, 32)
    low, high = arith.trunci(i32, bits), arith.trunci(i32, arith.shrui(bits, half))
    low, high = (arith.extui(i64, utils.shfl_bfly(word, distance)) for word in (low, high))
    return arith.bitcast(value.type, arith.ori(low, arith.shli(high, half)))


def _vector_of_one(element):
    from jaxlib.mlir import ir

    return ir.VectorType.get((1,), element)


def _signed(element) -> bool | None:
    from jaxlib.mlir import ir

    return True if isinstance(element, ir.IntegerType) else None


def _insertion_point(block):
    from jaxlib.mlir import ir

    return ir.InsertionPoint(block)


def _launch_mosaic(body, name, block: Block, blocks, out, inputs):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    # JAX 0.11 renamed out_shape to out_type.
    renamed = "out_type" in inspect.signature(plgpu.kernel).parameters

    def kernel(*refs):
        body(_Mosaic(block.rows), *refs)

    kernel.__name__ = name
    return plgpu.kernel(
        kernel,
        grid=(blocks,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(),
        **{"out_type" if renamed else "out_shape": out},
    )(*inputs)
