"""The private words of one report: the user, host, home folders and secrets in its environment and metadata.

Because they are known, they are found in names however short they are, without a pattern.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from ..errors import NotAReport
from ..readers.sqlite import Database, read_only_uri
from ..vocabulary import PLAIN_WORDS
from .looks import LOOKS

# Table, the row's name there with SQL's wildcards, and the word that replaces the value in a copy.
_VALUES = (
    ("TARGET_INFO_SYSTEM_ENV", "Hostname", "host"),
    ("META_DATA_EXPORT", "EXPORT_HOST", "host"),
    ("META_DATA_EXPORT", "EXPORT_USER", "user"),
    ("META_DATA_EXPORT", "EXPORT_PARAM%PATH%", "path"),
    ("EXPORT_META_DATA", "EXPORT_HOST", "host"),
    ("EXPORT_META_DATA", "EXPORT_USER", "user"),
    ("META_DATA_CAPTURE", "DEVICE_DISPLAY_NAME", "host"),
    ("META_DATA_CAPTURE", "%USER_NAME", "user"),
    ("META_DATA_CAPTURE", "%WORKING_DIR%", "path"),
)
_VARIABLES = "META_DATA_CAPTURE", "%ENVIRONMENT_VARIABLE"
_VARIABLE = re.compile(r'(\w+)="?(.*?)"?$', re.DOTALL)
_WORD_OF_VARIABLE = (
    (
        re.compile(
            r"(?i)(?:\w*_)?(?:\w*key|\w*token|\w*secret|\w*passw(?:or)?d|pass|pwd|credentials?|pat|cookie)(?:_\w*)?"
        ),
        "secret",
    ),
    (re.compile(r"(?:\w+_)?(?:USER|LOGNAME|USERNAME|USER_NAME|ENTITY|ACCOUNT|AUTHOR_NAME|LOGIN)|MAIL"), "user"),
    (
        re.compile(
            r"(?:\w+_)?(?:HOSTNAME|HOST|NODENAME|NODE_NAME|NODELIST|CONTAINER_NAME|POD_NAME|ADDR|CLIENT|CONNECTION)"
        ),
        "host",
    ),
    (re.compile(r"(?:\w+_)?(?:HOME|PWD|DIR|PREFIX|PATH|TMP|TMPDIR|FOLDER|ENV|ROOT|CACHE)|_|SHELL|MAIL"), "path"),
)
# Shorter words, and these, occur in names for other reasons, as do words that mean something to the analysis.
SHORTEST = {"secret": 6, "host": 3, "user": 2, "path": 4, "address": 7}
LONG = 4
EVERYBODYS = re.compile(
    r"(?i)localhost|ubuntu|debian|jovyan|admin|nobody|docker|python|runner|kaggle|colab|worker|root|user|users|home|gpu|"
    r"cuda|node|host|none|null|true|false|local|default|data|mm|bmm|add|mul|ai|ml|dl|nn|op|fn|at|cu|fp|bf|io|id|opt|sum|max|min|all|run|"
    r"model|models|train|test|step|layer|\d+|"
    + "|".join(re.escape(word) for words in PLAIN_WORDS.values() for word in words)
)
# Folders that are the same on every machine.
PUBLIC_FOLDERS = re.compile(
    r"/?(?:usr|bin|sbin|lib|lib64|etc|opt|tmp|var|dev|proc|home|root|data|mnt|workspace|content|users)?"
    r"(?:/(?:local|bin|lib|lib64|sbin|cuda[\d.-]*|share|nvidia|conda|miniconda3?|tmp|log|run|spool|mail|sh|bash|zsh|env|python[\d.]*))*/?"
)
_SLASH = re.compile(r"[\\/]")
_BEFORE_USER = re.compile(r"(?i)homes?\d*|users?|u|people|staff|students?|mail")


def own_words(report: Path) -> dict[str, str]:
    """Return each private word of a report, and the word that replaces it in a copy.

    Raises NotAReport if the report cannot be read.
    """
    columns = Database(report).columns
    try:
        with closing(sqlite3.connect(read_only_uri(report), uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            found = list(_candidates(_Pairs(connection, columns)))
    except (sqlite3.Error, UnicodeError) as error:
        raise NotAReport(f"{report} is damaged: {error}. Export it again.") from error
    return words_of(found)


def words_of(candidates: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the words that are private, given (value, word), with those that a value is made of."""
    parts = [part for value, word in candidates for part in _PARTS[word](value.strip())]
    return {value: word for value, word in parts if len(value) >= SHORTEST[word] and not _is_public(value)}


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Match any of the words, whatever its case, and of a folder all below it; nothing if there is none."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(f"(?i)(?:{'|'.join(map(_bounded, longest_first)) or '(?!)'})")


def _bounded(word: str) -> str:
    """Match a word by itself; a long one also next to digits and before capitals, as in 2jdoeModel."""
    inside = re.escape(word) + (r"(?:[\\/][^\s\"'<>|]*)?" if _SLASH.search(word) else "")
    if len(word) < LONG:
        return rf"(?<![A-Za-z0-9]){inside}(?![A-Za-z0-9])"
    return rf"(?<![A-Za-z]){inside}(?-i:(?![a-z]))"


def _is_public(value: str) -> bool:
    return bool(EVERYBODYS.fullmatch(value) or PUBLIC_FOLDERS.fullmatch(value))


def _of_host(value: str) -> Iterator[tuple[str, str]]:
    """Yield a host's name, its short name, and the domain that it is in."""
    yield value, "host"
    first, _, domain = value.partition(".")
    if first and not first.isdigit():
        yield first, "host"
    if "." in domain and not domain.replace(".", "").isdigit():
        yield domain, "host"
    yield from ((value[begin:end], "address") for begin, end in LOOKS["address"](value))


def _of_path(value: str) -> Iterator[tuple[str, str]]:
    """Yield each folder of a search path, and who lives there."""
    for folder in re.split(r"(?<![A-Za-z]):|;", value):
        parts = _SLASH.split(folder)
        if len(parts) < 2 or PUBLIC_FOLDERS.fullmatch(folder):
            continue
        yield folder.rstrip("/\\"), "path"
        yield from ((name, "user") for above, name in pairwise(parts) if _BEFORE_USER.fullmatch(above))


def _of_user(value: str) -> Iterator[tuple[str, str]]:
    yield value, "user"
    if "@" in value:
        yield value.partition("@")[0], "user"
    if "/" in value:
        yield value.rstrip("/").rpartition("/")[2], "user"


_PARTS: Mapping[str, Callable[[str], Iterator[tuple[str, str]]]] = {
    "secret": lambda value: iter([(value, "secret")]),
    "host": _of_host,
    "user": _of_user,
    "path": _of_path,
}


class _Pairs:
    """Tables of names and values."""

    def __init__(self, connection: sqlite3.Connection, columns: Mapping[str, tuple[str, ...]]) -> None:
        self.connection, self.columns = connection, columns

    def values(self, table: str, name: str) -> list[str]:
        """Return the values of a name, which may contain SQL's wildcards."""
        if not {"name", "value"} <= set(self.columns.get(table, ())):
            return []
        sql = f"SELECT value FROM {table} WHERE name LIKE ? AND typeof(value) = 'text'"  # noqa: S608 - literals
        return [value for (value,) in self.connection.execute(sql, (name,))]


def _candidates(pairs: _Pairs) -> Iterator[tuple[str, str]]:
    for table, name, word in _VALUES:
        yield from ((value, word) for value in pairs.values(table, name))
    for variable in pairs.values(*_VARIABLES):
        yield from _of_variable(variable)


def _of_variable(text: str) -> Iterator[tuple[str, str]]:
    """Yield the value of an environment variable, `NAME="value"`, where its name says that it is private."""
    found = _VARIABLE.match(text)
    for pattern, word in _WORD_OF_VARIABLE if found else ():
        if found and pattern.fullmatch(found[1]):
            yield found[2], word
