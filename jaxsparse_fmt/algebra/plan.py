"""Plans by the names of their operations: `js.plan.matmul(A, B)`."""

from jaxsparse_fmt.algebra.assembly import assembly as assemble
from jaxsparse_fmt.algebra.plans import add, matmul, multiply, triple

__all__ = ["add", "assemble", "matmul", "multiply", "triple"]
