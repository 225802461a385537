"""`jaxsparse scale`: predicts a step of a form of cg on more devices by the model of `traffic`, and times it where they
exist."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import solvers
from jaxsparse_fmt._types import Csr, readable_bytes
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.cli import arguments, measure, plots, process, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.distributed import estimate, row_partition
from jaxsparse_fmt.formats.order import permuted
from jaxsparse_fmt.models import traffic

if TYPE_CHECKING:
    from rich.console import RenderableType

HELP = "predict cg on more devices"
ABOUT = (
    "Predicts what a step of cg takes on more devices, and times it where they exist. The prediction counts the "
    "partition's entries and halo; bandwidths and latencies are those of H200s with NVLink unless given."
)
COUNTS = [1, 2, 4, 8, 64, 1024]
# Each form's `one_reduction`, and the vectors that a solve holds, b and x among them, as XLA allocates them on a CPU.
NAMES = {"one_reduction": "cg in one reduction", "multigrid": "cg with multigrid"}
METHODS = {"cg": (False, 9), "one_reduction": (True, 11), "multigrid": (False, 11)}


@dataclasses.dataclass(frozen=True)
class Point:
    """A step of cg on a number of devices.

    Attributes:
      exchange: the kind of exchange that the model finds cheapest.
      step: by the model.
      efficiency: T(1) / (devices·T(devices)) by the model.
      memory: bytes of the device that holds most, without the hierarchy of multigrid.
      halo_share: the fraction of the step in which exchanges run without a product beside them.
      measured: seconds; None: not measured.
    """

    devices: int
    exchange: str
    load: traffic.Load
    step: traffic.Step
    efficiency: float
    memory: float
    halo_share: float
    measured: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usual = traffic.Machine()
    add = parser.add_argument
    arguments.add_file(parser)
    counts = lambda text: [arguments.at_least_one(part) for part in text.split(",")]  # noqa: E731
    add("--devices", type=counts, default=COUNTS, metavar="N,N", help=f"default {','.join(map(str, COUNTS))}")
    add("--mode", choices=traffic.MODES, default="overlap", help="order of exchange and product; default overlap")
    text = "form of cg, or cg with multigrid, which is set up for that; default cg"
    add("--method", choices=METHODS, default="cg", help=text)
    add("--by", choices=row_partition.CUTS, default="nnz", help="how rows are cut; default nnz")
    add("--reorder", choices=("rcm",), help="renumber the unknowns first")
    for name, text in (("memory", "of a device's memory"), ("link", "within a host"), ("network", "between hosts")):
        default = getattr(usual, name) / 1e9
        add(
            f"--{name}", type=arguments.positive, default=default, metavar="B", help=f"GB/s {text}; default {default:g}"
        )
    text = f"devices of a host; default {usual.per_host}"
    add("--per-host", type=arguments.at_least_one, default=usual.per_host, metavar="N", help=text)
    add("--measure", action="store_true", help="time steps on the CPU too; on GPUs they always are")
    arguments.add_dtype(parser)
    arguments.add_plot(parser)


def run(args: argparse.Namespace) -> int:
    arguments.check_outputs(args)
    remarks: list[str] = []
    with Progress() as progress:
        with progress.stage("read", args.file):
            S = arguments.read_matrix(args)
        arguments.check_square(args.file, S)
        dtype = arguments.dtype_of(args, S.dtype)
        with progress.stage("count", "entries and halos of every partition"), arguments.blaming(args.file):
            S = permuted(S, row_partition.partition(S, 1, args.by, args.reorder).perm)[0]
            found = points(S, args, dtype)
        if args.measure or jax.default_backend() == "gpu":
            with progress.stage("measure", "cg"), arguments.word_length(dtype), arguments.blaming(args.file):
                found = measured(found, S, args, dtype, progress.show, remarks.append)
        title = f"{Path(args.file).name}: {NAMES.get(args.method, 'cg')} in {dtype}, mode {args.mode}"
        if args.plot:
            with arguments.drawing(args, progress):
                predicted = [p.efficiency for p in found]
                plots.draw_scaling(args.plot, title, [p.devices for p in found], predicted, efficiencies(found))
    for remark in remarks:
        process.complain(f"{args.file}: {remark}")
    record = {"file": args.file, "dtype": str(dtype), "mode": args.mode, "points": found}
    tables.report(args.json, record, table(f"{title}; predicted for {args.memory:g} GB/s of memory", found))
    return 0


def points(S: Csr, args: argparse.Namespace, dtype: np.dtype) -> list[Point]:
    """The model's prediction for each number of devices, in the format that ranks first on GPUs.

    T(1) is plain cg's, since one device waits for no reductions.

    Args:
      S: square, its unknowns in their final order.
    """
    machine = traffic.Machine(
        memory=args.memory * 1e9, link=args.link * 1e9, network=args.network * 1e9, per_host=args.per_host
    )
    best, value = ranking.rank(S, dtype, "gpu")[0], dtype.itemsize
    entry_bytes, unread = best.nbytes / max(S.nnz, 1), best.unread / max(S.nnz, 1)
    form, vectors = METHODS[args.method]
    M = solvers.precond.multigrid(S) if args.method == "multigrid" else None
    coarser = [] if M is None else [level.A.to_scipy() for level in M.levels[1:]]

    def point(count: int) -> Point:
        sizes = {"entry_bytes": entry_bytes, "value_bytes": value, "per_host": args.per_host}

        def of(S: Csr) -> tuple[str, traffic.Load]:
            loads = estimate.loads(S, count, args.by, **sizes)
            kind, _ = traffic.cheapest(loads, machine)
            return kind, loads[kind]

        kind, load = of(S)
        step = traffic.cg_step(load, machine, args.mode, form if count > 1 else False)
        if M is not None and M.levels:
            pairs = [(level.R.nbytes + level.P.nbytes) / count for level in M.levels]
            levels = list(zip([load, *(of(S)[1] for S in coarser)], pairs, strict=True))
            step = step + traffic.cycle(levels, M.coarse_inverse.shape[0], machine, args.mode)
        places = vectors * np.asarray(load.rows) + load.near + load.far
        memory = float(np.max(load.nnz * (load.entry_bytes + unread) + places * value))
        return Point(count, kind, load, step, 0, memory, (step.exchange - step.hidden) / step.seconds)

    alone = point(1).step.seconds
    of_counts = map(point, args.devices)
    return [dataclasses.replace(p, efficiency=alone / (p.devices * p.step.seconds)) for p in of_counts]


def measured(
    found: list[Point],
    S: Csr,
    args: argparse.Namespace,
    dtype: np.dtype,
    show: Callable[[str, float], None] = lambda detail, fraction: None,
    remark: Callable[[str], None] = lambda text: None,
) -> list[Point]:
    """The points with the same step timed, where there are as many devices.

    Args:
      S: as in `points`.
      show: of a `Progress`.
      remark: takes the reason where the solver ends after too few steps to time.
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
            cg = functools.partial(solvers.cg, one_reduction=METHODS[args.method][0] if is_sharded else False)
            if args.method == "multigrid":
                cg = functools.partial(cg, M=solvers.precond.multigrid(stored.A))
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


COLUMNS = ("devices", "rows", "halo", "nnz most / mean", "exchange", "product", "exchange takes", "hidden", "sums")
ENDS = ("exchange costs", "a step", "of it halo", "memory", "efficiency")


def table(title: str, found: Sequence[Point]) -> "RenderableType":
    """One row for each number of devices; "exchange costs" holds the two conditions of Kreutzer et al."""
    lines, has_measured = [], any(p.measured for p in found)
    for point, real in zip(found, efficiencies(found), strict=True):
        load, step = point.load, point.step
        nnz = np.asarray(load.nnz, float)
        times = (step.product, step.exchange, step.hidden, step.reductions)
        row = [f"{point.devices:,}", f"{int(np.max(load.rows)):,}", f"{int(np.max(np.add(load.near, load.far))):,}"]
        row += [f"{nnz.max() / (nnz.mean() or 1):.2f}", point.exchange, *map(tables.duration, times)]
        row += [_condition(step), tables.duration(step.seconds), f"{100 * point.halo_share:.0f} %"]
        row += [readable_bytes(point.memory), _two_digits(point.efficiency)]
        if has_measured:
            row += ["-" if point.measured is None else tables.duration(point.measured)]
            row += ["-" if real is None else _two_digits(real)]
        lines.append(row)
    heads = [*COLUMNS, *ENDS]
    return tables.comparison(title, heads + ["measured", "efficiency measured"] * has_measured, lines)


def _two_digits(efficiency: float) -> str:
    return f"{efficiency:.2f}" if efficiency >= 0.095 else f"{efficiency:.2g}"


def _condition(step: traffic.Step) -> str:
    """The cost of the exchange by Kreutzer's conditions (3), a product lasts as long, and (4), ten times as long."""
    if step.products == np.inf:
        return "nothing"
    return "> half" if step.products < 1 else "> a tenth" if step.products < 10 else "< a tenth"
