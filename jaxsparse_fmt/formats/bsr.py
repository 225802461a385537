"""BSR, dense blocks of r × c (the future work of Barbieri et al., §5, and Kreutzer et al.), in sliced block-ELL order.

         ⎡ 1 2 . . ⎤      r × c = 2 × 2, slices of C = 4 rows, that is 2 block rows
         ⎢ 3 4 . . ⎥      values     [1 3 5 7 | 2 4 6 8 | · · 9 · | · · · 1]      [n_stored]
         ⎢ 5 6 9 . ⎥      block_col  [0 0 | 2 1]                                  [n_stored / (r·c)] int32, 2: padding
         ⎣ 7 8 . 1 ⎦      slice_ptr  [0 16]                                       [n_slices + 1] int32
                          pattern    [255 183]                                    [⌈n_stored / 8⌉] uint8, 0-bits: holes

Holes are the places of stored blocks, inside the matrix, that hold no entry; `pattern` marks them as in DIA (`dia.py`).

One thread walks a row. The r threads of a block row read the same block indices, so that a product with full 3 × 3
blocks reads 4/9 byte of index an entry. Slices have lcm(r, 128) rows. Blocks that reach beyond the matrix are padded.

Bytes: n_stored·(value + 4 / (r·c)) + 4·(n_slices + 1), and ⌈n_stored / 8⌉ for the pattern where there are holes.
"""

import math
from typing import Annotated, Any, Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint, implied, statistics
from jaxsparse_fmt.formats.base import AnyShards, Array, ByRule, Pointer, padded_with, storage_format
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.kernels.layout.columns import Blocked

BlockColumn = Annotated[Array, padded_with(lambda A: -(-A.shape[1] // A.block_shape[1]))]
SLICE_ROWS = 128  # rows that the GPU kernels take at a time
MAX_COLUMNS = 32
CANDIDATES = (8, 6, 5, 4, 3, 2)
WINDOW = 120  # rows of a window that is sampled; every candidate divides it


@storage_format
class BSR(ByRule):
    """BSR with blocks of `block_shape`."""

    block_col: BlockColumn
    slice_ptr: Pointer
    pattern: Array | None
    reads_pattern: AnyShards
    block_shape: tuple[int, int]

    name = "bsr"
    layout_options = ("block_shape",)

    @staticmethod
    def _rule_of_rows(n_rows: int, block_shape: tuple[int, int]) -> Slices:
        return Slices(n_rows, slice_rows(n_rows, block_shape[0]))

    @property
    def column(self) -> Blocked:
        return Blocked(*self.block_shape, self.reads_pattern)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, block_shape: tuple[int, int] | None = None) -> Self:
        """Collects the entries into blocks.

        Args:
          block_shape: (rows, columns) of a block; None: the square block up to 8 × 8 that takes the fewest bytes.
        """
        r, c = _shape(block_shape) if block_shape is not None else best_block(csr, target.dtype.itemsize)
        C = slice_rows(csr.shape[0], r)
        groups = implied.Groups(csr, Blocked(r, c), C, C // r, f"blocks of {r} × {c}")
        return groups.store(cls, target, block_shape=(r, c))

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        if pattern.platform != "gpu":  # on a CPU, CSR is as fast
            return
        csr = pattern.csr
        r, c = best_block(csr, pattern.dtype.itemsize)
        if r * c > 1:
            C = slice_rows(csr.shape[0], r)
            counted = statistics.touched(pattern.sample(C), Blocked(r, c), r, C)
            trips = footprint.trips(pattern.longest / max(c / footprint.UNROLL, 1))  # of whole rows of blocks
            layout, words = {"block_shape": (r, c)}, f"dense blocks of {r} × {c}"
            yield from pattern.of_groups(cls.name, layout, counted, C, trips, words)


def slice_rows(n_rows: int, r: int) -> int:
    """Rows of a slice: whole blocks and whole tiles of the GPU kernels, or all rows if those are fewer."""
    return min(math.lcm(r, SLICE_ROWS), max(-(-n_rows // r), 1) * r)


def best_block(csr: Csr, itemsize: int) -> tuple[int, int]:
    """The square block up to 8 × 8 that takes the fewest bytes, padding counted, in a sample of the rows."""
    some = statistics.sample(csr, WINDOW)

    r = min((1, *CANDIDATES), key=lambda r: some.blocks(r, r) * (r * r * itemsize + 4))
    return r, r


def _shape(block_shape: Any) -> tuple[int, int]:
    if not isinstance(block_shape, tuple | list) or len(block_shape) != 2:
        raise TypeError(f"block_shape must be two integers, (rows, columns); got {block_shape!r}")
    r = building.positive("block_shape[0]", block_shape[0])
    c = building.positive("block_shape[1]", block_shape[1], "column")
    if c > MAX_COLUMNS:
        raise ValueError(f"block_shape[1] must be at most {MAX_COLUMNS} columns, which a kernel unrolls; got {c}")
    return r, c
