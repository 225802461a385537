"""A training run that stops and goes on: a whole matrix, its optimizer's state, and a checkpoint of both.

The matrix is a pytree, so Equinox writes it as it writes any model, and so does Orbax. `jsf.save` writes the matrix
alone, for other programs.

    python examples/checkpoint.py
"""

import pathlib
import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import jaxsparse_fmt as jsf

optimizer = optax.adam(0.01)
S = jsf.gallery.poisson(8, dim=2)
x = np.linspace(0, 1, S.shape[0], dtype=np.float32)


@eqx.filter_jit
def step(A, state):
    """One step of Adam on ‖A·x − 1‖², over the entries of A."""
    loss, gradient = eqx.filter_value_and_grad(lambda A: jnp.sum((A @ x - 1) ** 2))(A)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(A, updates), state, loss


def fresh():
    A = jsf.from_scipy(S, "hll", dtype="float32")
    return A, optimizer.init(eqx.filter(A, eqx.is_inexact_array))


def main():
    A, state = fresh()
    for _ in range(50):
        A, state, loss = step(A, state)
    saved = A.values
    print(f"after 50 steps: loss {loss:.4f}")

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        eqx.tree_serialise_leaves(path / "run.eqx", (A, state))
        jsf.save(path / "matrix.npz", A)
        B, restored = eqx.tree_deserialise_leaves(path / "run.eqx", fresh())
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path / "orbax", (A, state))
            checkpointer.wait_until_finished()
            C, _ = checkpointer.restore(path / "orbax", jax.eval_shape(fresh))
        alone = jsf.load(path / "matrix.npz")

    for _ in range(50):
        A, state, loss = step(A, state)
        B, restored, again = step(B, restored)
    assert np.array_equal(A.data, B.data)
    assert np.array_equal(C.values, saved)
    assert alone.nnz == S.nnz
    print(f"after 100 steps: loss {loss:.4f}, from the checkpoint {again:.4f}")


if __name__ == "__main__":
    main()
