"""The transpose of a sparse matrix, as a view."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr, as_floating

if TYPE_CHECKING:
    from jaxsparse_fmt.matrix import SparseMatrix

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Transposed:
    """The transpose of `A`, a view on its arrays."""

    A: SparseMatrix

    ndim: ClassVar[int] = 2
    __array_ufunc__ = None

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

    def diagonal(self) -> Array:
        return self.A.diagonal()

    def todense(self) -> Array:
        return self.A.todense().T

    def to_scipy(self) -> Csr:
        return scipy.sparse.csr_array(self.A.to_scipy().T)

    def __repr__(self) -> str:
        return f"{self.A!r}.T"
