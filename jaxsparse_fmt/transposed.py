"""The transpose of a sparse matrix, as a view."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr, as_floating

if TYPE_CHECKING:
    from jaxsparse_fmt.matrix import SparseMatrix

Array = jax.Array


class NoArray:
    """What is refused of a stored matrix, as a view or not, since NumPy and Python would make something else of it."""

    ndim: ClassVar[int] = 2
    __array_ufunc__ = None  # NumPy: leave x @ A to us

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a sparse matrix is no array; use A @ x, A.todense() or A.to_scipy()")

    def __add__(self, other: Any) -> NoReturn:
        raise TypeError(
            "A + B and A - B are not offered; matrices of one pattern add by A.with_data(A.data + B.data), others in "
            "SciPy: from_scipy(A.to_scipy() + B.to_scipy())"
        )

    __radd__ = __sub__ = __rsub__ = __add__

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(f"a stored matrix is not indexed, here by {index!r}; use A.to_scipy(), or A @ e for a column")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Transposed(NoArray):
    """The transpose of `A`, a view on its arrays."""

    A: SparseMatrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.A.shape[1], self.A.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.A.dtype

    @property
    def nnz(self) -> int:
        return self.A.nnz

    @property
    def T(self) -> SparseMatrix:
        return self.A

    @property
    def H(self) -> SparseMatrix:
        return self.A.H.A

    def matvec(self, y: Any) -> Array:
        return self.A._transposed(y)

    def rmatvec(self, x: Any) -> Array:
        return jnp.conj(self.A.matvec(jnp.conj(as_floating(x, "the vector"))))

    def __matmul__(self, y: Any) -> Array:
        return self.A._transposed(y)

    def __rmatmul__(self, x: Any) -> Array:
        return self.A.matvec(as_floating(x, "the vector").T).T

    def astype(self, dtype: Any) -> Transposed:
        return Transposed(self.A.astype(dtype))

    def __mul__(self, scalar: Any) -> Transposed:
        return Transposed(self.A * scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Transposed:
        return Transposed(self.A / scalar)

    def __neg__(self) -> Transposed:
        return Transposed(-self.A)

    def asformat(self, name: str, *, max_bytes: int | None = None, **layout: Any) -> SparseMatrix:
        """The transpose as a matrix of its own, through the host; arguments as in `SparseMatrix.asformat`.

        Raises:
          ValueError: inside jit, of a traced matrix; and as in `SparseMatrix.asformat`.
        """
        return self.A._turned(name, max_bytes=max_bytes, **layout)

    def diagonal(self) -> Array:
        return self.A.diagonal()

    def todense(self) -> Array:
        return self.A.todense().T

    def toarray(self) -> Array:
        return self.todense()

    def to_scipy(self) -> Csr:
        return scipy.sparse.csr_array(self.A.to_scipy().T)

    def __repr__(self) -> str:
        return f"{self.A!r}.T"
