"""Measurements: python -m benchmarks NAME [--small] [--only SECTION …] [--json OUT.json]

`python -m benchmarks NAME --help` has the options of one. They are:
"""

import ast
import importlib
import sys
from pathlib import Path

from benchmarks import report

NAMES = ("spmv", "solvers", "peers", "stages", "scaling", "factors", "solve_costs", "choices")


def main(argv: list[str]) -> int:
    """The exit code of the benchmark that the first argument names."""
    if argv and argv[0] in NAMES:
        return report.run(importlib.import_module(f"benchmarks.{argv[0]}"), argv[1:])
    print(__doc__)
    for name in NAMES:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        print(f"  {name:12} {(ast.get_docstring(ast.parse(source)) or '').splitlines()[0]}")
    return 0 if argv in ([], ["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
