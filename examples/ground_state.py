"""Ground state of electrons on a vibrating chain: its energy, and the derivative by the coupling.

Kreutzer et al. (2012) designed pJDS for the Holstein-Hubbard matrix; theirs is `holstein_hubbard(6, 6, 15)`. With the
coupling g of electrons and phonons the energy falls, and faster for larger g. Its slope is the derivative through
`eigsh`.

    python examples/ground_state.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg as spla

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

size = 4, 4, 4  # sites, electrons, phonons
free, coupled = (js.gallery.holstein_hubbard(*size, g=g) for g in (0.0, 1.0))
H = js.from_scipy(coupled, "pjds", block_size=32)
print(H)

ground = js.eigsh(H, 1, which="SA").raise_for_status()
energy = float(ground.eigenvalues[0])
print(f"g = 1: energy {energy:.12f} after {ground.products} products")
(scipys,) = spla.eigsh(coupled, 1, which="SA", return_eigenvectors=False)
print(f"SciPy's:      {scipys:.12f}")
assert abs(energy - scipys) < 1e-10 * abs(scipys), "the two disagree"

row, col = coupled.nonzero()
at_zero = jnp.asarray(
    free[row, col]
)  # H(g) is linear in g: its entries at g = 0 on the pattern of g = 1


@jax.jit
def energy_and_slope(g, H):
    def energy(g):
        return js.eigsh(
            H.with_data(at_zero + g * (H.data - at_zero)), 1, which="SA"
        ).eigenvalues[0]

    return jax.value_and_grad(energy)(g)


couplings = np.linspace(0.0, 1.5, 7)
energies, slopes = np.array([energy_and_slope(g, H) for g in couplings]).T
for g, energy, slope in zip(couplings, energies, slopes, strict=True):
    print(f"g = {g:.2f}: energy {energy:10.6f}, dE/dg {slope:10.6f}")

if len(sys.argv) > 1:
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
    ax.plot(couplings, energies, "o")
    for g, energy, slope in zip(couplings, energies, slopes, strict=True):
        ax.plot(
            [g - 0.1, g + 0.1],
            [energy - 0.1 * slope, energy + 0.1 * slope],
            color="tab:orange",
        )
    ax.set(
        title="energy, with its derivative as tangents",
        xlabel="coupling g",
        ylabel="energy",
    )
    figure.savefig(sys.argv[1])
