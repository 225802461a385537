"""format="tune": the first few formats of the ranking, timed on this device; nothing is remembered."""

import dataclasses
import math

import jax

from jaxsparse_fmt._text import readable_seconds
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.choose.ranking import Choice
from jaxsparse_fmt.choose.timing import seconds_per_product
from jaxsparse_fmt.core.matrix import SparseMatrix, build
from jaxsparse_fmt.formats import building

CANDIDATES = 4  # formats that are timed
HOPELESS = 4.0  # times the predicted cost of the first, from which a format is not timed


def fastest(csr: Csr, target: Target) -> tuple[SparseMatrix, Choice]:
    """The canonical `csr` in the fastest of the formats that rank first, and that choice.

    Each is stored in its best layout and timed, one after the other; one that takes more memory than was estimated is
    left out. ValueError: no format fits `target.max_bytes` or the free memory.
    """
    choices = ranking.rank(csr, target.dtype, backend=target.backend)
    choices = ranking.fitting(choices, csr, target.dtype, target.max_bytes)
    few = ranking.best_layouts(choices)[:CANDIDATES]
    best: tuple[SparseMatrix, Choice] | None = None
    least = math.inf
    refusal: Exception | None = None
    for choice in few:
        if choice.cost > HOPELESS * few[0].cost and best:
            break
        try:
            A = build(csr, choice.format, target, **choice.layout)
            seconds = seconds_per_product(A)
        except (building.TooLarge, MemoryError, jax.errors.JaxRuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refusal = error
            continue
        if seconds < least:
            reason = f"the fastest of those measured, {readable_seconds(seconds)} a product"
            best, least = (A, dataclasses.replace(choice, reason=reason)), seconds
    if best is None:
        assert refusal is not None  # of every format
        raise refusal
    return best
