"""The dialect `d` of Pallas' Mosaic GPU lowering (`launch.py` lists what a dialect offers).

Mosaic GPU has no array-indexed loads and no sums over neighbouring lanes, so this file writes gather, scatter and
shuffle a register at a time: in the layout, WG_STRIDED with vec_size 1, every lane has registers of one element.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, scf, vector

from jaxsparse_fmt.kernels.backends.tuning import Block

WARP, WARPGROUP = 32, 128  # threads
inline_mgpu: Any = plgpu.inline_mgpu  # whose type has the arguments that it adds
STREAMED = "ld.global.nc.L1::evict_first"  # for data that is read once, which the cache evicts first


class Mosaic:
    """The `rows` lanes of a block of `warpgroups`; each warpgroup runs the kernel for its part of the lanes."""

    def __init__(self, rows: int, warpgroups: int):
        self.rows, self._warpgroups = rows, warpgroups
        self._shape = (rows // warpgroups,)  # of a warpgroup's part of a vector of lanes
        self._layout = plgpu.Layout.WG_STRIDED(self._shape, vec_size=1)

    def program_id(self) -> jax.Array:
        return lax.axis_index("block")  # the name that `launch.py` gives to the grid's axis

    def lanes(self) -> jax.Array:
        lane = plgpu.broadcasted_iota(jnp.int32, self._shape, 0, layout=self._layout)
        return lane if self._warpgroups == 1 else lane + lax.axis_index("warpgroup") * jnp.int32(self._shape[0])

    def full(self, value: Any, dtype: Any) -> jax.Array:
        return plgpu.layout_cast(jnp.full(self._shape, value, dtype), self._layout)

    def load(self, ref: Any, idx: jax.Array, live: Any = None, other: Any = 0, once: bool = False) -> jax.Array:
        if idx.ndim == 0:
            return ref[idx]
        if live is None:
            return self._gather(ref, idx, once=once)
        live = jnp.broadcast_to(live, idx.shape)
        if self._warpgroups == 1:
            return self._gather(ref, idx, plgpu.layout_cast(live, self._layout), other=other, once=once)
        # A large block has too few registers for predicates, so all dead lanes read the first element, one cache line.
        values = self._gather(ref, jnp.where(live, idx, jnp.zeros_like(idx)), once=once)
        return jnp.where(live, values, jnp.asarray(other, values.dtype))

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        operands = idx, value.astype(ref.dtype), jnp.broadcast_to(live, idx.shape)  # each may be uniform over lanes
        self._scatter(ref, *(plgpu.layout_cast(a, self._layout) for a in operands))

    def part(self, i: jax.Array, n: int) -> jax.Array:
        """0: scratch is shared memory, and each block has its own."""
        return jnp.zeros_like(i)

    def barrier(self) -> None:
        @inline_mgpu(arg_types=())
        def wait(_):
            gpu.barrier()  # no load moves across it, unlike Mosaic's own barrier

        wait()

    def sum_threads(self, value: jax.Array, n: int, stride: int) -> jax.Array:
        dtype = value.dtype
        out = plgpu.ShapeDtypeStruct(self._shape, dtype, layout=self._layout)
        distance = stride
        while distance < n * stride:

            @inline_mgpu(arg_types=(self._layout,), return_type=out)
            def partner(_, value, distance=distance):
                registers = np.empty_like(value.registers)
                for position, register in np.ndenumerate(value.registers):
                    registers[position] = _register(_from_lane(_element(register), distance))
                return mgpu.FragmentedArray(_registers=registers, _layout=value.layout, _is_signed=value.is_signed)

            value, distance = value + partner(value), 2 * distance
        return value

    def totals(self, refs: list[Any]) -> list[jax.Array]:
        return [self._total(ref) for ref in refs]

    def _total(self, ref: Any) -> jax.Array:
        """Every warp adds up the whole array, since no sum crosses warps here; eight loads are in flight together."""
        n, unroll = ref.shape[0], 8
        lane = lax.rem(self.lanes(), jnp.int32(WARP))

        def trip(t, sums):
            indices = [(t * jnp.int32(unroll) + jnp.int32(u)) * jnp.int32(WARP) + lane for u in range(unroll)]
            return functools.reduce(jnp.add, [self.load(ref, a, a < n) for a in indices], sums)

        sums = lax.fori_loop(jnp.int32(0), jnp.int32(-(-n // (WARP * unroll))), trip, self.full(0, ref.dtype))
        return self.sum_threads(sums, WARP, 1)

    def store_sums(self, ref: Any, i: jax.Array, value: jax.Array, m: int) -> None:
        """Stores one sum for each warp."""
        warp, lane = lax.div(self.lanes(), jnp.int32(WARP)), lax.rem(self.lanes(), jnp.int32(WARP))
        place = jnp.int32(m) * i + warp
        self.store(ref, place, self.sum_threads(value, WARP, 1), (lane == 0) & (place < ref.shape[0]))

    def _gather(self, ref: Any, idx: jax.Array, *live: jax.Array, other: Any = 0, once: bool = False) -> jax.Array:
        """ref[idx]; `other` if `live` is given and false."""
        narrow = jnp.issubdtype(ref.dtype, jnp.unsignedinteger) and jnp.dtype(ref.dtype).itemsize < 4
        dtype = jnp.dtype(jnp.int32) if narrow else ref.dtype  # widened at once: registers hold signed integers here
        out = plgpu.ShapeDtypeStruct(self._shape, dtype, layout=self._layout)

        @inline_mgpu(arg_types=(plgpu.RefType(), *[self._layout] * (1 + len(live))), return_type=out)
        def gather(_, ref, idx, *live):
            registers = np.empty_like(idx.registers)
            signed = True if jnp.issubdtype(dtype, jnp.integer) else None
            for position, register in np.ndenumerate(idx.registers):
                alive = _element(live[0].registers[position]) if live else None
                registers[position] = _register(_loaded(ref, _element(register), dtype, alive, other, once))
            return mgpu.FragmentedArray(_registers=registers, _layout=idx.layout, _is_signed=signed)

        return gather(ref, idx, *live)

    def _scatter(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        """ref[idx] = value where live."""

        @inline_mgpu(arg_types=(plgpu.RefType(), *[self._layout] * 3))
        def scatter(_, ref, idx, value, live):
            for position, register in np.ndenumerate(idx.registers):
                store = scf.IfOp(_element(live.registers[position]))
                with ir.InsertionPoint(store.then_block):
                    address, _ = _address(ref, _element(register))
                    llvm.store(_element(value.registers[position]), address)
                    scf.yield_([])

        scatter(ref, idx, value, live)


def launch(body, block: Block, blocks: int, inputs, out, scratch):
    """As `launch.launch`, of body(d, *refs)."""
    warpgroups = block.rows // (WARPGROUP * block.lanes_per_thread)
    grid: dict[str, Any] = {"grid": (blocks,), "grid_names": ("block",)}
    grid |= {"num_threads": warpgroups, "thread_name": "warpgroup"} if warpgroups > 1 else {}
    params = plgpu.CompilerParams()

    def kernel(*refs):
        body(Mosaic(block.rows, warpgroups), *refs)

    kernel.__name__ = body.__name__
    if not isinstance(out[0], jax.Array):
        shared: Any = tuple(plgpu.SMEM(s.shape, s.dtype) for s in scratch)
        return plgpu.kernel(kernel, out_type=out, scratch_types=shared, compiler_params=params, **grid)(*inputs)

    def update(ref):
        # `plgpu.kernel` takes no reference in JAX 0.10.
        on_grid: Any = pl.kernel(
            kernel, out_type=(), mesh=plgpu.Mesh(**grid), compiler_params=params, name=body.__name__
        )
        on_grid(*inputs, ref)

    return (pl.run_state(update)(out[0]),)


def _element(register):
    """The element of a vector register of one."""
    position = ir.DenseI64ArrayAttr.get([0])
    return vector.extract(register, dynamic_position=[], static_position=position)


def _register(element):
    """A vector register of one element."""
    return vector.broadcast(ir.VectorType.get((1,), element.type), element)


def _address(ref, index):
    """The address of `ref[index]`, in 64-bit arithmetic, and the type of the element."""
    element, i64 = ir.MemRefType(ref.type).element_type, ir.IntegerType.get_signless(64)
    if index.type != i64:
        index = arith.extui(i64, index)
    return utils.getelementptr(utils.memref_ptr(ref), [index], element), element


def _loaded(ref, index, dtype, live, other, once: bool):
    """`ref[index]` where `live` (None: everywhere), else `other`; unsigned numbers of 8 and 16 bits widened to 32.

    Dead lanes access no global memory: the load is a predicated instruction in inline assembly, since Mosaic GPU has
    none. LLVM does not see that the assembly reads memory, and the L1 cache does not keep data that is read `once`
    coherent. So the kernel must not have written to that memory.
    """
    type_, shared = utils.dtype_to_ir_type(dtype), utils.is_smem_ref(ref)
    other = utils.c(other if isinstance(type_, ir.IntegerType) else float(other), type_)
    if shared and live is not None:
        index = arith.select(live, index, utils.c(0, index.type))
    address, element = _address(ref, index)
    if shared or not (once or live is not None):
        value = llvm.load(element, address)
        value = value if element == type_ else arith.extui(type_, value)
        return value if live is None else arith.select(live, value, other)
    bits = utils.bitwidth(type_)
    letter, register = {16: "h", 32: "r", 64: "l"}[bits], ir.IntegerType.get_signless(bits)
    kind = f"b{bits}" if element == type_ else f"u{utils.bitwidth(element)}"
    load = f"{STREAMED if once else 'ld.global'}.{kind} $0, [$1];"
    if live is None:
        return _bits(llvm.inline_asm(register, [address], load, f"={letter},l"), type_)
    operands, constraints = [address, _bits(other, register), live], f"={letter},l,{letter},b"
    return _bits(llvm.inline_asm(register, operands, f"mov.b{bits} $0, $2; @$3 {load}", constraints), type_)


def _bits(value, type_):
    """`value` in another type with the same bits."""
    return value if value.type == type_ else arith.bitcast(type_, value)


def _from_lane(value, distance: int):
    """The value of the lane whose index differs in the bit `distance`; 64 bits are exchanged as two halves."""
    i32, i64 = (ir.IntegerType.get_signless(n) for n in (32, 64))
    if value.type != ir.F64Type.get():
        return utils.shfl_bfly(value, distance)
    bits, half = _bits(value, i64), arith.constant(i64, 32)
    low, high = arith.trunci(i32, bits), arith.trunci(i32, arith.shrui(bits, half))
    low, high = (arith.extui(i64, utils.shfl_bfly(word, distance)) for word in (low, high))
    return _bits(arith.ori(low, arith.shli(high, half)), value.type)
