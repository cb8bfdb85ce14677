"""docs/troubleshooting.md under test: it quotes the product's messages, and its commands have their options."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from nvtx_kernels.analysis.measures.cpu_rules import CPU_RULES
from nvtx_kernels.analysis.measures.fix_rules import RULES
from nvtx_kernels.analysis.measures.job_rules import JOB_RULES

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


#: What the page says that each change is shown as: the first words that a rule prints of it.
SHOWN_AS = re.findall(r"^- \*\*Shown as\*\* (.*?)\n(?:- |\n)", NEW[-1].read_text(), re.MULTILINE | re.DOTALL)
#: A quote, which may have quotes in parentheses; those of idle time name a call of CUDA.
QUOTED = re.compile(r"\"(?!after cuda)((?:[^\"(]|\([^)]*\))+)\"")


@pytest.fixture(scope="module")
def texts_of_rules():
    sources = {inspect.getsourcefile(rule.find) for rule in (*RULES, *CPU_RULES, *JOB_RULES)}
    return [text for path in sources for text in texts_of(Path(path))]


def is_of(text, quote):
    """Return whether a quote is a part of a text, or all of one with its values filled in."""
    filled_in = ".+".join(map(re.escape, text.split("\0")))
    is_template = "\0" in text and any(len(part) > 5 for part in text.split("\0"))
    is_filled = is_template and re.fullmatch(filled_in, quote, re.IGNORECASE)
    return quote.lower() in text.lower() or bool(is_filled)  # a row begins with a capital letter


@pytest.mark.parametrize("quote", [quote for text in SHOWN_AS for quote in QUOTED.findall(text)])
def test_a_change_is_quoted_as_its_rule_words_it(quote, texts_of_rules):
    assert any(is_of(text, quote) for text in texts_of_rules)
