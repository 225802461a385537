"""What all folders share: the types of matrices between folders, and the number of cores."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import numpy as np
import scipy

from jaxsparse_fmt._arguments import check_max_bytes
from jaxsparse_fmt._dtypes import scipy_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import is_traced

# A canonical CSR matrix: rows sorted, no duplicates, indices in range. A scipy.sparse.csr_array (SciPy ships no types)
# or `CsrArrays`.
Csr: TypeAlias = Any

Array: TypeAlias = jax.Array

# Cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_known(A: Any) -> None:
    """ValueError: A, which the host asks for, is traced."""
    if is_traced(A):
        raise ValueError(
            "to_scipy needs the numbers of the matrix, which are traced here; call it outside jit, grad and vmap, or "
            "hand A.data to a function of the host by jax.pure_callback"
        )


@pytree
@dataclasses.dataclass(frozen=True)
class CsrArrays:
    """A canonical CSR matrix whose arrays are on a device; the attributes are SciPy's. It unpacks into its arrays."""

    data: jax.Array
    indices: jax.Array
    indptr: jax.Array
    shape: tuple[int, int] = dataclasses.field(metadata={"static": True})

    @property
    def nnz(self) -> int:
        return self.data.shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter((self.data, self.indices, self.indptr))

    def to_scipy(self) -> Csr:
        """A copy on the host; 16-bit floats, which SciPy lacks, become float32. ValueError: it is traced."""
        check_known(self)
        arrays = map(np.array, self, (scipy_dtype(self.data.dtype), None, None))
        return scipy.sparse.csr_array(tuple(arrays), shape=self.shape)


@dataclasses.dataclass(frozen=True)
class Target:
    """The arguments of a conversion other than the matrix.

    Attributes:
      dtype: of the stored values.
      backend: of the new matrix's products; see `use_backend`.
      max_bytes: the largest padded storage to accept; None refuses what is out of proportion to the matrix.

    Raises:
      ValueError: `max_bytes` is below 0 or NaN. TypeError: it is no number.
    """

    dtype: np.dtype
    backend: str = "auto"
    max_bytes: float | None = None

    def __post_init__(self) -> None:
        check_max_bytes(self.max_bytes)
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
