"""Stop and resume a training run and a long solve: both go on from a checkpoint.

The run: a whole matrix, the state of its optimizer, and a checkpoint of both. The solve: `cg` from the last x kept.

The matrix is a pytree, so Equinox writes it as it writes any model, and so does Orbax. `js.save` writes the matrix
alone, for other programs.

    python examples/checkpoint.py [PICTURE.png]
"""

import pathlib
import sys
import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import jaxsparse as js

optimizer = optax.adam(0.01)
S = js.gallery.poisson(8, dim=2)
x = np.linspace(0, 1, S.shape[0], dtype=np.float32)


@eqx.filter_jit
def step(A, state):
    """One step of Adam on ‖A·x − 1‖², over the entries of A."""
    loss, gradient = eqx.filter_value_and_grad(
        lambda A: jnp.sum((A @ x - 1) ** 2)
    )(A)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(A, updates), state, loss


def fresh():
    A = js.from_scipy(S, "hll", dtype="float32")
    return A, optimizer.init(eqx.filter(A, eqx.is_inexact_array))


def solved(A, b, folder, steps=1000, **settings):
    """As cg(A, b, **settings); goes on from the last x in the folder."""
    kept = ocp.CheckpointManager(
        folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)
    )
    like, last = jax.eval_shape(lambda: {"x": b}), kept.latest_step()
    x = (
        None
        if last is None
        else kept.restore(last, args=ocp.args.StandardRestore(like))["x"]
    )
    k = last or 0
    while True:
        sol = js.cg(A, b, x, maxiter=steps, **settings)
        x, k = sol.x, k + int(sol.iterations)
        kept.save(k, args=ocp.args.StandardSave({"x": x}))
        if sol.status != js.Status.MAXITER:
            kept.close()
            return sol


def main():
    (A, state), losses = fresh(), []
    for _ in range(50):
        A, state, loss = step(A, state)
        losses.append(loss)
    saved = A.values
    print(f"after 50 steps: loss {loss:.4f}")

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        eqx.tree_serialise_leaves(path / "run.eqx", (A, state))
        js.save(path / "matrix.npz", A)
        B, restored = eqx.tree_deserialise_leaves(path / "run.eqx", fresh())
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path / "orbax", (A, state))
            checkpointer.wait_until_finished()
            C, _ = checkpointer.restore(path / "orbax", jax.eval_shape(fresh))
        alone = js.load(path / "matrix.npz")
        L, b = (
            js.from_scipy(S, "hll", dtype="float32"),
            jnp.ones(S.shape[0], "float32"),
        )
        whole, again_from_disk = (
            solved(L, b, path / "solve", steps=5) for _ in range(2)
        )
        assert (
            whole.success
            and again_from_disk.success
            and again_from_disk.iterations == 0
        )

    for _ in range(50):
        A, state, loss = step(A, state)
        B, restored, again = step(B, restored)
        losses.append(again)
    assert np.array_equal(A.data, B.data)
    assert np.array_equal(C.values, saved)
    assert alone.nnz == S.nnz
    print(f"after 100 steps: loss {loss:.4f}, from the checkpoint {again:.4f}")

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
        ax.semilogy(losses[:50], label="before the checkpoint")
        ax.semilogy(range(50, 100), losses[50:], label="from the checkpoint")
        ax.set(title="loss", xlabel="step of Adam")
        ax.legend()
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
