"""A basis of a small null space, by the eigenpairs of a Hermitian A nearest to 0, or those of Aᴴ·A."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsparse_fmt._tracing import is_traced
from jaxsparse_fmt.convert import from_scipy
from solvers import on_host
from solvers.core import arguments
from solvers.eigsh import eigsh

ROUNDING, LARGEST = 1e4, 1e-5  # times eps·‖A‖, and times ‖A‖: ‖A·z‖ of a null vector z


@arguments.door
def nullspace(A: Any, k: int = 6) -> Array:
    """Orthonormal vectors that A takes to 0, at most k, as `nullspace=` of `cg` and other solvers takes them.

    By factors of A, or of Aᴴ·A where A is not Hermitian, outside jit. If k vectors come back there may be more. A
    vector counts where ‖A·z‖ is rounding: at most 1e4·eps·‖A‖, in float32 1e-5·‖A‖. Left null vectors are those of Aᴴ.

    Args:
      A: [n, n] jaxsparse matrix on one device.
      k: below n.

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
    S = A.to_scipy().tocsr()
    size = abs(S).sum(axis=1).max()  # ‖A‖ from above
    is_hermitian = abs(S - S.conj().T).max() <= 10 * jnp.finfo(A.dtype).eps * size
    found = eigsh(A if is_hermitian else from_scipy((S.conj().T @ S).tocsr()), k, sigma=0).raise_for_status()
    Z = np.asarray(found.eigenvectors)
    strain = on_host.length(S @ Z)
    return jnp.asarray(Z[:, strain <= min(ROUNDING * jnp.finfo(A.dtype).eps, LARGEST) * size])
