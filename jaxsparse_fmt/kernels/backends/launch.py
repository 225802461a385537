"""The launch of a Pallas kernel by Triton, Mosaic GPU or the interpreter.

A kernel is a function `kernel(d, **refs)` over flat arrays. It computes with vectors of lanes, one storage row per
lane, and accesses memory only through its dialect `d`. In Triton, `load`, `store` and `sum_threads` also take a second
axis: the right-hand sides that a lane loads at once (`row_kernels.py`).

    d.program_id()                     the number of the block
    d.lanes()                          0, 1, ..., rows - 1 as int32
    d.full(value, dtype)               one value in every lane
    d.load(ref, idx, live, other)      ref[idx] where live, else other; dead lanes access no invalid address.
                                       once=True: read only once, so the cache may evict it; never use it on memory
                                       that this kernel writes
    d.store(ref, idx, value, live)     ref[idx] = value where live
    d.part(i, n)                       where part i of scratch begins, n elements each; 0 in shared memory
    d.barrier()                        afterwards every lane reads what the lanes of the block have stored
    d.sum_threads(value, n, stride)    in every lane the sum over its group: n lanes at distances of `stride`. Both are
                                       powers of two, and the group lies in a warp
    d.totals(refs)                     in every lane the sum of each of these short arrays
    d.store_sums(ref, i, value, m)     stores in ref[m·i : m·(i + 1)], up to the end of ref, partial sums of the sum
                                       over all lanes; m is at least the number of warps of a Mosaic block

Lanes of complex arrays are pairs of real ones (`pairs.py`), which add and multiply alike.

The same body lowers through both of Pallas' GPU dialects: Triton (`triton.py`), from Ampere on, which works but is
deprecated since JAX 0.11; and Mosaic GPU (`mosaic.py`), from Hopper on.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxsparse_fmt.kernels.backends import pairs, tuning
from jaxsparse_fmt.kernels.backends.jax_versions import find_triton_dialect, varying_like


def launch(
    kernel: Callable[..., None],
    dialect: str,
    *,
    block: tuning.Block,
    blocks: int,
    inputs: Mapping[str, jax.Array | None],
    outputs: Mapping[str, jax.ShapeDtypeStruct | jax.Array],
    scratch: Mapping[str, jax.ShapeDtypeStruct] | None = None,
) -> tuple[jax.Array, ...]:
    """Runs `kernel(d, **refs)` in each of `blocks`, with `inputs` that are not None and `outputs`, all flat.

    Args:
      kernel: a function or a `functools.partial` of one; the GPU's kernel gets the function's name.
      dialect: "triton", "mosaic" or "interpret".
      block: the shape of one block.
      blocks: their number; one axis, since CUDA allows only 65,535 along the others.
      outputs: or one array alone, which is updated in place.
      scratch: memory by which the lanes of a block exchange sums: of one block if its lanes share memory
        (`selection.shares_memory`), else of all blocks, in which `d.part` finds a block's part.
    """
    given, scratch = {k: v for k, v in inputs.items() if v is not None}, scratch or {}
    if any(map(pairs.is_complex, (*given.values(), *outputs.values(), *scratch.values()))):
        return _launch_on_reals(kernel, dialect, block, blocks, given, outputs, scratch)
    names = (*given, *outputs, *scratch)
    assert not any(isinstance(o, jax.Array) for o in outputs.values()) or (len(outputs) == 1 and not scratch)
    like = next(iter(given.values()))
    out = tuple(o if isinstance(o, jax.Array) else varying_like(o, like) for o in outputs.values())

    def body(d: Any, *refs: Any) -> None:
        kernel(d, **dict(zip(names, refs, strict=True)))

    body.__name__ = _name(kernel)
    arrays, shared = tuple(given.values()), tuple(scratch.values())
    if dialect == "mosaic":
        from jaxsparse_fmt.kernels.backends import mosaic

        return mosaic.launch(body, block, blocks, arrays, out, shared)
    from jaxsparse_fmt.kernels.backends.triton import Interpreted, Triton, pl, triton

    interpret = dialect == "interpret"
    if not interpret:
        find_triton_dialect()
    threads = block.rows // block.lanes_per_thread
    params = triton.CompilerParams(num_warps=max(threads // tuning.LAUNCH.warp, 1), num_stages=tuning.LAUNCH.stages)
    d = (Interpreted if interpret else Triton)(block.rows, block.lanes_per_thread, tuning.LAUNCH.stream)
    # Scratch is an output that the caller does not get, since Triton gives kernels no shared memory.
    hidden, n_in = tuple(varying_like(s, like) for s in shared), len(arrays)
    updated = [o for o in out if isinstance(o, jax.Array)]
    return pl.pallas_call(
        lambda *refs: body(d, *refs[:n_in], *refs[n_in + len(updated) :]),
        out_shape=(*out, *hidden),
        grid=(blocks,),
        input_output_aliases={n_in + i: i for i in range(len(updated))},
        interpret=interpret,
        compiler_params=params,
        name=body.__name__,
    )(*arrays, *updated)[: len(out)]


def _name(kernel: Callable[..., None]) -> str:
    return (kernel.func if isinstance(kernel, functools.partial) else kernel).__name__


def _launch_on_reals(kernel, dialect, block, blocks, inputs, outputs, scratch):
    """`launch` of real arrays in place of complex ones."""
    paired = {k for k, a in {**inputs, **outputs, **scratch}.items() if pairs.is_complex(a)}
    updated = {k: o for k, o in outputs.items() if isinstance(o, jax.Array)}

    def on_pairs(d, **refs):
        kernel(pairs.InPairs(d), **{k: pairs.Complex(ref) if k in paired else ref for k, ref in refs.items()})

    def run(*arrays):
        real = dict(zip((*inputs, *updated), arrays, strict=True))
        reals = {k: pairs.real_struct(s) for k, s in scratch.items()}
        out = {k: real[k] if k in updated else pairs.real_struct(o) for k, o in outputs.items()}
        given = {k: real[k] for k in inputs}
        return launch(on_pairs, dialect, block=block, blocks=blocks, inputs=given, outputs=out, scratch=reals)

    on_pairs.__name__ = _name(kernel)
    out = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs.values()]
    return pairs.on_reals(run, (*inputs.values(), *updated.values()), out, copies=dialect == "interpret")
