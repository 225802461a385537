"""Tables: their words and numbers, plain where there is no terminal."""

import sys

from jaxsparse_fmt import gallery
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.cli import tables
from tests.cli.conftest import Terminal

SECONDS = {2.5e-7: "0.25 µs", 8.3e-4: "830 µs", 9.999e-4: "1 ms", 4.56: "4.56 s", 1234.5: "1,234 s"}
BYTES = {0: "0 B", 999: "999 B", 1000: "1 kB", 87_600_000: "87.6 MB", 999_900: "1 MB", 2.5e13: "25 TB"}


def test_durations_and_bytes_are_readable():
    assert [tables.duration(seconds) for seconds in SECONDS] == [*SECONDS.values()]
    assert [readable_bytes(n) for n in BYTES] == [*BYTES.values()]


def test_tables_are_plain_in_a_pipe_and_take_file_names_as_they_are(capsys):
    name = "[bold]:smile: " + "long " * 8
    tables.report(False, {}, tables.facts(name, [("key", name)]))
    out = capsys.readouterr().out
    assert out.count(name.strip()) == 2
    assert "\x1b" not in out


def test_no_color_is_heeded_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    tables.report(False, {}, tables.ranking("Formats", ranking.rank(gallery.poisson(3))))
    assert "\x1b[3" not in terminal.getvalue() and "\x1b[9" not in terminal.getvalue()
