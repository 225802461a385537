"""The ground state of electrons on a vibrating chain, and the derivative of its energy by the coupling.

Kreutzer et al. (2012) designed pJDS for the Holstein-Hubbard matrix; theirs is `holstein_hubbard(6, 6, 15)`. With the
coupling g of electrons and phonons the energy falls, and faster for larger g. Its slope is the derivative through
`eigsh`.

    python examples/ground_state.py [SITES ELECTRONS PHONONS]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import eigsh

jax.config.update("jax_enable_x64", True)

size = tuple(map(int, sys.argv[1:])) or (4, 4, 4)
free, coupled = (jsf.gallery.holstein_hubbard(*size, g=g) for g in (0.0, 1.0))
H = jsf.from_scipy(coupled, "pjds", block_size=32)
print(H)

ground = eigsh(H, 1, which="SA").raise_for_status()
energy = float(ground.eigenvalues[0])
print(f"g = 1: energy {energy:.12f} after {ground.products} products")
(scipys,) = spla.eigsh(coupled, 1, which="SA", return_eigenvectors=False)
print(f"SciPy's:      {scipys:.12f}")
assert abs(energy - scipys) < 1e-10 * abs(scipys), "the two disagree"

row, col = coupled.nonzero()
at_zero = jnp.asarray(free[row, col])  # H(g) is linear in g: its entries at g = 0 on the pattern of g = 1


@jax.jit
def energy_and_slope(g, H):
    def energy(g):
        return eigsh(H.with_data(at_zero + g * (H.data - at_zero)), 1, which="SA").eigenvalues[0]

    return jax.value_and_grad(energy)(g)


for g in np.linspace(0.0, 1.5, 7):
    energy, slope = energy_and_slope(g, H)
    print(f"g = {g:.2f}: energy {energy:10.6f}, dE/dg {slope:10.6f}")
