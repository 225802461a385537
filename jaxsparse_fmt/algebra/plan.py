"""Plans by the names of their operations: `jsf.plan.matmul(A, B)`."""

import functools
from collections.abc import Callable

from jaxsparse_fmt._types import Parameters, Result
from jaxsparse_fmt.algebra import patterns, plans
from jaxsparse_fmt.algebra.assembly import assembly as assemble
from jaxsparse_fmt.algebra.plans import triple

__all__ = ["add", "assemble", "matmul", "multiply", "triple"]


def _comparing(make: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same function, whose plans compare the patterns of their operands with those for which they were made."""

    @functools.wraps(make)
    def plan(*operands: Parameters.args, **options: Parameters.kwargs) -> Result:
        return patterns.remember(make(*operands, **options), *operands)

    return plan


add, matmul, multiply = _comparing(plans.add), _comparing(plans.matmul), _comparing(plans.multiply)
