"""Arguments in docstrings: what is none, of which the site would print nonsense, and `cg`'s for other methods."""

import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any


def not_arguments(function: Callable[..., Any], lines: Sequence[str]) -> list[str]:
    """What the section Args of a docstring describes as if it were an argument of the function."""
    if "Args:" not in lines:
        return []
    known, found = inspect.signature(function).parameters, []
    begin = lines.index("Args:") + 1
    for line in itertools.takewhile(lambda line: not line or line[0] == " ", itertools.islice(lines, begin, None)):
        if entry := re.match(r" {2}(\S.*?):( |$)", line):
            found += [name for word in entry[1].split(",") if (name := word.strip(" *")) not in known]
    return found


def all_arguments(function: Callable[..., Any], lines: Sequence[str], shared: Sequence[str]) -> list[str]:
    """The lines of a docstring whose Args describe every argument in the order of the signature.

    Args:
      shared: the docstring of the method whose arguments the function takes, too, for those that its own leaves out.
    """
    if "Args:" not in lines:
        return list(lines)
    begin, end = _args(lines)
    own, others = _entries(lines[begin:end]), _entries(shared[slice(*_args(shared))])
    found: list[list[str]] = []
    for name in inspect.signature(function).parameters:
        entry = own.get(name) or others.get(name, [])
        if entry not in found:  # one may describe several arguments
            found.append(entry)
    return [*lines[:begin], *itertools.chain(*found), *lines[end:]]


def _args(lines: Sequence[str]) -> tuple[int, int]:
    """Where the entries of the section Args begin and end."""
    begin = lines.index("Args:") + 1
    return begin, next((i for i in range(begin, len(lines)) if not lines[i].startswith("  ")), len(lines))


def _entries(lines: Sequence[str]) -> dict[str, list[str]]:
    """The lines of the entry that describes each argument."""
    found: dict[str, list[str]] = {}
    entry: list[str] = []
    for line in lines:
        if head := re.match(r"  (\*{0,2}\w[\w*, ]*):( |$)", line):
            entry = []
            found |= {name.strip(" *"): entry for name in head[1].split(",")}
        entry.append(line)
    return found
