"""A matrix on the host, as SuperLU takes it, and what is found out about it once."""

import functools
from typing import Any

import jax
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import concrete
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers.core import arguments

LONG = 1_000  # entries of a row that the envelope takes last
FREE = 3_000  # unknowns whose factors fit, even full ones
COPIES = 2  # of the factors, SuperLU's and ours
_hosts = Kept(1)


class Host:
    """A square matrix on the host, and facts of it, each computed when it is asked for.

    Attributes:
      S: [n, n] in SciPy's canonical CSC, in 64 bits.
      eps: the rounding unit of A's dtype.
    """

    def __init__(self, S: Any):
        self.eps = np.finfo(S.dtype).eps
        self.S = S.tocsc().astype(np.complex128 if S.dtype.kind == "c" else np.float64, copy=False)
        self.n = S.shape[0]

    @functools.cached_property
    def finite(self) -> bool:
        return bool(np.isfinite(self.S.data).all())

    @functools.cached_property
    def diagonal(self) -> Any:
        return self.S.diagonal()

    @functools.cached_property
    def symmetric(self) -> bool:
        """Whether A is symmetric (Hermitian) up to rounding."""
        S, T, sizes = self.S, self.S.T.tocsc(), np.abs(self.S.data)
        rounding = 10 * self.eps * np.max(sizes, initial=0)
        if np.array_equal(S.indptr, T.indptr) and np.array_equal(S.indices, T.indices):
            return bool(np.max(np.abs(S.data - T.data.conj()), initial=0) <= rounding)
        # An entry has no partner; only one that rounding leaves may lack it.
        return bool(np.min(sizes) <= rounding and abs(S - T.conj()).max() <= rounding)

    @functools.cached_property
    def pattern(self) -> Any:
        """That of A + Aᵀ with a full diagonal, in CSR."""
        ones = scipy.sparse.csr_array((np.ones(self.S.nnz, np.int8), self.S.indices, self.S.indptr), shape=self.S.shape)
        return scipy.sparse.csr_array(ones + ones.T + scipy.sparse.eye_array(self.n, dtype=np.int8))

    @functools.cached_property
    def envelope(self) -> tuple[float, float]:
        """Entries and multiplications of the factors, from above: the envelope in the order of reverse Cuthill and
        McKee, rows with more than LONG entries last. It is near on meshes, and far too large on circuits.
        """
        from scipy.sparse import csgraph

        short = np.diff(self.pattern.indptr) <= LONG
        n_long = self.n - int(short.sum())
        pattern = self.pattern[short][:, short] if n_long else self.pattern
        order = csgraph.reverse_cuthill_mckee(scipy.sparse.csr_matrix(pattern), symmetric_mode=True)
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        first = np.minimum.reduceat(place[pattern.indices], pattern.indptr[:-1]) if order.size else place
        width = np.append(n_long + place - first, np.full(n_long, self.n))
        return 2 * float(np.sum(width)), float(np.sum(width.astype(float) ** 2))

    def counted(self, order: Any, most: float) -> int:
        """Entries of the factors of A + Aᵀ in an order of the unknowns, or a number above `most`."""
        pattern, total = self.pattern[order][:, order], np.zeros(1, np.int64)
        ptr, col, parent = pattern.indptr.astype(np.int32), pattern.indices.astype(np.int32), np.full(self.n, -1)
        over_rows(elimination.fill, self.n, self.n, ptr, col, parent, total, int(most / 2), rows=self.n)
        return 2 * int(total[0])

    def check_memory(self) -> None:
        """ValueError: the host's memory does not hold the factors, by their entries in the order that SuperLU takes."""
        if self.n <= FREE:
            return
        bytes_of_one = COPIES * (self.S.dtype.itemsize + 4)
        cure, free = "take a Krylov method with precond.multigrid or precond.ilu", arguments.memory.of_host

        def check(entries: float) -> None:
            what = f"the factors of A, of {entries:.2g} entries or more,"
            arguments.check_free_memory(int(bytes_of_one * entries), what, cure, free)

        try:
            check(self.envelope[0])
        except ValueError:
            from scipy.sparse import linalg

            # A matrix of this pattern of which no more than the diagonal is kept has the order of the columns at once.
            like = scipy.sparse.csc_array(
                (np.full(self.S.nnz, 1e-9), self.S.indices, self.S.indptr), shape=self.S.shape
            )
            made = linalg.spilu(like + scipy.sparse.eye_array(self.n, format="csc"), drop_tol=0.5, fill_factor=1)
            most = 2 * (free() or 0) / bytes_of_one
            check(self.counted(np.argsort(made.perm_c), most))


def hosted(A: Any) -> Host:
    """A matrix of jaxsparse_fmt whose numbers are known; that of the last one is kept as long as the matrix lives."""

    def made() -> Host:
        with concrete():
            return Host(A.to_scipy())

    arrays, tree = jax.tree.flatten(A)
    return _hosts.get(tree, arrays, made)
