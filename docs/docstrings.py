"""What docstrings must not have, since the site would print nonsense of it."""

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
