"""Plans by the names of their operations: `jsf.plan.matmul(A, B)`."""

from jaxsparse_fmt.algebra.plans import add, matmul, multiply, triple
from jaxsparse_fmt.algebra.plans import assembly as assemble

__all__ = ["add", "assemble", "matmul", "multiply", "triple"]
