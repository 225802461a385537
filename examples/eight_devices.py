"""One system over eight devices, which a laptop pretends to have: what travels, and the same answer as on one.

On a machine with GPUs, run it with their number: python examples/eight_devices.py 4

    python examples/eight_devices.py [DEVICES]
"""

import os
import sys

count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"

import jax  # noqa: E402  after the flags, which JAX reads once
import numpy as np  # noqa: E402

import jaxsparse_fmt as jsf  # noqa: E402
from solvers import cg, precond  # noqa: E402

jax.config.update("jax_enable_x64", True)


def main():
    S = jsf.gallery.poisson(24)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("rows",))
    A, whole = jsf.shard(S, mesh), jsf.from_scipy(S)
    print(A.report())
    print(f"{'':14}{'iterations':>12}{'residual':>12}")
    answers = []
    for name, matrix in (("one device", whole), (f"{count} devices", A)):
        sol = cg(matrix, b, M=precond.jacobi(matrix), rtol=1e-10).raise_for_status()
        answers.append(np.asarray(sol.x))
        print(f"{name:14}{int(sol.iterations):12}{float(sol.residual_norm):12.2e}")
    difference = np.abs(answers[0] - answers[1]).max() / np.abs(answers[0]).max()
    print(f"the answers differ by {difference:.1e}")
    assert difference < 1e-8


if __name__ == "__main__":
    main()
