"""Links that lead nowhere are found, and no others."""

import pytest

from docs import check_links


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("other.html", False),
        ("other.html#here", False),
        ("#top", False),
        ("https://example.org/nothing", False),
        ("mailto:a@example.org", False),
        ("missing.html", True),
        ("other.html#gone", True),
        ("#gone", True),
        ("folder/missing.png", True),
    ],
)
def test_a_link_is_broken_if_its_file_or_its_place_is_not_there(link, is_broken, tmp_path):
    (tmp_path / "index.html").write_text(f'<p id="top"><a href="{link}">x</a>')
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    assert check_links.broken(tmp_path) == ([f"index.html: {link}"] if is_broken else [])
