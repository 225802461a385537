"""One format for all shards: chosen for the slowest shard, converted on the host, and padded to the same shapes."""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import scipy
from jax.sharding import Mesh

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.choose.ranking import Choice
from jaxsparse_fmt.core.matrix import CHOOSERS, FORMATS, SparseMatrix, build, check_format
from jaxsparse_fmt.distributed import padding
from jaxsparse_fmt.distributed.processes import everyones, of_each, together
from jaxsparse_fmt.formats.building import TooLarge
from jaxsparse_fmt.kernels.backends import selection

MODES = ("overlap", "naive", "vector")


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `shard` that decide the format."""

    mesh: Mesh
    mode: str
    format: str
    layout: dict[str, Any]
    target: Target

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        check_format(self.format, self.layout)
        if self.format == "tune":
            raise ValueError("format='tune' measures a matrix of one device; name what from_scipy took for some rows")


def in_one_format(csrs: dict[int, Csr], n_rows: int, request: Request) -> tuple[dict[int, SparseMatrix], str]:
    """The matrices of this process's shards, in the format, layout and shape that all shards share, of NumPy arrays;
    those with fewer than `n_rows` rows get empty ones. Errors as in `from_scipy`, in every process.
    """
    csrs = {k: _taller(csr, n_rows) for k, csr in csrs.items()}
    nnz = everyones(lambda: {k: csr.nnz for k, csr in csrs.items()}, request.mesh)
    largest = max(nnz, key=lambda k: (nnz[k], -k))
    name = request.format
    if name not in CHOOSERS:
        return _stored_as(name, request.layout, csrs, largest, request), f"in {name}, asked for"
    choices = _ranked(csrs, nnz, request)
    for place, choice in enumerate(choices):
        first = "first" if place == 0 else f"{place + 1}, the first that suits every shard,"
        why = f"in {choice.format}, ranked {first} of {len(choices)} for the slowest shard: {choice.reason}"
        # Sizes were estimated: padded to equal shapes, a format may be too large for a shard that is not the slowest.
        with contextlib.suppress(TooLarge) if choice is not choices[-1] else contextlib.nullcontext():
            return _stored_as(choice.format, choice.layout, csrs, largest, request), why
    raise AssertionError("the last choice is taken or raises")


def _taller(csr: Csr, n_rows: int) -> Csr:
    """The matrix with empty rows added below; canonical if it was."""
    indptr = np.pad(csr.indptr, (0, n_rows - csr.shape[0]), mode="edge")
    out = scipy.sparse.csr_array((csr.data, csr.indices, indptr), shape=(n_rows, csr.shape[1]))
    out.has_canonical_format = True
    return out


def _ranked(csrs: dict[int, Csr], nnz: dict[int, int], request: Request) -> list[Choice]:
    """Formats that suit every shard, by the time of the slowest shard: all others wait for it, padded to its size."""
    backend = selection.active_backend(request.target.backend)  # threads do not see `use_backend`
    rank = functools.partial(ranking.rank, dtype=request.target.dtype, backend=backend)
    best = functools.partial(together, lambda k: ranking.best_layouts(rank(csrs[k])), [*csrs])
    of_shard = everyones(best, request.mesh)
    least = min(1, max(nnz.values()))  # any format suits a shard without entries
    by_name = [{c.format: c for c in choices} for k, choices in of_shard.items() if nnz[k] >= least]
    common = [name for name in by_name[0] if all(name in choices for choices in by_name)]
    slowest = [max((choices[name] for choices in by_name), key=lambda c: c.cost) for name in common]
    slowest.sort(key=lambda c: c.cost)

    def fit() -> dict[int, set[str]]:
        first = min(csrs)
        fitting = ranking.fitting(slowest, csrs[first], request.target.dtype, request.target.max_bytes)
        return {first: {c.format for c in fitting}}

    everywhere = set.intersection(*everyones(fit, request.mesh).values())
    return [c for c in slowest if c.format in everywhere] or slowest[-1:]


def _stored_as(
    name: str, layout: dict[str, Any], csrs: dict[int, Csr], largest: int, request: Request
) -> dict[int, SparseMatrix]:
    def converted(k: int) -> SparseMatrix:
        with _arrays_on_host():  # a thread's own setting
            return build(csrs[k], name, request.target, **layout)

    matrices: dict[int, SparseMatrix] = {}

    def by_default() -> dict[int, Any]:
        matrices.update(together(converted, [*csrs.keys() & {largest}]))
        return {k: A.layout for k, A in matrices.items()}

    if not layout.keys() >= set(FORMATS[name].layout_options):  # all take what the largest shard gets
        layout = everyones(by_default, request.mesh)[largest]
    matrices |= of_each(converted, csrs.keys() - matrices.keys(), request.mesh)
    with _arrays_on_host():
        return padding.alike({k: matrices[k] for k in csrs}, request.mesh)


def _arrays_on_host() -> contextlib.AbstractContextManager[Any]:
    """A context in which conversions stay on the host, so that no shard passes through another shard's device."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return contextlib.nullcontext()
