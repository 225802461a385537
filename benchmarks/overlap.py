"""The overlap of kernels in a step of sharded cg: a profile by `jax.profiler`, as a table and a timeline.

    python -m benchmarks.overlap --devices 2 --json benchmarks/results/overlap.json
    python -m benchmarks.overlap --extents 256 256 32 --modes overlap naive vector

The matrix is the 7-point stencil of `benchmarks.scaling`, `--extents` points on each device. The trace has the start
and the length of every kernel, by stream. `hidden` is the fraction of an exchange's time in which another kernel runs
on the same device, `idle` the time in which no kernel runs. Figures are means over the devices, a step. Needs GPUs,
since the CPU's trace has no kernels.
"""

import collections
import dataclasses
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.profiler import ProfileData

from benchmarks import report
from benchmarks.scaling import on, stencil
from jaxsparse_fmt import plot
from jaxsparse_fmt.cli import measure
from jaxsparse_fmt.distributed.common_format import MODES
from solvers import cg

# By the names of kernels: those of the library, of NCCL and of XLA.
KINDS = {
    "reduction": re.compile(r"all_?reduce|psum", re.I),
    "exchange": re.compile(r"nccl|all_?to_?all|all_?gather|permute|sendrecv|memcpyp2p", re.I),
    "product": re.compile(r"sparse|product|columns", re.I),
}
COLOURS = {"product": "#0072B2", "vectors and others": "#8A8A8A", "exchange": "#D55E00", "reduction": "#CC79A7"}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Seconds since the first kernel of the trace."""

    stream: str
    name: str
    start: float
    stop: float

    @property
    def kind(self) -> str:
        return next((kind for kind, pattern in KINDS.items() if pattern.search(self.name)), "vectors and others")


def kernels_of(folder: Path) -> list[list[Kernel]]:
    """The kernels of each GPU in the trace under `folder`, by rising start."""
    (path,) = folder.rglob("*.xplane.pb")
    devices = []
    for plane in ProfileData.from_file(str(path)).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        found = [
            Kernel(line.name, event.name, event.start_ns / 1e9, (event.start_ns + event.duration_ns) / 1e9)
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]
        devices.append(sorted(found, key=lambda k: k.start))
    return devices


def covered(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of spans as disjoint ones, rising."""
    out: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], stop)
        else:
            out.append((start, stop))
    return out


def length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(stop - start for start, stop in spans)


def in_both(a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]]) -> float:
    """Seconds in the intersection of two lists of disjoint spans."""
    return sum(max(0.0, min(s[1], t[1]) - max(s[0], t[0])) for s in a for t in b if t[0] < s[1] and s[0] < t[1])


def steps_of(kernels: list[Kernel]) -> list[float]:
    """The start of each step's product, which is much longer than the product of a halo."""
    products = [k for k in kernels if k.kind == "product"]
    longest = statistics.median(sorted(k.stop - k.start for k in products)[-len(products) // 4 :])
    return [k.start for k in products if k.stop - k.start > longest / 2]


def account(kernels: list[Kernel]) -> dict[str, float]:
    """Microseconds a step of one device, in all, by kind of kernel and idle, and the hidden fraction of an exchange.

    Counts from the first product to the last, which leaves out the time before and after the loop.
    """
    first, *_, last = starts = steps_of(kernels)
    inside = [k for k in kernels if first <= k.start < last]
    micro = 1e6 / (len(starts) - 1)
    of = {kind: covered((k.start, k.stop) for k in inside if k.kind == kind) for kind in COLOURS}
    others = covered((k.start, k.stop) for k in kernels if k.kind not in ("exchange", "reduction"))
    busy = covered((k.start, min(k.stop, last)) for k in inside)
    exchange = length(of["exchange"])
    return {
        "µs a step": (last - first) * micro,
        **{f"{kind} µs": length(spans) * micro for kind, spans in of.items()},
        "hidden": in_both(of["exchange"], others) / exchange if exchange else float("nan"),
        "idle µs": (last - first - length(busy)) * micro,
    }


def by_name(kernels: list[Kernel], steps: int, most: int = 16) -> list[str]:
    """The kernels that take longest, a line each: times a step, microseconds a step."""
    found = collections.defaultdict(list)
    for k in kernels:
        found[k.name].append(k.stop - k.start)
    longest = sorted(found.items(), key=lambda item: -sum(item[1]))[:most]
    return [f"    {len(t) / steps:6.2f} × {statistics.median(t) * 1e6:7.1f} µs  {name[:90]}" for name, t in longest]


def usual(kernels: list[Kernel]) -> tuple[float, float]:
    """The start and the length of a step of usual length, one in which the loop does not wait for the host."""
    starts = steps_of(kernels)
    steps = np.diff(starts)
    at = int(np.argmin(abs(steps - np.median(steps)) + (np.arange(len(steps)) < len(steps) // 4)))
    begun = [k.start for k in kernels if k.kind == "exchange" and starts[at] - steps[at] / 2 < k.start < starts[at]]
    return min([starts[at], *begun]), float(steps[at])


def draw(path: Path, devices: list[list[Kernel]], title: str) -> None:
    """Draws a timeline of a step and a half: for each device its busiest stream, and all others together."""
    import matplotlib
    from matplotlib.figure import Figure

    start, step = usual(devices[0])
    start -= 0.1 * step
    rows: list[tuple[str, list[Kernel]]] = []
    for number, kernels in enumerate(devices):
        shown = [k for k in kernels if start <= k.start < start + 1.5 * step]
        busy = collections.defaultdict(float)
        for k in shown:
            busy[k.stream] += k.stop - k.start
        main = max(busy, key=busy.__getitem__)
        rows.append((f"GPU {number}", [k for k in shown if k.stream == main]))
        rows.append(("other streams", [k for k in shown if k.stream != main]))
    with matplotlib.rc_context(plot.STYLE):
        figure = Figure(figsize=(11, 1.8 + 0.5 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for kind, colour in COLOURS.items():
            for at, (_, kernels) in enumerate(rows):
                bars = [((k.start - start) * 1e6, (k.stop - k.start) * 1e6) for k in kernels if k.kind == kind]
                axes.broken_barh(bars, (at - 0.35, 0.7), facecolors=colour, label=None if at else kind)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel("µs")
        axes.set_title(title)
        figure.legend(frameon=False, ncols=len(COLOURS), loc="outside lower center")
        scratch = path.with_name(f".{path.name}")
        figure.savefig(scratch, dpi=150, format="png")
        scratch.replace(path)


def profile(A: Any, steps: int, one_reduction: bool) -> tuple[float, list[list[Kernel]]]:
    """Seconds of a step without a profiler, and the kernels of `steps` of them with one."""
    b = jnp.asarray(np.random.default_rng(0).standard_normal(A.shape[0]))
    took = measure.seconds_per_step(lambda *a, **k: cg(*a, one_reduction=one_reduction, **k), A, b, steps=250)
    run = jax.jit(lambda A, b: cg(A, b, rtol=0.0, maxiter=steps, one_reduction=one_reduction).x)
    jax.block_until_ready(run(A, b))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run(A, b))
        return took, kernels_of(Path(folder))


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, small=False, dtypes=False)
    parser.add_argument("--devices", type=int, default=len(jax.devices()), help="default: all")
    parser.add_argument(
        "--extents", type=int, nargs=3, default=(64, 512, 512), help="points a device; default 64 512 512"
    )
    parser.add_argument("--modes", nargs="+", default=["overlap"], choices=MODES)
    parser.add_argument("--one-reduction", action="store_true", help="that form of cg")
    parser.add_argument("--steps", type=int, default=100, help="in the trace; default 100")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    depth, *plane = args.extents
    problem = stencil((depth * args.devices, *plane), 7)
    header = report.provenance() | {"devices": str(args.devices), "steps": str(args.steps)}
    rows, longest = [], []
    for mode in args.modes:
        A = on(problem, jax.devices()[: args.devices], mode)
        took, devices = profile(A, args.steps, args.one_reduction)
        if not devices:
            parser.error("the trace has no GPU")
        each = [account(kernels) for kernels in devices]
        row = {"problem": problem.name, "mode": mode, "unprofiled µs": took * 1e6}
        rows.append(row | {key: statistics.mean(one[key] for one in each) for key in each[0]})
        longest += [f"{mode}, on the first device, a step:", *by_name(devices[0], args.steps)]
        if args.json and plot.available():
            title = f"A step of cg on {args.devices} GPUs, mode {mode}: {problem.name}"
            args.json.parent.mkdir(parents=True, exist_ok=True)
            draw(args.json.with_name(f"{args.json.stem}_{mode}.png"), devices, title)
    text = "\n".join([report.line(header), *report.section("overlap", rows), "", *longest])
    report.write(args.json, header, rows, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
