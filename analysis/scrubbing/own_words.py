"""The words of one report that are private wherever they stand: its host, its user, its environment's secrets.

They are found where nsys writes them down, so that a name of a range or kernel which repeats one can be told.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from analysis.errors import NotAReport
from analysis.readers.arrow_sql import Database
from analysis.readers.sqlite_file import read_only_uri

# Table, the row's name there, and which word stands for the value in a copy.
_VALUES = (
    ("TARGET_INFO_SYSTEM_ENV", "Hostname", "host"),
    ("META_DATA_EXPORT", "EXPORT_HOST", "host"),
    ("META_DATA_EXPORT", "EXPORT_USER", "user"),
    ("EXPORT_META_DATA", "EXPORT_HOST", "host"),
    ("EXPORT_META_DATA", "EXPORT_USER", "user"),
    ("META_DATA_CAPTURE", "DEVICE_DISPLAY_NAME", "host"),
    ("META_DATA_CAPTURE", "%USER_NAME", "user"),
)
_VARIABLES = "META_DATA_CAPTURE", "%ENVIRONMENT_VARIABLE"
_VARIABLE = re.compile(r'(\w+)="?(.*?)"?$', re.DOTALL)
_WORD_OF_VARIABLE = (
    (re.compile(r"(?i)(?:\w*_)?(?:\w*key|token|secret|passw(?:or)?d|pass|credentials?|pat)(?:_\w*)?"), "secret"),
    (re.compile(r"USER|LOGNAME|USERNAME|SUDO_USER"), "user"),
    (re.compile(r"HOSTNAME|HOST|CONTAINER_NAME|SLURMD_NODENAME"), "host"),
)
# Shorter words, and these, stand in names for other reasons.
SHORTEST = {"secret": 8, "host": 5, "user": 5}
EVERYBODYS = re.compile(
    r"(?i)localhost|ubuntu|debian|jovyan|admin|nobody|docker|python|runner|kaggle|colab|worker|\d+"
)


def own_words(report: Path) -> dict[str, str]:
    """Return each private word of a report, and the word that stands for it in a copy.

    Raises NotAReport where the report cannot be read.
    """
    columns = Database(report).columns
    try:
        with closing(sqlite3.connect(read_only_uri(report), uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            found = list(_candidates(_Pairs(connection, columns)))
    except (sqlite3.Error, UnicodeError) as error:
        raise NotAReport(f"{report} is damaged: {error}. Export it again.") from error
    return {
        value: word for value, word in found if len(value) >= SHORTEST[word] and not EVERYBODYS.fullmatch(value)
    }


class _Pairs:
    """Tables of names and values."""

    def __init__(self, connection: sqlite3.Connection, columns: Mapping[str, tuple[str, ...]]) -> None:
        self.connection, self.columns = connection, columns

    def values(self, table: str, name: str) -> list[str]:
        """Return the values of a name; SQL's wildcards stand in it."""
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
