"""Heat in an L-shaped plate by finite elements: assembled in one call, solved with multigrid, differentiated.

Heat flows through an L-shaped plate whose edge is cold and whose triangles each have a conductivity. `js.assembly`
sums the element matrices inside `jit`, so that the gradient of the mean temperature by all conductivities is one more
solve. The table has the iterations of `cg` on finer and finer meshes.

    python examples/fem.py [PICTURE.png]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import skfem
from skfem.helpers import dot, grad

import jaxsparse as js

jax.config.update("jax_enable_x64", True)


@skfem.BilinearForm
def diffusion(u, v, w):
    return dot(grad(u), grad(v))


@skfem.LinearForm
def heating(v, w):
    return v


class Plate:
    """Element matrices, their places among the unknowns inside, the load."""

    def __init__(self, refinements):
        self.mesh = skfem.MeshTri.init_lshaped().refined(refinements)
        basis = skfem.Basis(self.mesh, skfem.ElementTriP1())
        self.inside = self.mesh.interior_nodes()
        number = np.full(basis.N, -1)
        number[self.inside] = np.arange(self.inside.size)
        elements = diffusion.coo_data(basis)
        row, col = number[elements.indices]
        self.kept = (row >= 0) & (col >= 0)
        self.local = elements.data.reshape(
            -1, self.mesh.nelements
        )  # [9, triangles]
        n = self.inside.size
        self.pattern = js.assembly(row[self.kept], col[self.kept], (n, n))
        self.load = heating.assemble(basis)[self.inside]

    def matrix(self, conductivity):  # [triangles]
        return self.pattern((self.local * conductivity).ravel()[self.kept])


def main():
    print(f"{'unknowns':>9}{'cg':>6}{'with multigrid':>16}")
    for refinements in (3, 4, 5):
        plate = Plate(refinements)
        uniform = jnp.ones(plate.mesh.nelements)
        A = plate.matrix(uniform)
        M = js.precond.multigrid(A)
        plain, better = (
            js.cg(A, plate.load, M=m, rtol=1e-8).raise_for_status()
            for m in (None, M)
        )
        print(
            f"{A.shape[0]:9}{int(plain.iterations):6}"
            f"{int(better.iterations):16}"
        )

    @jax.jit
    def mean_temperature(conductivity, M):
        u = js.cg(plate.matrix(conductivity), plate.load, M=M, rtol=1e-12).x
        return plate.load @ u / plate.load.sum()

    mean, slope = jax.value_and_grad(mean_temperature)(uniform, M)
    step = np.random.default_rng(0).uniform(-1, 1, uniform.size)
    ahead, behind = (
        mean_temperature(uniform + s * 1e-4 * step, M) for s in (1, -1)
    )
    print(
        f"mean temperature {mean:.6f}; its derivative along a random change of "
        "the material:"
    )
    print(
        f"{'by the gradient':>18}: {slope @ step:.9f}\n{'by differences':>18}: "
        f"{(ahead - behind) / 2e-4:.9f}"
    )
    assert abs((ahead - behind) / 2e-4 - slope @ step) < 1e-5 * abs(
        slope @ step
    )

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        u = np.zeros(plate.mesh.nvertices)
        u[plate.inside] = better.x
        figure, axes = pyplot.subplots(
            1, 2, figsize=(10, 4.5), layout="constrained"
        )
        area = (
            np.abs(np.linalg.det(plate.mesh.mapping().A.transpose(2, 0, 1))) / 2
        )
        shades = {
            "temperature": u,
            "cooling by a better conductor there": -slope / area,
        }
        for ax, (title, values) in zip(axes, shades.items(), strict=True):
            image = ax.tripcolor(
                *plate.mesh.p,
                plate.mesh.t.T,
                values,
                cmap="magma",
                vmax=np.quantile(values, 0.995),
                rasterized=True,
            )
            ax.set(title=title, aspect="equal")
            figure.colorbar(image, ax=ax)
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
