"""Small matrices with one peculiarity each, and the layouts in which every test stores them: plain data.

All entries are multiples of 1/8 up to 4 in magnitude, so that they are exact in every dtype down to bfloat16 and sums
of duplicates are too; what a product loses, it loses by itself.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats.base import ByRule
from tests.marks import deep


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A matrix as its coordinates, duplicates and all."""

    name: str
    shape: tuple[int, int]
    row: np.ndarray
    col: np.ndarray
    data: np.ndarray

    def entries(self, dtype: Any = np.float64) -> np.ndarray:
        """`data` in `dtype`; complex ones turn from entry to entry."""
        dtype = np.dtype(dtype)
        turned = self.data * np.array([1, 1j, 1 - 1j])[np.arange(self.data.size) % 3]
        return (turned if dtype.kind == "c" else self.data).astype(dtype)

    def scipy(self, dtype: Any = np.float64) -> scipy.sparse.coo_array:
        return scipy.sparse.coo_array((self.entries(dtype), (self.row, self.col)), shape=self.shape)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        """In float64 or complex128, without SciPy's help."""
        dense = np.zeros(self.shape, np.result_type(dtype, np.float64))
        np.add.at(dense, (self.row, self.col), self.entries(dense.dtype))
        return dense

    def pattern(self) -> np.ndarray:
        """Where something is stored, zeros too."""
        stored = np.zeros(self.shape, bool)
        stored[self.row, self.col] = True
        return stored

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the entries in canonical order, without duplicates."""
        return np.nonzero(self.pattern())

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Layout:
    """A format and its options."""

    format: str
    options: tuple[tuple[str, Any], ...] = ()

    def of(self, S: Any, **options: Any) -> jsf.SparseMatrix:
        return jsf.from_scipy(S, self.format, **dict(self.options), **options)

    def __str__(self) -> str:
        return "-".join([self.format, *(f"{k}{_word(v)}" for k, v in self.options)])


def _word(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _case(name: str, shape: tuple[int, int], row: Any, col: Any, data: Any = None) -> Case:
    row, col = np.asarray(row, np.int64), np.asarray(col, np.int64)
    if data is None:
        eighths = np.random.default_rng(len(name)).integers(1, 33, row.size)
        data = eighths * np.where(np.arange(row.size) % 2, -1, 1) / 8
    return Case(name, shape, row, col, np.asarray(data, np.float64))


def _random(name: str, shape: tuple[int, int], lengths: Any) -> Case:
    """Rows of the given lengths, their columns drawn at random and left in the order they were drawn."""
    rng = np.random.default_rng(sum(shape))
    cols = [rng.choice(shape[1], n, replace=False) for n in lengths]
    return _case(name, shape, np.repeat(np.arange(shape[0]), lengths), np.concatenate(cols))


def _block_diagonal(name: str, cases: Iterable[Case]) -> Case:
    """All cases in one matrix: each begins behind the last row and the last column of the one before."""
    cases = list(cases)
    ends = np.cumsum([(0, 0), *(case.shape for case in cases)], axis=0)
    row, col = (
        np.concatenate([getattr(c, of) + end[i] for c, end in zip(cases, ends, strict=False)])
        for i, of in enumerate(("row", "col"))
    )
    return _case(name, tuple(ends[-1].tolist()), row, col, np.concatenate([case.data for case in cases]))


_rows = np.arange(12)
_band = (_rows[:, None] + np.arange(3)) % 12

CASES = {
    case.name: case
    for case in (
        _random("irregular", (17, 13), [3, 0, 7, 1, 1, 13, 2, 5, 0, 4, 4, 2, 9, 1, 6, 0, 3]),
        _random("empty_rows", (14, 9), [0, 2, 3, 1, 4, 0, 0, 2, 1, 0, 5, 2, 3, 0]),
        _random("full_row", (12, 15), [1, 1, 2, 1, 15, 1, 0, 2, 1, 1, 1, 2]),
        _case("no_rows", (0, 5), [], []),
        _case("no_columns", (5, 0), [], []),
        _case("no_entries", (6, 7), [], []),
        _case("one_by_one", (1, 1), [0], [0], [-2.5]),
        _case("one_entry", (9, 8), [4], [7], [1.5]),
        _random("wide", (3, 40), [11, 29, 4]),
        _random("long_rows", (6, 1100), [2, 1100, 0, 300, 1, 3]),  # several pieces of 256 entries, and one and a bit
        _random("tall", (150, 3), np.arange(150) % 4),
        # (1, 3) comes three times, (4, 4) cancels to a zero that stays.
        _case("duplicates", (6, 5), [1, 4, 1, 0, 4, 1, 5], [3, 4, 3, 0, 4, 3, 2], [1, 2, 0.5, 3, -2, -4, 1]),
        _case("unsorted", (5, 6), [4, 0, 2, 0, 4, 2, 0, 3], [5, 5, 1, 0, 0, 0, 2, 3]),
        _case("explicit_zero", (4, 4), [0, 1, 1, 3], [1, 0, 2, 3], [0, 2, 0, -1]),
        _case("even_rows", (12, 12), np.repeat(_rows, 3), _band.ravel()),
    )
}

# Every peculiarity at once: a layout compiles one program for it, where it would compile one for every case.
ALL = _block_diagonal("all", CASES.values())

# Layouts that take different paths through the code, by format; the first of each runs on every case. A format that is
# not listed runs with its defaults.
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "csr": ({}, {"threads_per_row": 1}, {"threads_per_row": 4}),
    "csr5": (
        {"tile_shape": (128, 8)},
        {"tile_shape": (256, 16), "keep_sums": True},
        {"tile_shape": (128, 8), "hot": 3},
    ),
    "hdia": ({"slice_size": 5, "sigma": 10}, {"slice_size": 128}),
    "ellr": ({}, {"threads_per_row": 2}, {"threads_per_row": 4}),
    "ellrt": ({"threads_per_row": 2}, {"threads_per_row": 4}),
    "hll": (
        {"slice_size": 5, "sigma": 10},
        {"slice_size": 4},
        {"slice_size": 1, "sigma": 7},
        {"slice_size": 64},  # more than most cases have rows
        {"slice_size": 3, "sigma": 1 << 20},  # a global sort
    ),
    "pjds": ({"block_size": 4}, {"block_size": 32}),
    "pellr": ({"lengths_per": "warp"}, {"lengths_per": "row"}),
    "hyb": ({"width": 2}, {"width": "mean"}, {"width": 0}),
    "bsr": ({"block_shape": (2, 3)}, {"block_shape": (3, 3)}, {"block_shape": (4, 4)}),
    "sell": ({"slice_size": 4, "sigma": 8}, {"slice_size": 4}, {"slice_size": 32, "sigma": 64}),
}
LAYOUTS = [Layout(name, tuple(options.items())) for name in jsf.FORMATS for options in OPTIONS.get(name, ({},))]
FIRST_LAYOUTS = [Layout(name, tuple(OPTIONS.get(name, ({},))[0].items())) for name in jsf.FORMATS]
SORTED = next(layout for layout in FIRST_LAYOUTS if layout.format == "hll")


def by_rule(A: jsf.SparseMatrix) -> bool:
    """Whether an address rule and a column rule are all of its storage."""
    return isinstance(A, ByRule) and not isinstance(A, jsf.HYB)


# All cases at once in every layout, and each alone in one layout. Those that are one of a kind as a whole too, as one
# without rows, stand in every format, of which the deep tests ask.
_WHOLE = ("irregular", "no_rows", "no_columns", "no_entries", "one_by_one", "tall", "explicit_zero", "even_rows")
PAIRS = [
    *((ALL, layout) for layout in LAYOUTS),
    *((case, SORTED) for case in CASES.values()),
    *(deep((CASES[name], layout)) for name in _WHOLE for layout in FIRST_LAYOUTS if layout is not SORTED),
]
