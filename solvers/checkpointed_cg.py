"""Conjugate gradients that write their state to disk, for solves longer than a job may run.

    folder/000000002000-3.npz    process 3 after 2000 iterations: its pieces of x and p, and the residual norm

A state is x and the last direction p alone: each run of `every` iterations begins with the true residual and a
direction conjugate to p (a reliable update, Clark et al. 2010, §5). A solve that continues from disk therefore gives
the result of an uninterrupted one, to the last bit.
"""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import in_trace, standard_promotion, whole_number
from jaxsparse_fmt.io.arrays import read_arrays, write_arrays
from solvers.cg import METHOD
from solvers.core.arguments import is_traced
from solvers.core.settings import DEFAULTS
from solvers.core.solve import solve
from solvers.solution import Solution, Status

VERSION = 2


@standard_promotion
def checkpointed_cg(
    A: Any,
    b: Any,
    folder: str | os.PathLike[str],
    *,
    every: int = 1000,
    M: Any = None,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
) -> Solution:
    """Solves A·x = b as `cg` does, and writes its state to a folder every `every` iterations.

    If the folder has a state, the solve continues from it; so call it in the same way after an interruption. Each
    process writes what its devices hold, whole or not at all, and keeps its last two states. Does not work inside jit.

    Args:
      A, b, M, rtol, atol, maxiter: as in `cg`; b is [n].
      folder: a folder for this solve alone; all processes may share it.
      every: iterations between two states; choose enough for the residual to fall, since a run of only a few does not
        detect that rounding keeps the residual from falling.

    Returns:
      A `Solution` without derivatives; its iterations count those before an interruption.

    Raises:
      ValueError: the folder has a damaged state, one of another number of processes, or one of another system.
      TypeError: inside jit, vmap or grad.
    """
    if is_traced((A, b, M)) or in_trace():
        raise TypeError("checkpointed_cg writes files, so it works outside jit, vmap and grad only; use cg there")
    folder, every = Path(folder), whole_number("every", every, 1)
    folder.mkdir(parents=True, exist_ok=True)
    settings = DEFAULTS | {"M": M, "rtol": rtol, "atol": atol}
    b = b if isinstance(b, jax.Array) else np.asarray(b)
    if b.ndim != 1:
        raise ValueError(f"b must be one vector, [n]; got shape {b.shape}")
    most = 10 * b.shape[0] if maxiter is None else whole_number("maxiter", maxiter, 0)

    def run(x: Any, p: Any, steps: int) -> tuple[Solution, Any]:
        return solve(METHOD, A, b, x, settings | {"maxiter": steps}, direction=p)

    zero = jnp.zeros_like(b, jnp.result_type(b.dtype, np.float32))
    sol, p = run(zero, zero, 0)
    x, k, b_norm = sol.x, _newest(folder), float(sol.residual_norm)
    if k >= 0:
        (x, p), norm = _read(_path(folder, k), x=x, p=p)
        sol, _ = run(x, p, 0)
        if not abs(float(sol.residual_norm) - norm) <= 1e-3 * norm + 1e-6 * b_norm:
            raise ValueError(
                f"{_path(folder, k)} is the state of another system: its residual norm was {norm:.6g} and is "
                f"{float(sol.residual_norm):.6g} with this A and b; name another folder, or remove that state"
            )
    k = max(k, 0)
    while sol.code == Status.MAXITER and k < most:
        sol, p = run(x, p, min(every, most - k))
        x, k = sol.x, k + int(sol.n_iterations)
        _write(folder, k, x=x, p=p, norm=sol.residual_norm)
    return Solution(x, sol.code, jnp.int32(k), sol.residual_norm, None)


def _path(folder: Path, k: int) -> Path:
    return folder / f"{k:012d}-{jax.process_index()}.npz"


def _own(folder: Path) -> list[int]:
    """The iterations of the states of this process, rising."""
    return sorted(int(path.name.split("-")[0]) for path in folder.glob(f"{'[0-9]' * 12}-{jax.process_index()}.npz"))


def _newest(folder: Path) -> int:
    """The iterations of the newest state that all processes have; -1 for none."""
    mine = _own(folder)
    newest = mine[-1] if mine else -1
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils  # slow to import

        newest = int(np.min(multihost_utils.process_allgather(np.array(newest))))
    return newest


def _pieces(a: jax.Array) -> list[tuple[str, Any]]:
    """The places of the pieces that this process holds, in words, and the pieces, each once."""
    return list({str(_start(s.index, a.shape)): np.asarray(s.data) for s in a.addressable_shards}.items())


def _start(index: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(of.indices(size)[0] for of, size in zip(index, shape, strict=True))


def _write(folder: Path, k: int, norm: Any, **vectors: jax.Array) -> None:
    arrays = {f"{name} {at}": piece for name, a in vectors.items() for at, piece in _pieces(a)}
    write_arrays(_path(folder, k), state=[VERSION, jax.process_count(), float(norm)], **arrays)
    for old in _own(folder)[:-2]:  # another process may have only the last but one
        _path(folder, old).unlink(missing_ok=True)


def _read(path: Path, **like: jax.Array) -> tuple[list[jax.Array], float]:
    """The vectors, placed and typed as those of `like`, and the residual norm."""
    wanted = {f"{name} {at}": piece for name, a in like.items() for at, piece in _pieces(a)}
    form = lambda a: (a.dtype, a.shape)  # noqa: E731
    try:
        version, processes, norm = read_arrays(path, "state")["state"].tolist()
    except ValueError as error:
        raise ValueError(f"{path} is damaged; remove it, and the solve goes on from the state before") from error
    ours, cure = (VERSION, jax.process_count()), "start the solve as before, or name another folder"
    if (version, processes) != ours:
        raise ValueError(
            f"{path} has format {version:g}, of {processes:g} processes; this is {ours[0]}, of {ours[1]}; {cure}"
        )
    try:
        arrays = read_arrays(path, *wanted)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged, or of other devices; {cure}; if it is damaged, remove it, and the solve goes on from "
            "the state before"
        ) from error
    if any(form(arrays[name]) != form(piece) for name, piece in wanted.items()):
        raise ValueError(f"{path} is of other devices or dtypes; {cure}")

    def vector(name: str, a: jax.Array) -> jax.Array:
        return jax.make_array_from_callback(a.shape, a.sharding, lambda at: arrays[f"{name} {_start(at, a.shape)}"])

    return [vector(name, a) for name, a in like.items()], norm
