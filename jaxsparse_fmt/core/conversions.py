"""Whether the host converts a matrix that lies on an accelerator.

There each new size of a conversion compiles a dozen programs, in one to three seconds. The host takes a fifth of a
second and no program. It serves the first few conversions of a size, as one rents what one may not need for long; who
asks again and again gets programs, which then take a hundredth of the time. So nobody waits twice as long as needed.
"""

import itertools
from typing import Any

import jax

from jaxsparse_fmt._caches import remembered
from jaxsparse_fmt._tracing import PROGRAMS, is_on_cpu, is_traced, sizes

FEW = 2**24  # entries with which the host is done before the programs of a conversion are compiled
RENTED = 4  # conversions by the host that take as long as the compilation


def by_host(A: Any, what: str, **layout: Any) -> bool:
    """Whether the host converts A, one of ours: to `what`, with this layout.

    Always if it lies on CPUs; if on one accelerator, for the first times that a matrix of its sizes is converted so.
    """
    leaves = jax.tree.leaves(A)
    if is_traced(A):
        return False
    if is_on_cpu(leaves[0]):
        return True
    if A.nnz >= FEW or len(leaves[0].devices()) > 1 or not jax.sharding.get_abstract_mesh().empty:
        return False
    return times_asked((what, repr(layout), type(A), A.shape, A.dtype, sizes(A))) < RENTED


def times_asked(key: Any) -> int:
    """How many times this was called before with an equal key."""
    return next(_count(key))


@remembered(4 * PROGRAMS, "counts of conversions and operations")
def _count(key: Any) -> Any:
    del key
    return itertools.count()
