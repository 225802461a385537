"""Matrices of ours on the host; the facts of one that is stored by diagonals are asked of these."""

import functools
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._tracing import concrete
from jaxsparse_fmt.core.entry_index import index_arrays
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.formats.dia import DIA
from jaxsparse_fmt.kernels.cpu.over_rows import PLACES, in_some_piece
from solvers.host import Host

_hosts, _patterns = Kept(1, "copies on the host"), Kept(4, "facts of patterns")


class ByDiagonals(Host):
    """A matrix in "dia". What its diagonals tell takes a thirtieth of the time in which SciPy makes CSC of it."""

    @functools.cached_property
    def _diagonals(self) -> dict[int, np.ndarray]:
        return self._given.diagonals_on_host()

    @functools.cached_property
    def finite(self) -> bool:
        return not any(in_some_piece(lambda d: not np.isfinite(d).all(), d) for d in self._diagonals.values())

    @functools.cached_property
    def diagonal(self) -> Any:
        return self._diagonals.get(0, np.zeros(self.n)).astype(np.result_type(self._given.dtype, np.float64))

    @functools.cached_property
    def symmetric(self) -> bool:
        found = self._diagonals
        pairs = [(d, found.get(-k)) for k, d in found.items() if k >= 0 or -k not in found]
        pairs = [(d, np.zeros_like(d) if image is None else image) for d, image in pairs]
        if self.finite and not any(in_some_piece(lambda a, b: np.any(a != b.conj()), *pair) for pair in pairs):
            return True
        rounding = 10 * self.eps * max([np.max(np.abs(d), initial=0) for d in found.values()], default=0)
        return not any(in_some_piece(lambda a, b: not np.all(np.abs(a - b.conj()) <= rounding), *p) for p in pairs)

    @property
    def cancels(self) -> bool:
        return all(map(self._cancels, range(0, self.n, PLACES)))  # the first rows of most have boundary values

    def _cancels(self, begin: int) -> bool:
        """Whether the entries of each of the rows from `begin` on add up to 0."""
        end = min(begin + PLACES, self.n)
        sums, sizes = np.zeros(end - begin, np.result_type(self._given.dtype, np.float64)), np.zeros(end - begin)
        for k, d in self._diagonals.items():
            first = max(-k, 0)  # row of the diagonal
            rows = slice(max(begin, first), max(min(end, first + d.size), begin, first))
            part = d[rows.start - first : rows.stop - first]
            sums[rows.start - begin : rows.stop - begin] += part
            sizes[rows.start - begin : rows.stop - begin] += np.abs(part)
        return bool(np.all(np.abs(sums) <= 10 * self.eps * sizes))


def hosted(A: Any) -> Host:
    """A matrix whose values are known, on the host; that of the last one is kept as long as the matrix lives."""

    def made() -> Host:
        with concrete():
            known = _patterns.get(tree, index_arrays(A), dict)
            if isinstance(A, DIA) and A.dtype.itemsize > 2:
                return ByDiagonals(jax.tree.map(_view, A), known)
            return Host(A.to_scipy(), known)

    arrays, tree = jax.tree.flatten(A)
    return _hosts.get(tree, arrays, made)


def _view(a: Any) -> np.ndarray:
    """An array in NumPy; of JAX's on a CPU, unless it lies in pieces, a view, which does not keep `a` itself alive."""
    return np.asarray(a.addressable_data(0) if isinstance(a, jax.Array) and a.is_fully_replicated else a)
