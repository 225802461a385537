"""The kernel of CSR5's tiles: interpreted against its reference, every access checked, and lowered for CUDA."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels import csr5
from jaxsparse_fmt.kernels.backends import launch, selection
from jaxsparse_fmt.kernels.layout.tiles import WINDOWS, Tiles
from tests.formats.test_csr5 import KINDS, MATRICES, N_COLS, TILE, few_spare_places  # noqa: F401
from tests.kernels.host import Host
from tests.kernels.test_large_addresses import huge, vectors_in_kernels
from tests.kernels.test_spmv import kernels_in
from tests.lowering import SIGNATURES, lowered, quick_jit
from tests.marks import few
from tests.oracle import wide

every_kind = pytest.mark.parametrize("kind", KINDS)


def stored(name: str, tile_shape=TILE, **options) -> tuple[jax.Array, dict[str, jax.Array], Tiles]:
    """Values, arrays and tiles of a matrix; pieces of rows are rows here."""
    A = jsf.from_scipy(MATRICES[name], "csr5", tile_shape=tile_shape, **{"keep_sums": True} | options)
    return A.values, A._arrays, A.tiles


def whole(dtype: Any, *shape: int) -> jax.Array:
    """Numbers from −3 to 3, in both parts of complex ones: sums of them are exact, whatever their order."""
    real, imaginary = np.random.default_rng(0).integers(-3, 4, (2, *shape))
    return jnp.asarray(real + 1j * imaginary if jnp.issubdtype(dtype, jnp.complexfloating) else real, dtype)


@functools.partial(quick_jit, static_argnums=3)
def both(values, x, arrays, tiles_: Tiles):
    kernel = csr5.product(values, x, arrays, tiles=tiles_, backend="interpret")
    reference = csr5.product_reference(values, x, arrays, tiles=tiles_)
    return jnp.concatenate(kernel, axis=1), jnp.concatenate(reference, axis=1)  # rows, and behind them pieces


@pytest.mark.parametrize(
    ("kind", "dtype", "batch", "p", "tile_shape"),
    few(
        [
            ("wide", jnp.float32, 2, 5, TILE),
            ("narrow", jnp.bfloat16, 2, 1, (256, 8)),
            ("wide", jnp.float64, 1, 1, (512, 32)),
            ("wide", jnp.float32, 2, 12, TILE),  # runs of four, and one past the last
            ("narrow", jnp.complex128, 1, 1, TILE),
            ("wide", jnp.complex64, 2, 3, TILE),
        ],
        1,
    ),
    ids=str,
)
def test_the_interpreted_kernel_is_its_reference(kind, dtype, batch, p, tile_shape):
    """Outputs start as NaN, so a row left out shows."""
    stored_values, arrays, lie = stored(kind, tile_shape)
    values = jnp.where(stored_values == 0, 0, whole(dtype, batch, lie.n_stored)).astype(dtype)
    got, want = both(values, whole(dtype, batch, N_COLS, p), arrays, lie)
    assert got.dtype == want.dtype == dtype and got.shape == (batch, lie.shape[0], p)
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(wide(got))) > 10


# ---------------------------------------------------------------------------------------------- what a block accesses


class Output:
    """What is stored, and for every place which block stored it, and before which of its barriers; −1 for none."""

    def __init__(self, like: jax.ShapeDtypeStruct, again: bool):
        self.shape, self.dtype, self.again = like.shape, like.dtype, again
        self.array = np.full(like.shape, np.nan, like.dtype)
        self.block, self.phase, self.read = (np.full(like.shape, -1) for _ in range(3))

    def __array__(self, dtype=None, copy=None):
        return self.array


class Checked(Host):
    """One block, whose lanes see of one another only what was stored before a barrier, and store every output once."""

    def __init__(self, rows: int, block: int, shares_memory: bool):
        super().__init__(rows)
        self.block, self.shares_memory, self.phase = block, shares_memory, 0

    def program_id(self):
        return jnp.int32(self.block)

    def part(self, i, n):
        return jnp.zeros_like(i) if self.shares_memory else i * n

    def barrier(self):
        self.phase += 1

    def load(self, ref, idx, live=None, other: Any = 0, once=False):
        if isinstance(ref, Output):
            asked = np.asarray(idx)[np.broadcast_to(True if live is None else np.asarray(live), idx.shape)]
            assert np.all(ref.block[asked] == self.block) and np.all(ref.phase[asked] < self.phase)
            ref.read[asked] = self.phase
        return super().load(ref, idx, live, other, once)

    def store(self, ref, idx, value, live):
        live = np.broadcast_to(np.asarray(live), idx.shape)
        at = np.asarray(idx)[live]
        assert np.all((at >= 0) & (at < ref.shape[0])) and np.unique(at).size == at.size
        assert np.all(ref.block[at] == -1) or (ref.again and np.all(np.maximum(ref.phase, ref.read)[at] < self.phase))
        ref.array[at] = np.asarray(value.astype(ref.dtype))[live]
        ref.block[at], ref.phase[at] = self.block, self.phase


def launch_checked(kernel, backend, *, block, blocks, inputs, outputs, scratch):
    shares = selection.shares_memory(backend)
    out, common = ({k: Output(like, some is scratch) for k, like in some.items()} for some in (outputs, scratch))
    with jax.disable_jit():
        for i in range(blocks):
            own = {k: Output(like, True) for k, like in scratch.items()} if shares else common
            kernel(Checked(block.rows, i, shares), **inputs, **out, **own)
    return tuple(jnp.asarray(o.array) for o in out.values())


@pytest.mark.parametrize(
    ("name", "dtype", "batch", "p", "options"),
    few(
        [
            ("narrow", np.float64, 1, 5, {}),
            ("wide", np.float64, 1, 10, {}),
            ("narrow", np.float64, 2, 10, {}),  # blocks of 8 columns and of 2, whose heads lie side by side
            ("long, but not cut", np.float32, 1, 1, {}),  # rounds of four lanes
        ],
        2,
    ),
    ids=str,
)
@pytest.mark.parametrize("shares_memory", [False, True])
def test_lanes_stay_in_bounds_store_every_row_once_and_read_others_behind_the_barrier(
    name, dtype, batch, p, options, shares_memory, monkeypatch
):
    monkeypatch.setattr(launch, "launch", launch_checked)
    monkeypatch.setattr(selection, "shares_memory", lambda backend: shares_memory)
    monkeypatch.setattr(csr5, "MOST_TRIPS", 2)  # two or three rounds
    values, arrays, lie = stored(name, **options)
    values, x = values.astype(dtype) * np.arange(1, batch + 1, dtype=dtype)[:, None], whole(dtype, batch, N_COLS, p)
    got, _ = csr5.product(values, x, arrays, tiles=lie, backend="interpret")
    assert not np.isnan(got).any()
    np.testing.assert_array_equal(got, csr5.product_reference(values, x, arrays, tiles=lie)[0])


# ------------------------------------------------------------------------------------------------- lowered, and large


def lying(
    kind: str, tile_shape: tuple[int, int], n_tiles: int, kept_rows: int = 0
) -> tuple[Tiles, dict[str, jax.ShapeDtypeStruct]]:
    """Tiles that need not exist, with as many rows as places for 16."""
    lanes, entries = tile_shape
    n_stored = n_tiles * lanes * entries
    arrays = {"lane_row": huge(n_tiles * lanes, dtype=jnp.int32), "hops": huge(n_tiles, dtype=jnp.int32)}
    if kind == "wide":
        arrays |= {"marked_col": huge(n_stored, dtype=jnp.int32)}
    else:
        begins = {"col_base": n_tiles} if kind == "narrow" else {"windows": n_tiles * WINDOWS}
        arrays |= {name: huge(n, dtype=jnp.int32) for name, n in begins.items()}
        arrays |= {"marked_delta": huge(n_stored, dtype=jnp.uint16)}
    return Tiles((n_stored // 16, 10**6), n_stored, lanes, entries, kept_rows=kept_rows, most_hops=100), arrays


def asked(lie: Tiles, dtype, p: int, batch: int = 1):
    return huge(batch, lie.n_stored, dtype=dtype), huge(batch, lie.shape[1], p, dtype=dtype)


@pytest.mark.parametrize(
    ("dialect", "tile_shape", "dtype", "p", "kept_rows"),
    [
        *((name, (128, 8), jnp.float32, 1, 0) for name in SIGNATURES),
        *((name, (512, 32), jnp.float64, 5, 0) for name in SIGNATURES),
        *((name, (1024, 128), jnp.bfloat16, 1, 0) for name in SIGNATURES),
        ("mosaic", (128, 8), jnp.bfloat16, 1, 1536),
        ("mosaic", (512, 32), jnp.float64, 1, 1536),
    ],
    ids=str,
)
@every_kind
def test_the_kernel_lowers_for_cuda(kind, dialect, tile_shape, dtype, p, kept_rows):
    lie, arrays = lying(kind, tile_shape, 4, kept_rows)
    lie, piece_ptr = dataclasses.replace(lie, n_pieces=7 if kept_rows else 0), huge(8, dtype=jnp.int32)

    def product(values, x, arrays, piece_ptr):
        return csr5.product(values, x, arrays, tiles=lie, backend=dialect, piece_ptr=piece_ptr)

    assert kernels_in(lowered(product, *asked(lie, dtype, p, batch=2), arrays, piece_ptr), dialect) == 1


@every_kind
def test_addresses_are_64_bit_from_two_to_the_31_on(kind):
    for n_tiles, dtypes in ((2**21 - 1, {"int32"}), (2**21, {"int32", "int64"})):
        lie, arrays = lying(kind, (128, 8), n_tiles)
        f = functools.partial(csr5.product, tiles=lie, backend="triton")
        assert vectors_in_kernels(f, *asked(lie, jnp.float32, 1), arrays) == dtypes
