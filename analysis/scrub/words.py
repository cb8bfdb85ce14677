"""Which words of a text are public, and which belong to the report's own environment and are never copied.

Public words are those of words.txt and of this project's own tables. words.txt has the words of PyTorch's
operators, functions and classes, of kernels, of CUDA's calls, and of models and training programs. A name is
public if all its words are: many programs have such names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ..kernel_names.categories import MEANINGS
from ..kernel_names.category_rules import RULES
from ..measures.attention_parts import NAMES as ATTENTION_PARTS
from ..readers.written import ANNOTATED
from ..trace import Trace
from ..vocabulary import COPIED_WORD, LIBRARY_DOMAINS, PHASES, PLAIN_WORDS, RECOMPUTE, SETTING_HOOKS
from ..vocabulary.range_names import PHASE_NAMES, STEP_NAMES

WORDS_FILE = Path(__file__).with_name("words.txt")

# A token is what stands between blanks and punctuation, also where addresses write these as codes (%2F). What is
# not ASCII, and control characters, belong to tokens, and make them unknown.
PUNCTUATION = "%"
TOKEN = re.compile(r"%(?:20|2[FfCc]|3[ADad]|40|5[Cc])|(?:[A-Za-z0-9\x00-\x1f\x7f]|[^\x00-\x7f–—…·→×“”])+")
# A word, as camel case and digits divide a token: RMSNorm2 is RMS and Norm2; and what copies have for one.
WORD = re.compile(rf"(?i:{COPIED_WORD}num[0-9]+)|(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)[0-9]*|[0-9]+")
# Several numbers or hexadecimal digits that are joined: addresses, versions, dates, identifiers, ports.
JOINED = re.compile(
    r"(?<![A-Za-z0-9])(?:[0-9]+(?:\.[0-9]+)+|[0-9A-Fa-f]*(?:[:-]{1,2}[0-9A-Fa-f]+){2,}(?:\.[0-9A-Fa-f]+)*)(?![A-Za-z0-9])"
    r"|(?<=[A-Za-z0-9\]]):[0-9]{4,}(?![A-Za-z0-9])|(?:%[0-9A-Fa-f]{2}){2,}"
)
HEXADECIMAL = re.compile(r"(?=[A-Fa-f]*[0-9])(?=[0-9]*[A-Fa-f])[0-9A-Fa-f]{6,}")
MOST_DIGITS = 6
# More words, or more words of one or two letters, than this in one token are those of a key or a password.
MOST_WORDS, MOST_SHORT_WORDS = 8, 2
TILE = re.compile(r"[A-Za-z]{0,2}[0-9]+(?:x[0-9]+)+[A-Za-z]?[0-9]?")
# Words of kernels that are also those of machines' names and addresses.
NEVER = {"", "node", "nodes", "dev", "com", "org"}


@cache
def words() -> frozenset[str]:
    """Return the words that are known, in lower case."""
    lines = WORDS_FILE.read_text(encoding="ascii").splitlines()
    listed = {word for line in lines if not line.startswith("#") for word in line.split()}
    own_tables = (
        *(row.example for row in (*PHASE_NAMES, *STEP_NAMES)),
        *(rule.example for rule in RULES),
        *(word for names in PLAIN_WORDS.values() for word in names),
        *(*PHASES, *LIBRARY_DOMAINS, *MEANINGS, *ATTENTION_PARTS, *ANNOTATED, RECOMPUTE, SETTING_HOOKS),
    )
    named = {letters(word) for text in own_tables for word in WORD.findall(text)}
    tokens = {token.lower() for text in own_tables for token in TOKEN.findall(text) if not token.isdigit()}
    return frozenset(listed | named | {token for token in tokens if token.isascii()}) - NEVER


def letters(word: str) -> str:
    """Return a word in lower case without the digits that follow it."""
    return word.rstrip("0123456789").lower()


def is_plain(token: str) -> bool:
    """Return whether a token may be looked at word by word; else it is one word, which nothing knows."""
    parts = WORD.findall(token)
    short = sum(len(letters(part)) <= 2 and not part.isdigit() for part in parts)
    return (
        "".join(parts) == token
        and len(parts) <= MOST_WORDS
        and (short <= MOST_SHORT_WORDS or bool(TILE.fullmatch(token)))
        and all(len(part) - len(letters(part)) <= MOST_DIGITS for part in parts)
        and not HEXADECIMAL.fullmatch(token)
    )


# How torch.profiler's handlers name traces: after the host.
_FILE_OF_HOST = re.compile(r"(.+?)[_.]\d+\.\d+\.pt\.trace\.json(?:\.gz)?")
# Options are words of a program, and not of who runs it.
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
#: Folders and programs that are on many machines, as far as words.txt or kernels have their names.
EVERYBODYS = frozenset(
    """
    bin conda cuda cudnn data dist env gpu host include lib linux local models nccl nvidia nsight nsys nvtx opt
    packages profiling python run scratch share site src system systems target targets temp tmp torch triton x64
    """.split()  # noqa: SIM905
)
SHORTEST_NUMBER = 4


def own_words(trace: Trace) -> frozenset[str]:
    """Return the words of a report's surroundings, in lower case: of its users, hosts, folders and commands."""
    of_host = _FILE_OF_HOST.fullmatch(trace.provenance.file)
    return words_of([*trace.surroundings, *([of_host[1]] if of_host else [])])


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the words and tokens in texts; without single letters and small numbers."""
    lowered: set[str] = set()
    for text in texts:
        if not _OPTION.fullmatch(text):
            for token in TOKEN.findall(text):
                lowered |= {token.lower(), *(letters(word) or word for word in WORD.findall(token))}
    long_enough = {word for word in lowered if len(word) >= (SHORTEST_NUMBER if word.isdigit() else 2)}
    return frozenset(long_enough - EVERYBODYS)
