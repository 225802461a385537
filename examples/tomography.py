"""Travel-time tomography between two boreholes: a damped least-squares problem.

Every ray is a row with the lengths of its pieces in the cells. The rays cross at small angles and determine some
patterns of cells badly, so the problem is damped: `lsmr` minimises ‖A·x − b‖² + damp²·‖x‖². The table has, for several
dampings, the misfit, the size of x, and its error, which is known because the data are made up.

    python examples/tomography.py [PICTURE.png]
"""

import sys

import jax
import numpy as np

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

N, POINTS = 24, 40  # cells a side; sources and receivers
NOISE = 2e-3
DAMPS = (0.0, 0.01, 0.03, 0.1, 0.3)


def rays():
    """The matrix [rays, cells], by midpoints of 400 pieces of each ray."""
    a, b = (
        v.ravel()
        for v in np.meshgrid(*2 * [(np.arange(POINTS) + 0.5) / POINTS])
    )
    t = (np.arange(400) + 0.5) / 400
    y = a[:, None] + (b - a)[:, None] * t
    cell = np.minimum((y * N).astype(int), N - 1) * N + (t * N).astype(int)
    piece = np.sqrt(1 + (b - a) ** 2) / t.size
    row = np.repeat(np.arange(a.size), t.size)
    return js.from_coo(
        row, cell.ravel(), np.repeat(piece, t.size), (a.size, N * N)
    )


def main():
    A = rays()
    x, y = np.meshgrid(*2 * [(np.arange(N) + 0.5) / N])
    truth = (
        0.3 * np.exp(-40 * ((x - 0.3) ** 2 + (y - 0.6) ** 2))
        - 0.2 * (np.abs(y - 0.2) < 0.06)
    ).ravel()
    rng = np.random.default_rng(0)
    times = A @ truth + NOISE * rng.standard_normal(A.shape[0])
    print(
        f"{A}\n{'damp':>8}{'iterations':>12}{'misfit':>10}{'size':>8}"
        f"{'error':>8}"
    )
    errors, found = [], []
    for damp in DAMPS:
        sol = js.lsmr(A, times, damp=damp, rtol=1e-8, maxiter=2000)
        misfit = np.linalg.norm(A @ sol.x - times) / np.linalg.norm(times)
        found.append(sol.x)
        errors.append(np.linalg.norm(sol.x - truth) / np.linalg.norm(truth))
        print(
            f"{damp:8}{int(sol.iterations):12}{misfit:10.4f}"
            f"{np.linalg.norm(sol.x):8.2f}{errors[-1]:8.2f}"
        )
    assert min(errors[1:-1]) < 0.7 * errors[0], "damping did not help"

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        best = int(np.argmin(errors))
        shown = {
            "true slowness": truth,
            "without damping": found[0],
            f"damp = {DAMPS[best]}": found[best],
        }
        figure, axes = pyplot.subplots(
            1, 3, figsize=(10, 3.5), layout="constrained"
        )
        for ax, (title, field) in zip(axes, shown.items(), strict=True):
            image = ax.imshow(
                field.reshape(N, N),
                cmap="RdBu_r",
                vmin=-0.3,
                vmax=0.3,
                origin="lower",
            )
            ax.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=axes)
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
