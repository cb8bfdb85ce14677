"""docs/troubleshooting.md under test: it quotes the product's messages, and its commands have their options."""

import ast
import re
from pathlib import Path

import pytest

from nvtx_kernels.__main__ import main

ROOT = Path(__file__).parents[2]
NEW = [
    ROOT / "docs" / f"{name}.md"
    for name in ("troubleshooting", "from_other_tools", "gallery", "tutorial", "known_changes")
]
QUOTES = re.findall(r"^> (.*)$", NEW[0].read_text(), re.MULTILINE)
#: What a message fills in: numbers, an optimizer's call, the name of a report.
FILLED = re.compile(r"[\d,]+%?|\S+\.step\(\)|\S+\.nsys-rep")
COMMAND = re.compile(r"nvtx-kernels ((?:view )?[a-z]+) ([^`#\n|]*)")
OF_REPORTS = ("record", "try", "compare", "page", "rank", "doctor", "scrub", "timeline", "view")


def texts_of(path):
    """Yield every text in a module, with a gap for each value that it fills in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def messages():
    sources = [path for room in ("analysis", "profiling") for path in (ROOT / room).rglob("*.py")]
    return [text for path in sources for text in texts_of(path)]


@pytest.mark.parametrize("quote", QUOTES)
def test_a_quoted_message_is_the_products(quote, messages):
    longest = max(FILLED.split(quote), key=len).strip(" :")
    assert any(longest in text for text in messages), longest


def commands_of(page):
    return [match for match in COMMAND.findall(page.read_text()) if match[0].split()[0] in OF_REPORTS]


@pytest.mark.parametrize("page", NEW, ids=lambda page: page.stem)
def test_every_option_of_a_page_exists(page, capsys):
    for name, words in commands_of(page):
        with pytest.raises(SystemExit):
            main([*name.split(), "--help"])
        known = set(re.findall(r"--?[\w-]+", capsys.readouterr().out))
        program = words.partition(".py")[0]  # what follows the program is the program's own
        assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", program)) - known == set(), (name, words)
