"""A least-squares inversion: the slowness of the ground between two boreholes, from travel times of straight rays.

Every ray is a row with the lengths of its pieces in the cells. The rays cross at small angles and determine some
patterns of cells badly, so the problem is damped: `lsmr` minimises ‖A·x − b‖² + damp²·‖x‖². The table has, for several
dampings, the misfit, the size of x, and its error, which is known because the data are made up.

    python examples/tomography.py
"""

import jax
import numpy as np

import jaxsparse_fmt as jsf
from solvers import lsmr

jax.config.update("jax_enable_x64", True)

N, POINTS = 24, 40  # cells a side; sources and receivers
NOISE = 2e-3


def rays():
    """The matrix [rays, cells] by midpoints of 400 short pieces of each ray from (0, a) to (1, b)."""
    a, b = (v.ravel() for v in np.meshgrid(*2 * [(np.arange(POINTS) + 0.5) / POINTS]))
    t = (np.arange(400) + 0.5) / 400
    y = a[:, None] + (b - a)[:, None] * t
    cell = np.minimum((y * N).astype(int), N - 1) * N + (t * N).astype(int)
    piece = np.sqrt(1 + (b - a) ** 2) / t.size
    row = np.repeat(np.arange(a.size), t.size)
    return jsf.from_coo(row, cell.ravel(), np.repeat(piece, t.size), (a.size, N * N))


def main():
    A = rays()
    x, y = np.meshgrid(*2 * [(np.arange(N) + 0.5) / N])
    truth = (0.3 * np.exp(-40 * ((x - 0.3) ** 2 + (y - 0.6) ** 2)) - 0.2 * (np.abs(y - 0.2) < 0.06)).ravel()
    rng = np.random.default_rng(0)
    times = A @ truth + NOISE * rng.standard_normal(A.shape[0])
    print(f"{A}\n{'damp':>8}{'iterations':>12}{'misfit':>10}{'size':>8}{'error':>8}")
    errors = []
    for damp in (0.0, 0.01, 0.03, 0.1, 0.3):
        sol = lsmr(A, times, damp=damp, rtol=1e-8, maxiter=2000)
        misfit = np.linalg.norm(A @ sol.x - times) / np.linalg.norm(times)
        errors.append(np.linalg.norm(sol.x - truth) / np.linalg.norm(truth))
        print(f"{damp:8}{int(sol.iterations):12}{misfit:10.4f}{np.linalg.norm(sol.x):8.2f}{errors[-1]:8.2f}")
    assert min(errors[1:-1]) < 0.7 * errors[0], "damping did not help"


if __name__ == "__main__":
    main()
