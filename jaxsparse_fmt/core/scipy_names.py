"""SciPy's names, which all matrices share, and errors that name what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt._types import as_floating, check_keeps_imaginary, owned, requested_dtype
from jaxsparse_fmt.core.operators import Operators

Array = jax.Array


class ScipyNames(Operators):
    """SciPy's names, which stored, transposed and sharded matrices derive from a few members of their own.

    A subclass provides `shape`, `dtype`, `nnz`, `T`, `matvec`, `_transposed` (Aᵀ·y without conjugation), `_each` (the
    same matrix with a function applied to all of its values), `asformat` and `todense`.
    """

    ndim: ClassVar[int] = 2
    __array_ufunc__ = None  # NumPy then leaves x @ A to `__rmatmul__`

    if TYPE_CHECKING:
        T: Any
        dtype: Any
        shape: Any
        nnz: Any

        def matvec(self, x: Any) -> Array: ...
        def _transposed(self, y: Any) -> Array: ...
        def _each(self, f: Callable[[Array], Array]) -> Self: ...
        def asformat(self, name: str) -> Any: ...
        def todense(self) -> Array: ...

    # --------------------------------------------------------------------------------------------------- products

    def rmatvec(self, y: Any) -> Array:
        """Aᴴ·y, the adjoint as in SciPy; for real matrices the same as A.T @ y.

        Args:
          y: [n_rows] or [n_rows, p].
        """
        return _conjugate(self._transposed(_conjugate(as_floating(y, "the vector"))))

    def __matmul__(self, x: Any) -> Any:
        return self._times_matrix(x) if isinstance(x, ScipyNames) else self.matvec(x)

    def __rmatmul__(self, x: Any) -> Array:
        return self._transposed(as_floating(x, "the vector").T).T

    def dot(self, x: Any) -> Any:
        """A @ x; with a number A * x."""
        return self * x if np.ndim(x) == 0 else self @ x

    # ----------------------------------------------------------------------------------------------------- values

    def astype(self, dtype: Any) -> Self:
        """The same matrix with values of another dtype, for example bfloat16 under a float32 vector.

        Raises:
          TypeError: a dtype that cannot hold the values. ValueError: 64 bits while `jax_enable_x64` is off.
        """
        dtype = requested_dtype(dtype)
        check_keeps_imaginary(self.dtype, dtype)
        return self._each(lambda values: values.astype(dtype))

    def __mul__(self, scalar: Any) -> Self:
        if np.ndim(scalar) != 0:
            raise TypeError(
                "A * scales by one number; the product with a vector or a matrix is A @ x, and the product entry by "
                "entry of two matrices A.multiply(B)"
            )
        return self._each(lambda values: values * scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Self:
        return self * (1 / jnp.asarray(scalar))

    def __neg__(self) -> Self:
        return self._each(jnp.negative)

    def __abs__(self) -> Self:
        return self._each(jnp.abs)

    def conj(self) -> Self:
        """The matrix of the conjugate entries, not transposed; for the conjugate transpose use `H`."""
        return self._each(_conjugate)

    conjugate = conj

    @property
    def real(self) -> Self:
        return self._each(jnp.real)

    @property
    def imag(self) -> Self:
        return self._each(jnp.imag)

    def copy(self) -> Self:
        """The matrix itself: JAX's arrays cannot be written to."""
        return self

    @property
    def size(self) -> int:
        """`nnz`, by SciPy's name."""
        return self.nnz

    # ------------------------------------------------------------------------------------------------ conversions

    @property
    def H(self) -> Any:
        """The conjugate transpose; a view for real matrices, one copy of `values` for complex ones."""
        return self.conj().T

    def transpose(self, axes: tuple[int, int] | None = None, copy: bool = False) -> Any:
        """`T`, by SciPy's name.

        Raises:
          ValueError: axes in another order than (1, 0).
        """
        del copy
        if axes not in (None, (1, 0)):
            raise ValueError(f"a matrix has two axes to exchange, axes=(1, 0); got axes={axes!r}")
        return self.T

    def toarray(self) -> Array:
        """`todense`, by SciPy's name."""
        return self.todense()

    def tobsr(self) -> Any:
        return self.asformat("bsr")

    def tocoo(self) -> Any:
        return self.asformat("coo")

    def tocsc(self) -> Any:
        return self.asformat("csc")

    def tocsr(self) -> Any:
        """A matrix of this library in "csr", as `asformat` makes it; `to_scipy` gives SciPy's."""
        return self.asformat("csr")

    def todia(self) -> Any:
        return self.asformat("dia")

    # --------------------------------------------------------------------------------------------------- refusals

    def __len__(self) -> int:
        raise TypeError("the length of a matrix is ambiguous; use A.shape[0] for its rows, A.nnz for its entries")

    def __bool__(self) -> bool:
        raise ValueError(
            "the truth value of a matrix is ambiguous; write `A is not None` if A may be None, or `A.nnz > 0` to learn "
            "whether it has entries"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a sparse matrix is no array; use A @ x, A.todense() or A.to_scipy()")


def spmv(A: Any, x: Any, y: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Array:
    """alpha·A·x + beta·y. If beta is 0, NaNs of y do not spread, and y is not read unless beta is traced.

    Args:
      x: [n_cols] or [n_cols, p].
      y: [n_rows] or [n_rows, p], of the product's shape.

    Raises:
      ValueError: y is missing or has another shape while beta is not 0.
    """
    product = A @ x
    alpha, beta = (a.item() if isinstance(a, np.generic) else a for a in (alpha, beta))  # weak, as Python's numbers
    product = product if isinstance(alpha, (int, float)) and alpha == 1 else alpha * product
    if not isinstance(beta, Tracer) and np.ndim(beta) == 0 and beta == 0:
        return product
    if y is None or jnp.shape(y) != product.shape:
        got = "no y" if y is None else f"y of shape {jnp.shape(y)}"
        raise ValueError(f"beta={beta} adds beta·y, which needs y of shape {product.shape}; got {got}")
    y = owned(y)
    if isinstance(beta, Tracer):  # finite numbers of y stay, for the derivative with respect to beta
        y = jnp.where((beta == 0) & ~jnp.isfinite(y), 0, y)
    return product + beta * y


def _conjugate(a: Array) -> Array:
    return jnp.conj(a) if jnp.iscomplexobj(a) else a
