"""A Poisson problem on eight devices, which a laptop pretends to have: what travels, and the same answer as on one.

On a machine with GPUs, set DEVICES to their number.

    python examples/eight_devices.py [PICTURE.png]
"""

import os
import sys

DEVICES = 8
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count="
    f"{DEVICES}"
)

import jax  # noqa: E402  after the flags, which JAX reads once
import numpy as np  # noqa: E402

import jaxsparse as js  # noqa: E402

jax.config.update("jax_enable_x64", True)


def main():
    S = js.gallery.poisson(24)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), ("rows",))
    A, whole = js.shard(S, mesh), js.from_scipy(S)
    print(A.report())
    print(f"{'':14}{'iterations':>12}{'residual':>12}")
    answers, solved = [], {}
    for name, matrix in (("one device", whole), (f"{DEVICES} devices", A)):
        sol = js.cg(
            matrix, b, M=js.precond.jacobi(matrix), rtol=1e-10, history=True
        )
        solved[name] = sol.raise_for_status()
        answers.append(np.asarray(sol.x))
        print(
            f"{name:14}{int(sol.iterations):12}{float(sol.residual_norm):12.2e}"
        )
    difference = (
        np.abs(answers[0] - answers[1]).max() / np.abs(answers[0]).max()
    )
    print(f"the answers differ by {difference:.1e}")
    assert difference < 1e-8

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        rows_of = S.shape[0] // DEVICES  # rows a device, in order
        figure, axes = pyplot.subplots(
            1, 2, figsize=(10, 4.2), layout="constrained"
        )
        js.plot.spy(S, axes[0])
        for k in range(1, DEVICES):
            axes[0].axhline(k * rows_of, color="tab:orange", lw=0.8)
        axes[0].set_title("the rows of each device")
        js.plot.convergence(solved, axes[1], rtol=1e-10)
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
