"""A basis of a small null space, by the eigenpairs nearest to 0 of a Hermitian A, or of [[0, A], [Aᴴ, 0]].

The eigenvalues of the latter are ± the singular values of A, of which Aᴴ·A has the squares: those below √eps·‖A‖ would
be rounding there, and a null vector one of many.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import Array

from jaxsparse_fmt._tracing import is_traced
from jaxsparse_fmt.convert import from_scipy
from solvers.core import arguments
from solvers.eigsh import eigsh

ROUNDING, LARGEST = 1e4, 1e-5  # times eps·‖A‖, and times ‖A‖: ‖A·z‖ of a null vector z


@arguments.door
def nullspace(A: Any, k: int = 6) -> Array:
    """Orthonormal vectors that A takes to 0, at most k, as `nullspace=` of `cg` and other solvers takes them.

    By factors of A, or of [[0, A], [Aᴴ, 0]] where A is not Hermitian, outside jit. If k vectors come back there may be
    more. A vector counts where ‖A·z‖ is rounding: at most 1e4·eps·‖A‖, in float32 1e-5·‖A‖. Left null vectors are those
    of Aᴴ.

    Args:
      A: [n, n] jaxsparse matrix on one device.
      k: of any size; n − 1 are the most that are looked for.

    Returns:
      [n, m], m ≤ k; [n, 0] if A is regular.

    Raises:
      ValueError, TypeError: as `eigsh`; A is traced. SolverError: the search failed.

    Examples:
      >>> L = js.from_scipy(sp.csgraph.laplacian(sp.eye_array(16, k=1) + sp.eye_array(16, k=-1)))
      >>> Z = js.nullspace(L)
      >>> Z.shape, bool(np.allclose(L @ Z, 0, atol=1e-12))
      ((16, 1), True)
    """
    if is_traced(A):
        raise ValueError("nullspace factors A on the host, and its values are traced here; call it outside jit")
    if not hasattr(A, "to_scipy"):
        raise TypeError(f"nullspace takes a jaxsparse matrix; got {type(A).__name__}")
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"nullspace takes a square matrix; got shape {tuple(A.shape)}")
    k = max(1, min(arguments.int_at_least(k, "k", 1), A.shape[0] - 1))
    S = A.to_scipy().tocsr()
    size = abs(S).sum(axis=1).max()  # ‖A‖ from above
    is_hermitian = abs(S - S.conj().T).max() <= 10 * jnp.finfo(A.dtype).eps * size
    both = None if is_hermitian else from_scipy(sp.block_array([[None, S], [S.conj().T, None]], format="csr"))
    found = eigsh(A if both is None else both, k if both is None else 2 * k, sigma=0).raise_for_status()
    # Of A in the span of the vectors, or of their parts that A multiplies, the least singular values.
    Q = np.linalg.svd(np.asarray(found.eigenvectors)[-A.shape[0] :], full_matrices=False)[0]
    strain, V = np.linalg.svd(S @ Q, full_matrices=False)[1:]
    Z = (Q @ V.conj().T)[:, ::-1][:, :k]
    null = strain[::-1][:k] <= min(ROUNDING * jnp.finfo(A.dtype).eps, LARGEST) * size
    return jnp.asarray(Z[:, null])
