"""Outputs of the site are made once, again where a source changes, and never half."""

import pytest

from docs import kept


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file that outputs come from, with an empty folder of kept outputs."""
    monkeypatch.setattr(kept, "KEPT", tmp_path / "kept")
    path = tmp_path / "source.py"
    path.write_text("1")
    return path


def test_outputs_are_made_again_only_where_a_source_changed(source):
    made = []

    def make(folder):
        made.append(source.read_text())
        (folder / "out").write_text(made[-1])

    for text in ("1", "1", "2", "1"):
        source.write_text(text)
        assert (kept.kept("what", [source], make) / "out").read_text() == text
    assert made == ["1", "2"]


def test_a_failure_keeps_nothing(source):
    def fail(folder):
        (folder / "out").write_text("half")
        raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        kept.kept("what", [source], fail)
    assert list(kept.KEPT.iterdir()) == []
