"""Tables and progress: plain where there is no terminal, and numbers that dense arithmetic confirms."""

from __future__ import annotations

import io
import math
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsparse_fmt import choose, gallery, report
from jaxsparse_fmt._types import readable_bytes


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def random_matrix(seed: int, n: int = 6, is_complex: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.integers(-2, 3, (n, n)).astype(float)
    return a + 1j * rng.integers(-2, 3, (n, n)) * (a != 0) if is_complex else a


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5e-7, "0.25 µs"),
        (8.3e-4, "830 µs"),
        (9.999e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (4.56, "4.56 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_durations_are_readable(seconds: float, text: str):
    assert report.duration(seconds) == text


def test_durations_add_up():
    assert report.durations({"read": 1.0, "solve": 2.0}) == "3 s: read 1 s, solve 2 s"


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (87_600_000, "87.6 MB"), (999_900, "1 MB"), (2.5e13, "25 TB")],
)
def test_bytes_are_readable(n_bytes: float, text: str):
    assert readable_bytes(n_bytes) == text


def test_bandwidth_counts_in_powers_of_ten():
    assert report.bandwidth(3e9, 0.5) == "6 GB/s"


@pytest.mark.parametrize("is_complex", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_asymmetry_finds_the_worst_place(is_complex: bool, seed: int):
    a = random_matrix(seed, is_complex=is_complex)
    i, j, excess = report.asymmetry(scipy.sparse.csr_array(a))
    difference = abs(a - a.conj().T)
    assert excess == pytest.approx(difference.max(), rel=1e-6)
    assert difference[i, j] == pytest.approx(difference.max(), rel=1e-6)


@pytest.mark.parametrize("is_complex", [False, True])
def test_asymmetry_of_a_hermitian_matrix_is_zero_in_spite_of_rounding(is_complex: bool):
    a = random_matrix(3, is_complex=is_complex)
    a = a + a.conj().T
    a[1, 4] *= 1 + 1e-12
    assert report.asymmetry(scipy.sparse.csr_array(a))[2] == 0


def test_asymmetry_between_small_entries_is_seen_beside_huge_ones():
    a = np.diag([1e20, 1.0, 1.0])
    a[1, 2] = 0.5
    assert report.asymmetry(scipy.sparse.csr_array(a)) == (1, 2, pytest.approx(0.5, rel=1e-6))


def test_asymmetry_leaves_nan_to_the_solver():
    assert report.asymmetry(scipy.sparse.csr_array(np.array([[np.nan, 1.0], [1.0, 2.0]])))[2] == 0


def test_describe_agrees_with_dense_arithmetic():
    a = random_matrix(5, n=9)
    a[4] = 0
    row, col = np.nonzero(a)
    facts = dict(report.describe(scipy.sparse.csr_array(a)))
    lengths = (a != 0).sum(axis=1)
    assert facts["nnz"].startswith(f"{row.size},")
    assert facts["row lengths"].startswith(f"min 0, mean {lengths.mean():.4g}, max {lengths.max()}")
    assert facts["empty rows"] == str((lengths == 0).sum())
    assert facts["diagonals"].startswith(f"{len(set(col - row))} of 17")
    assert facts["bandwidth"] == f"{(row - col).max()} below the main diagonal, {(col - row).max()} above"


@pytest.mark.parametrize(
    ("a", "word"),
    [
        ([[1, 2], [2, 1]], "symmetric"),
        ([[1, 2j], [-2j, 1]], "Hermitian"),
        ([[1, 2j], [2j, 1]], "symmetric"),
        ([[0, 2], [-2, 0]], "skew-symmetric"),
        ([[1, 2], [3, 1]], "of the pattern only"),
        ([[1, 2], [0, 1]], "none; 67% of the entries have a mirror image in the pattern"),
        ([[1, 2, 3]], "none: not square"),
        ([[0]], "symmetric"),
    ],
)
def test_symmetry_is_named(a: list[list[complex]], word: str):
    assert dict(report.describe(scipy.sparse.csr_array(np.array(a))))["symmetry"] == word


def test_describe_tells_what_an_order_would_bring():
    n = 40
    chain = scipy.sparse.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1]).toarray()
    shuffled = np.random.default_rng(0).permutation(n)
    a = chain[shuffled][:, shuffled]
    row, col = np.nonzero(a)
    told = dict(report.describe(scipy.sparse.csr_array(a)))["mean distance"]
    assert told == f"{np.abs(row - col).mean():.1f} from the diagonal, 1.0 with reorder='rcm'"
    assert "mean distance" not in dict(report.describe(scipy.sparse.csr_array(a[:3])))


def test_few_entries_in_two_billion_columns_are_described_in_little_memory():
    n = 2 * 10**9
    wide = scipy.sparse.csr_array((np.ones(3), (np.array([0, 1, 2]), np.array([0, 1, n - 1]))), (3, n))
    tracemalloc.start()
    try:
        facts = dict(report.describe(wide))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10**6
    assert facts["diagonals"] == f"2 of {n + 2:,} hold entries"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 3)])
def test_a_matrix_without_entries_can_be_described(shape: tuple[int, int]):
    assert report.describe(scipy.sparse.csr_array(shape))


def test_tables_are_plain_in_a_pipe_and_take_file_names_as_they_are(capsys):
    name = "[bold]:smile: " + "long " * 20
    report.print_out(report.facts(name, [("key", name)]))
    out = capsys.readouterr().out
    assert out.count(name.strip()) == 2
    assert "\x1b" not in out


def test_the_ranking_lists_every_choice_with_its_bytes(capsys):
    S = gallery.poisson(5)
    choices = choose.rank(S)
    report.print_out(report.ranking("Formats", choices))
    lines = capsys.readouterr().out.splitlines()
    for choice in choices:
        assert any(line.split()[:1] == [choice.format] and choice.reason in line for line in lines)


def test_progress_in_a_pipe_is_one_line_a_stage(capsys):
    with report.Progress() as stages:
        for name in ("read", "solve"):
            with stages.stage(name, "something"):
                for i in range(1000):
                    stages.show(f"iteration {i}", 0.5)
    captured = capsys.readouterr()
    assert captured.err == "read: something\nsolve: something\n"
    assert captured.out == ""
    assert list(stages.seconds) == ["read", "solve"]


def test_long_stages_speak_up_in_a_pipe(capsys, monkeypatch):
    monkeypatch.setattr(report, "PLAIN_PERIOD", 0.0)
    with report.Progress() as stages, stages.stage("solve", "something"):
        stages.show("iteration 7", 0.5)
    assert capsys.readouterr().err == "solve: something\nsolve: iteration 7\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_live_and_goes_away(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(report, "LIVE_PERIOD", 0.0)
    with report.Progress() as stages, stages.stage("solve", "something"):
        stages.show("iteration 7", 0.5)
        stages._live.refresh()
    text = terminal.getvalue()
    assert "iteration 7" in text
    assert text.endswith("\x1b[2K")  # the line is erased


def test_no_color_is_heeded_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    report.print_out(report.ranking("Formats", choose.rank(gallery.poisson(3))))
    assert "\x1b[3" not in terminal.getvalue() and "\x1b[9" not in terminal.getvalue()


@given(st.floats(), st.floats(), st.floats())
def test_any_residual_can_be_shown(start: float, target: float, norm: float):
    shown = []
    report.residuals(lambda detail, share: shown.append((detail, share)), start, target)(12345, norm)
    detail, share = shown[0]
    assert "iteration 12,345" in detail
    assert 0 <= share < 1 and not math.isnan(share)


def test_the_bar_counts_decades():
    shares = []
    progress = report.residuals(lambda _, share: shares.append(share), 1e3, 1e-3)
    for norm in (1e3, 1.0, 1e-2):
        progress(1, norm)
    assert shares == pytest.approx([0, 1 / 2, 5 / 6])
