"""The pictures of the documentation: the screen is today's, and all are small, shown and self-contained."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks.draw_pictures import DOCS, GALLERY, MOST_BYTES, OVERVIEW, SHOTS, screen

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def text_in(picture):
    """Return the text of a terminal's picture without its title, and without blanks, which are not drawn."""
    drawn = ElementTree.parse(picture).getroot()
    matrix = next(part for part in drawn.iter(f"{SVG}g") if part.get("class", "").endswith("-matrix"))
    return without_blanks("".join(text for part in matrix.iter(f"{SVG}text") for text in part.itertext()))


def without_blanks(text):
    return "".join(text.split())


def test_the_picture_of_the_screen_is_of_todays_screen(monkeypatch):
    monkeypatch.chdir(DOCS.parent)
    today = without_blanks(re.sub(r"\x1b\[[\d;]*m", "", screen()))
    assert text_in(OVERVIEW) == today, "python -m benchmarks.draw_pictures --screen draws it anew"


def test_the_picture_of_the_screen_loads_nothing_and_is_on_the_readme():
    text = OVERVIEW.read_text(encoding="utf-8")
    assert "url(http" not in text.replace('"', "")
    assert "@font-face" not in text
    assert f"(docs/{OVERVIEW.name})" in README.partition("## Try it")[0]


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_pictures_of_pages_are_small_and_shown(shot):
    assert 5_000 < (DOCS / f"{shot.name}.png").stat().st_size <= MOST_BYTES
    assert f"({shot.name}.png)" in (DOCS / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GALLERY)
def test_pictures_of_the_gallery_are_small_and_shown_with_words(name):
    assert 5_000 < (DOCS / "gallery_pictures" / f"{name}.png").stat().st_size <= MOST_BYTES // 2
    assert re.search(
        rf"!\[\w.*\]\(gallery_pictures/{name}\.png\)", (DOCS / "gallery.md").read_text(encoding="utf-8")
    )
