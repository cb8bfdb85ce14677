"""Secrets in vendors' formats: the patterns of gitleaks (vendor/), which cut too much rather than too little.

gitleaks looks at source code, where a secret ends with a quote or a space; in names it may end with anything. Its
lists of what is allowed are left out, and so are the entropies below which it takes a match for a word, except for
the one rule that knows no maker's name or form.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RULES_FILE = Path(__file__).parent / "vendor" / "gitleaks.json"
# Rules about files and commands; what they look for is found by `looks.SECRET`.
LEFT_OUT = frozenset({"private-key", "kubernetes-secret-yaml", "curl-auth-user", "curl-auth-header"})
# What matches any assignment to a key: words of programs pass for a secret too, but for their entropy.
BY_NAME = "generic-api-key"
ENDINGS = (r"""(?:[\x60'"\s;]|\\[nr]|$)""", r"(?:[^\w-]|\z)")
ANY_ENDING = r"(?![A-Za-z0-9])"
# From Go's regular expressions to Python's: a flag inside a pattern then counts for all of it.
IN_PYTHON = (
    (re.compile(r"\(\?i\)"), ""),
    (re.compile(r"^\[\\w\.-\]\{0,50\}\?"), ""),  # finds nothing more, and takes fifty times as long
    (re.compile(r"\\z"), r"\\Z"),
    (re.compile(r"\[\[:alnum:\]\]"), "[A-Za-z0-9]"),
    (re.compile(r"\\b(?=\()|^\\b"), r"(?<![A-Za-z0-9])"),
    (re.compile(r"\\b$"), ""),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it is called, its pattern, and the entropy that what is matched must have at least."""

    id: str
    pattern: re.Pattern[str]
    least_entropy: float

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Yield what the rule finds to be a secret in a text."""
        for found in self.pattern.finditer(text):
            if (
                not self.least_entropy
                or entropy(next(filter(None, found.groups()), found[0])) >= self.least_entropy
            ):
                yield found


def secrets_in(text: str) -> list[tuple[int, int]]:
    """Return where the secrets in a text begin and end; they can overlap."""
    numbers = {number for word in _words().findall(text.lower()) for number in _rules_of(word)}
    return [found.span() for number in sorted(numbers) for found in _rule(number).found(text)]


def entropy(text: str) -> float:
    """Return the bits of a text's letters, by how often each occurs in it."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


@cache
def published() -> tuple[dict[str, object], ...]:
    """Return gitleaks' rules as published, except those left out."""
    return tuple(rule for rule in json.loads(RULES_FILE.read_text()) if rule["id"] not in LEFT_OUT)


@cache
def _keywords() -> dict[str, frozenset[int]]:
    """Return the rules, by number, that each word calls for."""
    rules: dict[str, set[int]] = {}
    for number, rule in enumerate(published()):
        for word in rule["keywords"]:  # type: ignore[attr-defined]
            rules.setdefault(word.lower(), set()).add(number)
    return {word: frozenset(numbers) for word, numbers in rules.items()}


@cache
def _words() -> re.Pattern[str]:
    """Match at each place where a keyword begins: the longest there."""
    longest_first = sorted(_keywords(), key=len, reverse=True)
    return re.compile(f"(?=({'|'.join(map(re.escape, longest_first))}))")


@cache
def _rules_of(word: str) -> frozenset[int]:
    """Return the rules of a keyword, and of those that it begins with."""
    found = (rules for other, rules in _keywords().items() if word.startswith(other))
    return frozenset().union(*found)


@cache
def _rule(number: int) -> Rule:
    rule = published()[number]
    pattern = str(rule["regex"])
    flags = re.IGNORECASE if "(?i)" in pattern else 0
    least = float(str(rule["entropy"])) if rule["id"] == BY_NAME else 0.0
    for ending in ENDINGS:
        pattern = pattern.replace(ending, ANY_ENDING)
    for theirs, ours in IN_PYTHON:
        pattern = theirs.sub(ours, pattern)
    return Rule(str(rule["id"]), re.compile(pattern, flags), least)
