"""Outputs of the site are made once, again where a source changes, and never half."""

from docs import kept
from tests.oracle import assert_refused


def test_outputs_are_made_again_only_where_a_source_changed_and_a_failure_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT", tmp_path / "kept")
    source, made = tmp_path / "source.py", []

    def make(folder):
        made.append(source.read_text())
        (folder / "out").write_text(made[-1])
        assert made[-1] != "fails"

    source.write_text("fails")
    assert_refused(lambda: kept.kept("what", [source], make), AssertionError, "fails")
    assert list(kept.KEPT.iterdir()) == []
    for text in ("1", "1", "2", "1"):
        source.write_text(text)
        assert (kept.kept("what", [source], make) / "out").read_text() == text
    assert made == ["fails", "1", "2"]
