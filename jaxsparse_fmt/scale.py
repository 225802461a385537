"""What cg on a matrix will do on more devices: by the model of `traffic`, and measured where the devices exist."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt import choose, measure, plot, report, traffic
from jaxsparse_fmt._arguments import at_least_one
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.matrix import FORMATS
from jaxsparse_fmt.partition import predict, rows
from jaxsparse_fmt.reorder import permuted

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclasses.dataclass(frozen=True)
class Point:
    """A step of cg on a number of devices.

    Attributes:
      exchange: how the halo travels, the kind that the model finds cheapest.
      step: what the model says.
      efficiency: T(1) / (devices·T(devices)) by the model.
      measured: seconds, None where that was not measured.
    """

    devices: int
    exchange: str
    load: traffic.Load
    step: traffic.Step
    efficiency: float
    measured: float | None = None


ABOUT = (
    "Predicts what a step of cg takes on more devices, and times it where they exist. A step is counted from the "
    "partition's entries and halo; bandwidths and latencies are those of H200s with NVLink unless given."
)
COUNTS = [1, 2, 4, 8, 64, 1024]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options that are about devices."""
    usual = traffic.Machine()
    add = parser.add_argument
    counts = lambda text: [at_least_one(part) for part in text.split(",")]  # noqa: E731
    add("--devices", type=counts, default=COUNTS, metavar="N,N", help=f"default {','.join(map(str, COUNTS))}")
    add("--mode", choices=traffic.MODES, default="overlap", help="how the halo meets the product; default overlap")
    add("--one-reduction", action="store_true", help="cg with one reduction a step")
    add("--by", choices=rows.CUTS, default="nnz", help="how rows are cut; default nnz")
    add("--reorder", choices=("rcm",), help="renumber the unknowns first")
    for name, text in (("memory", "of a device's memory"), ("link", "within a host"), ("network", "between hosts")):
        default = getattr(usual, name) / 1e9
        add(f"--{name}", type=_positive, default=default, metavar="B", help=f"GB/s {text}; default {default:g}")
    text = f"devices of a host; default {usual.per_host}"
    add("--per-host", type=at_least_one, default=usual.per_host, metavar="N", help=text)
    add("--measure", action="store_true", help="time steps on the CPU too; on GPUs it is always done")


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < np.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def ordered(S: Csr, args: argparse.Namespace) -> Csr:
    """S, canonical CSR, with its unknowns in the order that `args.reorder` names: on one device as on many."""
    return permuted(S, rows.partition(S, 1, args.by, args.reorder).perm)[0]


def points(S: Csr, args: argparse.Namespace, dtype: np.dtype) -> list[Point]:
    """The model's prediction for each number of devices, in the format that ranks first on GPUs, of those that shards
    can have where there is more than one. T(1) is plain cg's: one device waits for no reductions.

    Args:
      S: `ordered`, square.
      args: of `add_arguments`.
      dtype: of values and vectors.
    """
    machine = traffic.Machine(
        memory=args.memory * 1e9, link=args.link * 1e9, network=args.network * 1e9, per_host=args.per_host
    )
    ranked, value = choose.rank(S, dtype, "gpu"), dtype.itemsize
    best, of_shards = ranked[0], next(c for c in ranked if not FORMATS[c.format].shares_places)
    entry_bytes = lambda count: (best if count == 1 else of_shards).nbytes / max(S.nnz, 1)  # noqa: E731
    one = traffic.Load(1, S.shape[0], S.nnz, entry_bytes=entry_bytes(1), value_bytes=value)
    alone, found = traffic.cg_step(one, machine).seconds, []
    for count in args.devices:
        sizes = {"entry_bytes": entry_bytes(count), "value_bytes": value, "per_host": args.per_host}
        kind, load = predict.cheapest(predict.loads(S, count, args.by, **sizes), machine)
        step = traffic.cg_step(load, machine, args.mode, args.one_reduction and count > 1)
        found.append(Point(count, kind, load, step, alone / (count * step.seconds)))
    return found


def measured(
    found: list[Point],
    solver: Callable[..., Any],
    S: Csr,
    args: argparse.Namespace,
    dtype: np.dtype,
    show: Callable[[str, float], None] = lambda detail, share: None,
    remark: Callable[[str], None] = lambda text: None,
) -> list[Point]:
    """The points with a step timed on as many devices, where there are so many, of what the model predicts.

    Args:
      solver: cg, called as by `measure.seconds_per_step`, and with one_reduction.
      S: `ordered`.
      show: as a `report.Progress` has it.
      remark: takes why a point is not measured, where the solver ends after too few steps to time.
    """
    b = jnp.asarray(np.random.default_rng(0).standard_normal(S.shape[0]).astype(dtype))
    out = []
    for i, point in enumerate(found):
        if point.devices <= len(jax.devices()):
            show(f"cg on {point.devices} of {len(jax.devices())} devices", i / len(found))
            is_sharded, options = point.devices > 1, {}
            if is_sharded:
                exchange = "auto" if point.exchange == "none" else point.exchange
                options = {"mode": args.mode, "by": args.by, "exchange": exchange}
            stored = measure.store(S, dtype, devices=point.devices, **options)
            cg = functools.partial(solver, one_reduction=args.one_reduction and is_sharded)
            try:
                point = dataclasses.replace(point, measured=measure.seconds_per_step(cg, stored.A, b))
            except ValueError as error:
                remark(f"cg on {point.devices} device{'s' * is_sharded} is not measured: {error}")
        out.append(point)
    return out


def efficiencies(found: Sequence[Point]) -> list[float | None]:
    """T(1) / (devices·T(devices)) as measured; None where either is missing."""
    alone = next((p.measured for p in found if p.devices == 1), None)
    return [alone / (p.devices * p.measured) if alone and p.measured else None for p in found]


def draw(path: str | os.PathLike[str], title: str, found: Sequence[Point]) -> None:
    """A picture of both efficiencies; raises as `plot.check` does."""
    plot.draw_scaling(path, title, [p.devices for p in found], [p.efficiency for p in found], efficiencies(found))


COLUMNS = ("devices", "rows", "halo", "nnz most / mean", "exchange", "product", "exchange takes", "hidden", "sums")


def table(title: str, found: Sequence[Point]) -> RenderableType:
    """One row for each number of devices, and the two conditions of Kreutzer et al. under "exchange costs"."""
    of_measured = efficiencies(found)
    lines = []
    for point, real in zip(found, of_measured, strict=True):
        load, step = point.load, point.step
        nnz = np.asarray(load.nnz, float)
        times = (step.product, step.exchange, step.hidden, step.reductions)
        row = [f"{point.devices:,}", f"{int(np.max(load.rows)):,}", f"{int(np.max(np.add(load.near, load.far))):,}"]
        row += [f"{nnz.max() / (nnz.mean() or 1):.2f}", point.exchange, *map(report.duration, times)]
        row += [_condition(step), report.duration(step.seconds), _share(point.efficiency)]
        if any(p.measured for p in found):
            row += ["-" if point.measured is None else report.duration(point.measured)]
            row += ["-" if real is None else _share(real)]
        lines.append(row)
    heads = [*COLUMNS, "exchange costs", "a step", "efficiency"]
    heads += ["measured", "efficiency measured"] if any(p.measured for p in found) else []
    return report.comparison(title, heads, lines)


def _share(efficiency: float) -> str:
    return f"{efficiency:.2f}" if efficiency >= 0.095 else f"{efficiency:.2g}"


def _condition(step: traffic.Step) -> str:
    """By Kreutzer's conditions (3), a product lasts as long as the exchange, and (4), ten times as long."""
    if step.products == np.inf:
        return "nothing"
    return "> half" if step.products < 1 else "> a tenth" if step.products < 10 else "< a tenth"
