"""Lowering for an NVIDIA GPU on a machine that need not have one; and compiling for this one in less time."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

# What the text of a lowered program calls the kernels of each dialect.
SIGNATURES = {"triton": "xla.gpu.triton", "mosaic": "mosaic_gpu"}

# The same program from a compiler that tries less hard: half of the time, and compiling is most of a test's.
QUICK = {"xla_backend_optimization_level": 0}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


def gpus(**axes: int) -> AbstractMesh:
    """A mesh of GPUs that need not exist: axis names and sizes."""
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
    types = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types, abstract_device=device)


def lowered(f: Any, *args: Any, platforms: tuple[str, ...] = ("cuda",), mesh: AbstractMesh | None = None) -> str:
    """The program that XLA gets for f(*args); `mesh` is the one that a shard_map inside names."""
    with use_abstract_mesh(mesh or gpus()):
        return jax.jit(f).trace(*args).lower(lowering_platforms=platforms).as_text()


def equations(jaxpr: Any, inside: bool = False) -> Iterator[tuple[Any, bool]]:
    """The equations of a program and of those inside it, and whether they are in a Pallas call."""
    for eqn in jaxpr.eqns:
        within = inside or eqn.primitive.name == "pallas_call"
        yield eqn, within
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner, within)


def operations(f: Any, *args: Any) -> list[str]:
    """The names of the primitives that f(*args) runs, those in functions inside it too, but not in Pallas calls."""
    found = equations(jax.make_jaxpr(f)(*args).jaxpr)
    return [eqn.primitive.name for eqn, within in found if not within and eqn.primitive.name not in ("jit", "pjit")]


def calls(text: str, name: str) -> tuple[int, int]:
    """How often a lowered program calls a function of this name outside of its loops, and in them."""
    functions = {f[: f.index("(")]: f[f.index("\n") :] for f in re.split(r"func\.func \w+ @", text)[1:]}

    def count(function: str, inside: bool) -> Iterator[bool]:
        """Of each call, whether it is in a loop."""
        loop = ""  # the indentation of the loop around a line
        for line in functions[function].splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            loop = "" if loop and line == loop + "}" else loop or (indent if "stablehlo.while" in line else "")
            for called in re.findall(r"[ .]call @(\w+)\(", line):
                if re.fullmatch(name + r"(_\d+)?", called):
                    yield inside or bool(loop)
                else:
                    yield from count(called, inside or bool(loop))

    found = [*count("main", False)]
    return len(found) - sum(found), sum(found)
