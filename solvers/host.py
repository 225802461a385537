"""A matrix on the host, as SuperLU takes it, and what is found out about it once."""

import copy
import functools
from typing import Any

import jax
import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers import block_form
from solvers.core import arguments

LONG = 1_000  # entries of a row that the envelope takes last
HUB = 10  # times the mean entries of a row, if over √n: MMD takes seconds for a row of 100,000, which is best last
FREE = 3_000  # unknowns whose factors fit, even full ones
COPIES = 2  # of the factors, SuperLU's and ours
# The symmetric mode pivots on the diagonal down to THRESHOLD of a column. Pivots elsewhere let its factors fill.
MMD, COLAMD, BLOCKS, THRESHOLD = "MMD_AT_PLUS_A", "COLAMD", "BLOCKS", 1e-3
CHEAPER = 8  # times, at least, if a way that may fail is to be tried first
ASYMMETRY, WEAK = 0.5, 0.01  # parts of the entries without a partner, and of the columns with a weak diagonal, at most
ASYMMETRY_OF_ILU = 0.1
FEW = 14  # neighbours of an unknown that a rough order takes at once
WIDE, SLOW = 0.1, 5e9  # where an envelope is wider than this part of n, MMD may take as long as the factorization
LITTLE = 5e7  # multiplications of a factorization that costs less than a program, and no more than a count


class of_pattern(functools.cached_property):
    """A fact of the pattern alone, which matrices with other values share."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        assert self.attrname is not None
        if self.attrname not in instance.shared:
            instance.shared[self.attrname] = self.func(instance)
        return instance.shared[self.attrname]


class Host:
    """A square matrix on the host, and facts of it, each computed when it is asked for.

    Args:
      given: SciPy's, canonical; or ours in arrays of NumPy.
      known: the `shared` of a matrix with this pattern, mostly; None: there is none.
    """

    def __init__(self, given: Any, known: dict[str, Any] | None = None):
        self.n, self.eps = given.shape[0], np.finfo(given.dtype).eps
        self._given, self._known = given, {} if known is None else known

    @functools.cached_property
    def S(self) -> Any:
        """[n, n] in SciPy's canonical CSC, in 64 bits."""
        S = self._given if scipy.sparse.issparse(self._given) else self._given.to_scipy()
        return S.tocsc().astype(np.complex128 if S.dtype.kind == "c" else np.float64, copy=False)

    @functools.cached_property
    def shared(self) -> dict[str, Any]:
        """What is found out about its pattern."""
        places = self.S.indptr, self.S.indices
        same = all(map(np.array_equal, places, self._known.setdefault("places", places)))
        return self._known if same else {}  # some format has left out a zero

    @property
    def nbytes(self) -> int:
        return nbytes_of(vars(self))

    @functools.cached_property
    def finite(self) -> bool:
        return bool(np.isfinite(self.S.data).all())

    @functools.cached_property
    def diagonal(self) -> Any:
        return self.S.diagonal()

    @functools.cached_property
    def symmetric(self) -> bool:
        """Whether A is symmetric (Hermitian) up to rounding."""
        S = self.S
        T, self._given = self._given.tocsr().T, S  # of rows without a conversion, which are of no more use
        is_paired = np.array_equal(S.indptr, T.indptr) and np.array_equal(S.indices, T.indices)
        if is_paired and self.finite and np.array_equal(S.data, T.data.conj()):
            return True  # found in a tenth of the time of what follows
        sizes = np.abs(S.data)
        rounding = 10 * self.eps * np.max(sizes, initial=0)
        if is_paired:
            return bool(np.max(np.abs(S.data - T.data.conj()), initial=0) <= rounding)
        # An entry has no partner; only one that rounding leaves may lack it.
        return bool(np.min(sizes) <= rounding and abs(S - T.conj()).max() <= rounding)

    @functools.cached_property
    def structurally_singular(self) -> bool:
        """Whether no order of the rows has a diagonal without zeros."""
        if np.all(self.diagonal):
            return False
        return (self.matching if np.all(self.S.data) else block_form.matching(self.S)) is None

    @of_pattern
    def matching(self) -> np.ndarray | None:
        """That of the pattern, with its stored zeros."""
        return block_form.matching(with_data(self.S, np.ones(self.S.nnz)))

    @of_pattern
    def blocks(self) -> tuple[np.ndarray, np.ndarray, tuple[float, float]] | None:
        """Rows and columns in whose order A is block upper triangular, which pivots inside the blocks keep, and the
        entries and multiplications of its factors; None: A is small, or nearly symmetric, or has few blocks.
        """
        if self.n <= FREE or self.asymmetry <= ASYMMETRY or self.matching is None:
            return None
        found = block_form.parts(with_data(self.S, np.ones(self.S.nnz)), self.matching)
        if found is None:
            return None
        part, inside = found
        inner = Host(inside)
        entries, work = inner.cost(COLAMD)
        cols = np.lexsort((inverse(inner.order(COLAMD)), part))
        return self.matching[cols], cols, (entries * self.S.nnz / inside.nnz, work)

    @functools.cached_property
    def longest_column(self) -> float:
        """‖A‖₂ from below, of an A without empty columns."""
        sizes = np.abs(self.S.data)
        largest = float(np.max(sizes)) or 1.0  # no square over- or underflows
        return largest * float(np.sqrt(np.max(np.add.reduceat((sizes / largest) ** 2, self.S.indptr[:-1]))))

    @functools.cached_property
    def row_sums(self) -> float:
        """‖A‖∞."""
        return float(np.max(np.bincount(self.S.indices, np.abs(self.S.data), self.n), initial=0))

    @property
    def cancels(self) -> bool:
        """Whether the entries of each row add up to 0, up to rounding."""
        S = self.S
        sizes = np.bincount(S.indices, np.abs(S.data), self.n)
        return bool(np.all(np.abs(S @ np.ones(self.n)) <= 10 * self.eps * sizes))

    @functools.cached_property
    def constants(self) -> Any:
        """[n, m], sparse and orthonormal: a vector for each connected part of A, constant there; None unless A takes it
        to 0 up to rounding, as a Laplacian does.
        """
        if not self.cancels:
            return None
        from scipy.sparse import csgraph

        _, part = csgraph.connected_components(scipy.sparse.csr_matrix(self.pattern), directed=False)
        values = 1 / np.sqrt(np.bincount(part)[part])
        return scipy.sparse.csr_array((values, part, np.arange(self.n + 1)), shape=(self.n, int(np.max(part)) + 1))

    @of_pattern
    def pattern(self) -> Any:
        """That of A + Aᵀ with a full diagonal, in CSR."""
        S, n = self.S, self.n
        ones = scipy.sparse.csr_array((np.ones(S.nnz, np.int8), S.indices, S.indptr), shape=S.shape)
        transposed = ones.tocsc()
        diagonal, col = np.arange(n), np.repeat(np.arange(n), np.diff(S.indptr))
        same = np.array_equal(transposed.indptr, S.indptr) and np.array_equal(transposed.indices, S.indices)
        if same and np.count_nonzero(S.indices == col) == n:
            return ones
        places = np.concatenate([S.indices, col, diagonal]), np.concatenate([col, S.indices, diagonal])
        return scipy.sparse.csr_array((np.ones(len(places[0]), np.int8), places), shape=S.shape)

    @of_pattern
    def band(self) -> np.ndarray:
        """[n], the order of reverse Cuthill and McKee, rows with more than LONG entries last."""
        from scipy.sparse import csgraph

        short, pattern = np.diff(self.pattern.indptr) <= LONG, self.pattern
        if not short.all():
            pattern = pattern[short][:, short]
        order = csgraph.reverse_cuthill_mckee(scipy.sparse.csr_matrix(pattern), symmetric_mode=True)
        return np.concatenate([np.flatnonzero(short)[order], np.flatnonzero(~short)])

    @of_pattern
    def envelope(self) -> tuple[float, float]:
        """Entries and multiplications of the factors, from above, in A's order if they are few, or `band`."""
        ptr, col, n = self.pattern.indptr, self.pattern.indices, self.n
        width = np.arange(n) - col[ptr[:-1]]
        if np.sum(width**2.0) > LITTLE / 10:
            place, is_long = inverse(self.band), np.diff(ptr) > LONG
            first = np.minimum.reduceat(place[col], ptr[:-1])
            width = np.where(is_long, n, np.count_nonzero(is_long) + place - first)
        return 2 * float(np.sum(width)), float(np.sum(width**2.0))

    @of_pattern
    def rough_cost(self) -> tuple[float, float]:
        """`envelope`, or where that may be too large entries and multiplications in an order whose search is bounded.

        Unknowns with at most FEW neighbours come first, the others as in `band`. On meshes, circuits and random graphs
        of 3,000 to a million unknowns the multiplications were 0.6 to 20 times those in SuperLU's order of A + Aᵀ.
        """
        if self.envelope[1] <= LITTLE:
            return self.envelope
        if self.blocks is not None:
            return self.blocks[2]
        pattern, n = self.pattern, self.n
        member, after, found = np.empty(n * FEW, np.int32), np.empty(n * FEW, np.int32), np.full(n, -1)
        arrays = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32)
        try:
            over_rows(elimination.few_neighbours, n, 6 * n, *arrays, FEW, HUB * FEW, member, after, found, rows=n)
            is_left, found = np.ones(n, bool), found[found >= 0]
            is_left[found] = False
            (entries, work), *_ = column_counts(pattern, np.concatenate([found, self.band[is_left[self.band]]]))
        except ImportError:
            return self.envelope
        return min((2 * entries, work), self.envelope, key=lambda cost: cost[1])

    @functools.cached_property
    def ordering(self) -> str:
        """SuperLU's order of the columns: MMD, for its symmetric mode, or COLAMD, for partial pivoting; or BLOCKS.

        MMD of A + Aᵀ where the pattern is symmetric, or nearly, and few columns have a weak diagonal, as the zeros of a
        saddle point. On such matrices it fills less than COLAMD, at most 1.15 times as much, and mostly half as much.
        """
        if self.blocks is not None:
            return BLOCKS
        if self.made.get(("superlu", MMD), MMD) is None or (self.wants_pivots and not self.may_be_quasidefinite):
            return COLAMD
        return MMD

    @functools.cached_property
    def wants_pivots(self) -> bool:
        """Whether the pattern is far from symmetric, or many columns have a weak diagonal."""
        S = self.S
        if np.any(S.indptr[1:] == S.indptr[:-1]) or self.asymmetry > ASYMMETRY:
            return True
        largest = np.maximum.reduceat(np.abs(S.data), S.indptr[:-1])
        return np.count_nonzero(np.abs(self.diagonal) <= THRESHOLD * largest) > WEAK * self.n

    @functools.cached_property
    def may_be_quasidefinite(self) -> bool:
        """Whether a symmetric A, whose diagonal is weak but has no zero, is to be factored with these pivots.

        Those of interior-point methods are (Vanderbei 1995), and partial pivoting would cost up to a thousand times as
        much. Of others the residual tells, at little cost.
        """
        if not self.symmetric or not np.all(self.diagonal) or self.n**3 / 3 <= LITTLE:
            return False
        return CHEAPER * self.cost(MMD)[1] < self.cost(COLAMD)[1]

    @property
    def asymmetry(self) -> float:
        return self.pattern.nnz / self.S.nnz - 1

    @of_pattern
    def hubs(self) -> Any:
        """[n], the rows of A + Aᵀ that MMD takes last."""
        degree = np.diff(self.pattern.indptr)
        return degree > max(HUB * np.mean(degree), np.sqrt(self.n))

    @of_pattern
    def orders(self) -> dict[str, np.ndarray]:
        """Those found by `order`."""
        return {}

    @of_pattern
    def made(self) -> dict[tuple[str, str], np.ndarray | None]:
        """By the kind of factors and SuperLU's ordering the order of those made; None: they were not accurate."""
        return {}

    def order(self, ordering: str) -> np.ndarray:
        """[n], SuperLU's order, cheaply: it factors this pattern with entries so small that it drops them."""
        if ordering == BLOCKS and self.blocks is not None:
            return self.blocks[1]
        if ordering not in self.orders:
            from scipy.sparse import linalg

            S, last = self.pattern, self.hubs & (ordering == MMD)  # as unordered pairs, in CSC too
            if ordering != MMD:
                S = with_data(self.S, np.ones(self.S.nnz))
                if not np.all(self.diagonal):  # A[matching] has the same order, and entries on the diagonal
                    S = S + scipy.sparse.eye_array(self.n) if self.matching is None else S[self.matching]
            col = np.repeat(np.arange(self.n, dtype=S.indices.dtype), np.diff(S.indptr))
            places, values = (S.indices, S.indptr), np.where(S.indices == col, 1, 1e-9)
            if np.any(last):
                kept = ~(last[S.indices] | last[col]) | (S.indices == col)
                places, values = ((S.indices[kept], col[kept]),), values[kept]
            like = scipy.sparse.csc_array((values, *places), shape=S.shape)
            options: Any = {"drop_tol": 0.5, "fill_factor": 1, "options": {"SymmetricMode": ordering == MMD}}
            made = linalg.spilu(like, permc_spec=ordering, panel_size=1, **options)
            order = np.argsort(made.perm_c)
            self.orders[ordering] = np.concatenate([order[~last[order]], order[last[order]]])
        return self.orders[ordering]

    def cost(self, ordering: str) -> tuple[float, float]:
        """Entries and multiplications of the factors in an order of SuperLU's.

        With pivots on the diagonal they are twice the columns of the Cholesky factor of A + Aᵀ, and their squares.
        Partial pivoting gives at most those of AᵀA (George and Ng 1985). Where COLAMD is taken for a weak diagonal, it
        is the geometric mean of both. Without Numba it is the envelope.
        """
        if ordering == BLOCKS and self.blocks is not None:
            return self.blocks[2]
        order = self.order(ordering)
        try:
            found, *_ = column_counts(self.pattern, order)
            if ordering == COLAMD and self.wants_pivots:
                found = np.sqrt(np.multiply(found, column_counts(_by_rows(self.S, order), order)[0]))
        except ImportError:
            return self.envelope
        entries, work = found
        return 2 * float(entries), float(work)

    @functools.cached_property
    def _cost(self) -> tuple[float, float]:
        is_quick = self.ordering != MMD or MMD in self.orders or self.n <= FREE or self.rough_cost[1] <= SLOW
        is_wide = not is_quick and self.envelope[1] > self.n * (WIDE * self.n) ** 2
        if is_wide and (rough := self.cost(COLAMD))[1] > SLOW:
            return rough
        return self.cost(self.ordering)

    @property
    def factor_entries(self) -> float:
        """Entries of the factors that SuperLU makes, mostly within a factor of 2, and rather from above."""
        return self._cost[0]

    @property
    def factor_work(self) -> float:
        """Multiplications of the factorization, likewise."""
        return self._cost[1]

    def check_memory(self, free: Any = None) -> None:
        """ValueError: the memory, the host's if `free` is None, does not hold the factors."""
        if self.n <= FREE:
            return
        free = free or arguments.memory.of_host
        bytes_of_one = COPIES * (self.S.dtype.itemsize + 4)
        cure = "use a Krylov method with precond.multigrid or precond.ilu"

        def check(entries: float) -> None:
            what = f"the factors of A, of about {entries:.2g} entries,"
            arguments.check_free_memory(int(bytes_of_one * entries), what, cure, free)

        try:
            check(self.envelope[0])  # from above
        except ValueError:
            check(self.factor_entries)


def nbytes_of(tree: Any) -> int:
    """Bytes of the arrays in a pytree, and of those of SciPy's matrices."""
    parts = [vars(a) if scipy.sparse.issparse(a) else a for a in jax.tree.leaves(tree)]
    return sum({id(a): a.nbytes for a in jax.tree.leaves(parts) if hasattr(a, "nbytes")}.values())


def inverse(order: np.ndarray) -> np.ndarray:
    """[n], the place of each number in an order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def with_data(S: Any, data: np.ndarray) -> Any:
    """The pattern of S in canonical CSC with other values; SciPy's constructor takes 30 µs."""
    made = copy.copy(S)
    made.data, made.has_canonical_format = data, True
    return made


def column_counts(pattern: Any, order: np.ndarray) -> tuple[tuple[float, float], np.ndarray, np.ndarray]:
    """Of the Cholesky factor of a symmetric pattern in CSR, in an order of elimination.

    Returns:
      The sums of the columns' entries and of their squares; [n], the entries of each column; [n], the parents in the
      elimination tree.
    """
    n = len(order)
    ptr, col = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32)
    parent, count = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    over_rows(elimination.column_counts, n, 8 * n, ptr, col, order.astype(np.int64), parent, count, rows=n)
    return (float(np.sum(count)), float(np.sum(count.astype(float) ** 2))), count, parent


def filled(pattern: Any, counts: np.ndarray, parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n + 1] and [fill], where each column of the Cholesky factor begins, and its rows below the diagonal.

    Args:
      pattern: symmetric, in CSR, in its order of elimination.
      counts, parent: of `column_counts`.
    """
    n, start = len(counts), np.append(0, np.cumsum(counts - 1))
    below = np.zeros(start[-1], np.int32)
    ptr, col = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32)
    over_rows(elimination.filled, n, 2 * n, ptr, col, parent, start, below, rows=n)
    return start, below


def _by_rows(S: Any, order: np.ndarray) -> Any:
    """A pattern with the factor of AᵀA: each row of A joins its first column in the order to its others."""
    rows, place = S.tocsr(), inverse(order)
    full = np.flatnonzero(np.diff(rows.indptr))
    sizes = np.diff(rows.indptr)[full]
    first = order[np.minimum.reduceat(place[rows.indices], rows.indptr[full])]
    ones = np.ones(rows.nnz, np.int8)
    star = scipy.sparse.csr_array((ones, (np.repeat(first, sizes), rows.indices)), shape=S.shape)
    return scipy.sparse.csr_array(star + star.T)
