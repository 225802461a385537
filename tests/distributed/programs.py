"""Compiles products, solves and a gradient for many devices of the CPU and prints what their programs hold, as JSON.

    python -m tests.distributed.programs 64 strips
    python -m tests.distributed.programs 64 boxes

Runs in a process of its own, since XLA counts the devices of the CPU once.
"""

import json
import math
import os
import re
import sys
from typing import Any

COLLECTIVES = ("all-reduce", "all-gather", "collective-permute", "all-to-all", "reduce-scatter")


def counted(lines: list[str]) -> dict[str, int]:
    """How many of each collective."""
    text = "\n".join(lines)
    return {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}


# Results of these operations are arrays of others: arguments, and the state of loops.
PASSED = ("parameter", "get-tuple-element", "bitcast", "tuple", "while", "conditional", "call")


def facts(text: str) -> dict[str, Any]:
    """The longest array that the program makes, the longest that a collective moves, and each loop's collectives."""
    computations: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.endswith("{") and "(" in line and not line.startswith((" ", "HloModule")):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            computations[name] = []
        elif name:
            computations[name].append(line)

    def lengths(lines: list[str]) -> list[int]:
        found = re.findall(r"\b(?:pred|[sufc]\d+)\[([\d,]*)\]", "\n".join(lines))
        return [math.prod(int(n) for n in dims.split(",") if n) for dims in found]

    bodies = re.findall(r"body=%?([\w.\-]+)", text)
    moves = [
        line.split(" = ")[1].split("(")[0] for line in text.splitlines() if any(f" {c}" in line for c in COLLECTIVES)
    ]
    made = re.findall(r"^ +(?:ROOT )?%?[\w.\-]+ = (.+?) ([\w\-]+)\(", text, re.MULTILINE)
    return {
        "longest": max(lengths([shape for shape, operation in made if operation not in PASSED])),
        "moved": max(lengths(moves), default=0),
        "collectives": counted(text.splitlines()),
        "loops": [c for c in (counted(computations[body]) for body in bodies) if any(c.values())],
    }


def main(devices: int, what: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxsparse_fmt as jsf
    from jaxsparse_fmt.distributed import halo
    from solvers import cg, lsmr, precond

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((devices,), ("rows",))
    side = 64 if devices <= 64 else 128  # so that the devices divide the entries
    S = jsf.gallery.poisson((side, side))
    halo.ROUND = -(2**60)  # permutes, though the pieces are small
    A = jsf.shard(S, mesh, format="ell", by="rows" if what == "strips" else jsf.boxes((side, side), devices))
    b, d = A.basis.placed(np.ones(S.shape[0])), A.basis.placed(np.full(S.shape[0], 0.25))

    def loss(A, data, b):
        return jnp.sum(cg(A.with_data(data), b).x ** 2)

    programs = {
        "product": (lambda A, b: A @ b, A, b),
        "cg": (lambda A, b: cg(A, b).x, A, b),
        "with M": (lambda A, b, d: cg(A, b, M=d).x, A, b, d),
        "one reduction": (lambda A, b, d: cg(A, b, M=d, one_reduction=True).x, A, b, d),
        "gradient": (jax.grad(loss, argnums=(1, 2)), A, A.data, b),
        "least squares": (lambda A, b: lsmr(A, b).x, A, b),
    }
    if devices <= 64:  # set-ups run collectives, for which few cores have too many devices beyond
        W = precond.subdomains(np.ones(S.shape[0]), jsf.boxes((side, side), devices))
        preconditioners = {
            "block_jacobi": precond.block_jacobi(A, 8),
            "schwarz": precond.schwarz(A, precond.incomplete_cholesky),
            "coarse_space": precond.coarse_space(A, W, precond.block_jacobi(A, 8)),
        }
        programs |= {name: (lambda A, M, b: cg(A, b, M=M).x, A, M, b) for name, M in preconditioners.items()}
    texts = {name: str(jax.jit(f).lower(*given).compile().as_text()) for name, (f, *given) in programs.items()}
    return {
        "n": S.shape[0],
        "rounds": len(A.shards.halo.sizes),
        "programs": {name: facts(text) for name, text in texts.items()},
    }


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))
