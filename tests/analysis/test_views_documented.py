"""What docs/views.md shows is what the views print."""

import re

import pytest

from tests.analysis.plain_sql import OURS
from tests.analysis.subjects import DATA, screen, viewed

PAGE = (DATA.parents[1] / "docs" / "views.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^## (\w+)\n\n```\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_shows_some_views():
    assert set(SHOWN) == {"explain", "balance", "attention"}


@pytest.mark.parametrize("name", SHOWN)
def test_every_paragraph_shown_is_printed(name):
    printed = screen(viewed(name, OURS, per_step=True, top=4)).split("\n\n")
    assert [
        part for part in SHOWN[name].split("\n\n") if part not in [text.rstrip("\n") for text in printed]
    ] == []
