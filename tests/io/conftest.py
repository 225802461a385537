"""The fixture of the tests that read files."""

import pathlib
from collections.abc import Callable

import pytest

Write = Callable[..., pathlib.Path]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def to(text: str | bytes, name: str = "a.mtx") -> pathlib.Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return to
