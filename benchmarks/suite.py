"""The matrices of the standard suite, by class; each is made in seconds, and larger than a GPU's L2 cache.

Ten are stand-ins for matrices of the SuiteSparse collection, which not every machine can fetch: `banded` with the rows,
entries and bandwidth that the collection publishes, and a chosen spread of row lengths. Their columns crowd towards the
diagonal as those of real matrices do, and have no other structure.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from jaxsparse_fmt import gallery


@dataclasses.dataclass(frozen=True)
class Case:
    """One matrix."""

    name: str
    kind: str  # its class
    make: Callable[[float], Any]  # the matrix, canonical, with about that many times the entries of the full size


def banded(rows: int, nnz: int, bandwidth: int, spread: float = 0.3, seed: int = 0) -> sp.csr_array:
    """A random square matrix with a full diagonal, lognormal row lengths and exactly `nnz` entries.

    The distance of an entry from the diagonal is log-uniform up to `bandwidth`. Values are uniform in (0, 1].

    Args:
      bandwidth: columns on either side of the diagonal that a row can reach.
      spread: standard deviation of the logarithm of the row lengths, before they are rounded to fit.

    Raises:
      ValueError: fewer entries than rows, or more than the band holds.
    """
    rng = np.random.default_rng(seed)
    row = np.arange(rows)
    room = np.minimum(row, bandwidth) + np.minimum(rows - 1 - row, bandwidth) + 1
    if not rows <= nnz <= room.sum():
        raise ValueError(
            f"{rows} rows within {bandwidth} of the diagonal hold {rows} to {room.sum()} entries, not {nnz}"
        )
    weight = rng.lognormal(0, spread, rows)
    lengths = np.clip(np.rint(weight * (nnz / weight.sum())).astype(np.int64), 1, room)
    while missing := nnz - int(lengths.sum()):
        able = np.flatnonzero(lengths < room if missing > 0 else lengths > 1)
        lengths[rng.choice(able, min(abs(missing), able.size), replace=False)] += np.sign(missing)
    return _in_band(lengths, bandwidth, rng)


def _in_band(lengths: np.ndarray, bandwidth: int, rng: np.random.Generator) -> sp.csr_array:
    """A square matrix with rows of these lengths, at least 1 and at most the band; columns as in `banded`."""
    n = lengths.size
    row_ptr = np.concatenate([[0], np.cumsum(lengths)])
    column = np.empty(row_ptr[-1], np.int32)
    for first in range(0, n, 2**15):  # in chunks, since fresh memory costs more than arithmetic
        row = np.arange(first, min(first + 2**15, n))
        column[row_ptr[row[0]] : row_ptr[row[-1] + 1]] = _columns(row, lengths[row], n, bandwidth, rng)
    return _csr(lengths, column, n, rng)


def _columns(
    row: np.ndarray,  # [k]
    lengths: np.ndarray,  # [k]
    n: int,
    bandwidth: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The columns of these rows, row after row, rising in each."""
    before, behind = np.minimum(row, bandwidth), np.minimum(n - 1 - row, bandwidth)
    left = np.clip((lengths - 1) * before // np.maximum(before + behind, 1), lengths - 1 - behind, before)
    right = lengths - 1 - left
    rank = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths + left, lengths)  # 0 on the diagonal
    count = np.where(rank < 0, np.repeat(left, lengths), np.repeat(right, lengths))
    reach = np.where(rank < 0, np.repeat(before - left, lengths), np.repeat(behind - right, lengths))
    # One draw in each of `count` equal parts of the logarithm, so that columns rise; and each rank is one further.
    part = (np.abs(rank) - rng.random(rank.size)) / np.maximum(count, 1)
    extra = (reach / max(bandwidth, 1) * np.expm1(part * np.log1p(bandwidth))).astype(np.int64)
    return np.repeat(row, lengths) + rank + np.sign(rank) * extra


def r_mat(bits: int, edges: int, seed: int = 0) -> sp.csr_array:
    """A graph of 2^bits nodes whose degrees follow a power law: R-MAT with Graph500's probabilities.

    Chakrabarti, Zhan and Faloutsos (SIAM Data Mining, 2004): every bit of an edge's two ends is drawn from (0.57, 0.19,
    0.19, 0.05). Nodes are renamed at random and double edges dropped, which leaves some nine in ten.
    """
    rng, n = np.random.default_rng(seed), 1 << bits
    # A table from two random bytes to two bits of row and column: a byte falls in one of the four quarters.
    byte = np.arange(256)
    low, high = (byte >= 146) & (byte < 195) | (byte >= 243), byte >= 195  # column, row
    two = (2 * high[:, None] + high << 2 | 2 * low[:, None] + low).astype(np.uint8).reshape(-1)
    row, col = np.zeros((2, edges), np.int32)
    for taken in range(0, bits, 2):
        drawn = two[rng.integers(0, 2**16, edges, np.uint16)]
        width = min(2, bits - taken)
        row = row << width | drawn >> 4 - width
        col = col << width | (drawn & 3) >> 2 - width
    names = rng.permutation(n)
    place = np.sort(names[row] << bits | names[col])
    place = place[np.diff(place, prepend=-1) > 0]
    return _csr(np.bincount(place >> bits, minlength=n), place & (n - 1), n, rng)


def circuit(rows: int, seed: int = 0) -> sp.csr_array:
    """Five entries a row near the diagonal, and four nets, rows and columns with a twentieth of all nodes each."""
    rng = np.random.default_rng(seed)
    local = banded(rows, 5 * rows, max(rows // 10, 2), 0.4, seed)
    nets = np.repeat(rng.choice(rows, 4, replace=False), rows // 20)
    nets, nodes = nets.astype(np.int32), rng.integers(0, rows, nets.size, np.int32)
    ends = np.concatenate([nets, nodes]), np.concatenate([nodes, nets])
    return sp.csr_array(local + sp.csr_array((np.full(2 * nets.size, 0.5), ends), shape=local.shape))


def kkt(n: int) -> sp.csr_array:
    """The optimality system of a control problem, Poisson's equation on n³ points: states, controls, multipliers.

    ⎡ I   0  L ⎤
    ⎢ 0  wI -I ⎥      w = 0.01; rows of 8, 2 and 8 entries; symmetric, not definite
    ⎣ L  -I  0 ⎦
    """
    L = gallery.poisson(n)
    one = sp.eye_array(n**3, format="csr")
    return sp.csr_array(sp.block_array([[one, None, L], [None, 1e-2 * one, -one], [L, -one, None]], format="csr"))


def _short_rows(n: int) -> sp.csr_array:
    rng = np.random.default_rng(0)
    return _in_band(rng.integers(1, 4, n), min(1000, n // 2), rng)


def _long_rows(n: int) -> sp.csr_array:
    rng, mean = np.random.default_rng(0), min(1_500, n // 2)
    return _in_band(rng.integers(2 * mean // 3, 4 * mean // 3, n), n - 1, rng)


def tamed(S: Any) -> Any:
    """S times a power of two with which no chain of products overflows or vanishes."""
    if S.shape[0] != S.shape[1]:
        return S
    x, size = np.ones(S.shape[1]), 1.0
    for _ in range(8):
        y = S @ x
        size = float(np.linalg.norm(y) / np.linalg.norm(x)) or 1.0
        x = y / (np.linalg.norm(y) or 1.0)
    return S * 2.0 ** -np.rint(np.log2(size))


def _csr(lengths: np.ndarray, column: np.ndarray, n: int, rng: np.random.Generator) -> sp.csr_array:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    matrix = sp.csr_array((1 - rng.random(column.size), column.astype(np.int32, copy=False), indptr), shape=(n, n))
    matrix.has_canonical_format = True
    return matrix


def _side(points: int, scale: float) -> int:
    return max(round(points * scale ** (1 / 3)), 4)


def _rows(n: int, scale: float) -> int:
    return max(round(n * scale), 64)


def _bits(scale: float) -> int:
    return max(round(20 + np.log2(scale)), 6)


# In an order that covers every class early, for a run that is cut off.
SYNTHETIC = (
    Case("7-point", "stencil", lambda s: gallery.poisson(_side(200, s))),
    Case("27-point × 3 dof", "FEM", lambda s: gallery.elasticity(_side(56, s))),
    Case("irregular, ±2,000", "irregular", lambda s: gallery.irregular(_rows(1_800_000, s), 14, 2_000)),
    Case("R-MAT", "power law", lambda s: r_mat(_bits(s), round(24e6 * s))),
    Case("adaptive mesh", "adaptive mesh", lambda s: gallery.adaptive_poisson(max(round(75 * s**0.55), 2))),
    Case("circuit", "dense rows", lambda s: circuit(_rows(4_000_000, s))),
    Case("5 × 5 blocks", "CFD", lambda s: gallery.cfd(_side(24, s))),
    Case("Holstein-Hubbard", "quantum", lambda s: gallery.holstein_hubbard(6, 6, max(round(12 * s**0.25), 1))),
    Case("optimal control", "KKT", lambda s: kkt(_side(110, s))),
    Case("uniform columns", "random", lambda s: gallery.irregular(n := _rows(2_000_000, s), 12, spread=n, sigma=0.3)),
    Case("1 to 3 a row", "short rows", lambda s: _short_rows(_rows(10_000_000, s))),
    Case("1,000 to 2,000 a row", "long rows", lambda s: _long_rows(_rows(16_000, s))),
    Case("irregular, ±50,000", "irregular", lambda s: gallery.irregular(_rows(1_800_000, s), 14, 50_000)),
    Case("27-point", "stencil", lambda s: gallery.hpcg(_side(110, s))),
    Case("7-point, small", "in L2", lambda s: gallery.poisson(_side(50, s))),
)

# Rows, entries and the larger bandwidth in the collection's statistics, and a chosen spread.
PUBLISHED = {
    "StocF-1465": (1_465_137, 21_005_389, 36_616, 0.15),
    "ML_Laplace": (377_002, 27_582_698, 2_347, 0.05),
    "webbase-1M": (1_000_005, 3_105_536, 987_649, 1.5),
    "G3_circuit": (1_585_478, 7_660_826, 947_128, 0.15),
    "thermal2": (1_228_045, 8_580_313, 1_226_000, 0.1),
    "RM07R": (381_689, 37_464_962, 309_943, 0.4),
    "cant": (62_451, 4_007_383, 275, 0.2),
    "mac_econ": (206_500, 1_273_389, 2_056, 0.6),
    "lung2": (109_460, 492_564, 107_141, 0.3),
    "nlpkkt120": (3_542_400, 95_117_792, 1_814_521, 0.1),
}


def _stand_in(scale: float, published: tuple[int, int, int, float]) -> sp.csr_array:
    rows, nnz, bandwidth, spread = published
    mean, n = nnz / rows, max(round(rows * scale), round(2 * nnz / rows))
    return banded(n, max(round(mean * n), n), max(round(bandwidth * n / rows), round(mean)), spread)


def _stand_ins(table: dict[str, tuple[int, int, int, float]]) -> tuple[Case, ...]:
    return tuple(
        Case(f"like {name}", "stand-in", functools.partial(_stand_in, published=published))
        for name, published in table.items()
    )


# What the tables of `choose` were not fitted on: stand-ins for other matrices (rows, entries, bandwidth, spread), other
# problems of the gallery, and files of the folder JAXSPARSE_MATRICES, which fit a GPU's L2 cache.
UNKNOWN = {
    "atmosmodd": (1_270_432, 8_814_880, 21_904, 0.05),
    "cop20k_A": (121_192, 2_624_331, 121_040, 0.5),
    "scircuit": (170_998, 958_936, 170_976, 0.8),
    "consph": (83_334, 6_010_480, 44_024, 0.3),
    "amazon0601": (403_394, 3_387_388, 403_331, 0.4),
    "af_shell10": (1_508_065, 52_259_885, 2_634, 0.05),
    "roadNet-CA": (1_971_281, 5_533_214, 1_902_223, 0.3),
    "torso1": (116_158, 8_516_500, 112_127, 1.0),
    "ecology2": (999_999, 4_995_991, 1_000, 0.02),
    "offshore": (259_789, 4_242_673, 237_738, 0.3),
    "mc2depi": (525_825, 2_100_225, 513, 0.02),
    "xenon2": (157_464, 3_866_688, 17_777, 0.2),
    "rajat31": (4_690_002, 20_316_253, 4_688_751, 0.6),
}
FILES = ("boyd1", "bcsstk29", "cvxbqp1", "memplus", "wiki-Vote", "bcsstk16", "utm5940", "cavity14", "orani678", "add32")


def _file(name: str) -> sp.csr_array:
    path = Path(os.environ["JAXSPARSE_MATRICES"], f"{name}.mtx.gz")
    return sp.csr_array(scipy.io.mmread(path, spmatrix=False)).astype(np.float64)


HELD_OUT = (
    Case("5-point", "stencil", lambda s: gallery.poisson(_side(3000, s), dim=2)),
    Case("R-MAT, 2¹⁸", "power law", lambda s: r_mat(max(_bits(s) - 2, 6), round(7e6 * s), seed=3)),
    Case("27-point × 3 dof, 30³", "FEM", lambda s: gallery.elasticity(_side(30, s))),
    Case("irregular, 40 a row", "irregular", lambda s: gallery.irregular(_rows(600_000, s), 40, 10_000, seed=5)),
    Case("irregular, 5 a row", "irregular", lambda s: gallery.irregular(_rows(4_000_000, s), 5, 500, seed=6)),
    Case("circuit of 1,000,000", "dense rows", lambda s: circuit(_rows(1_000_000, s), seed=7)),
    *_stand_ins(UNKNOWN),
    *(Case(name, "real", lambda _, name=name: _file(name)) for name in FILES if "JAXSPARSE_MATRICES" in os.environ),
)
SUITES = {"standard": SYNTHETIC + _stand_ins(PUBLISHED), "held-out": HELD_OUT}
