"""The words of one report's own environment: users, hosts, folders and commands. They are in no copy of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from ..readers.nsys_tables import METADATA_TABLES
from ..readers.sqlite import Database
from .words import TOKEN, WORD, letters

#: Tables of names and values, and the names (with SQL's wildcards) of values whose words are the report's own.
VARIABLES = "%ENVIRONMENT_VARIABLE"
_EXPORT = ("EXPORT_HOST", "EXPORT_USER", "EXPORT_PARAM%PATH%", "EXPORT_PARAM%FILE")
_CAPTURE = ("DEVICE_DISPLAY_NAME", "%USER_NAME", "%WORKING_DIR%", "%:COMMAND%", "%:ARGUMENT%", VARIABLES)
VALUES = (
    ("TARGET_INFO_SYSTEM_ENV", "Hostname"),
    *product(METADATA_TABLES, _EXPORT),
    *product(("META_DATA_CAPTURE",), _CAPTURE),
)
_VARIABLE = re.compile(r'(\w+)="?(.*?)"?$', re.DOTALL)
# Variables that hold a user, a host, a folder or a command, and those that hold a secret. The others say how
# libraries are set.
_PRIVATE_VARIABLE = re.compile(
    r"(?:\w+_)?(?:USER|LOGNAME|USERNAME|NAME|ENTITY|ACCOUNT|LOGIN|MAIL|EMAIL|CONTACT|HOST|HOSTNAME|NODELIST|ADDR|ADDRESS"
    r"|CLIENT|CONNECTION|HOME|PWD|OLDPWD|DIR|PREFIX|PATH|TMP|TMPDIR|FOLDER|ENV|ROOT|CACHE|SHELL|COMMAND|ARGS|PROJECT|ID)|_",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"\w*(?:KEY|TOKEN|SECRET|PASSW|PASS|CREDENTIAL|COOKIE)\w*", re.IGNORECASE)
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


def own_words(database: Database) -> frozenset[str]:
    """Return the words of a report's environment, in lower case.

    Raises NotAReport if the report cannot be read.
    """
    texts: list[str] = []
    for table, name in VALUES:
        if {"name", "value"} <= set(database.columns.get(table, ())):
            sql = f"SELECT value FROM {table} WHERE name LIKE ? AND typeof(value) = 'text'"  # noqa: S608 - literals
            values = [value for (value,) in database.rows(sql, name)]
            texts += _of_variables(values) if name == VARIABLES else values
    return words_of(texts)


def _of_variables(variables: Iterable[str]) -> Iterator[str]:
    """Yield the values of those environment variables, `NAME="value"`, that can hold something private."""
    for variable in variables:
        assigned = _VARIABLE.match(variable)
        if assigned and _PRIVATE_VARIABLE.fullmatch(assigned[1]):
            yield assigned[2]
        elif assigned and _SECRET_VARIABLE.fullmatch(assigned[1]) and WORD.fullmatch(assigned[2]):
            yield assigned[2]  # a longer one is no name that is known


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the words and tokens in texts; without single letters and small numbers."""
    lowered: set[str] = set()
    for text in texts:
        if not _OPTION.fullmatch(text):
            for token in TOKEN.findall(text):
                lowered |= {token.lower(), *(letters(word) or word for word in WORD.findall(token))}
    long_enough = {word for word in lowered if len(word) >= (SHORTEST_NUMBER if word.isdigit() else 2)}
    return frozenset(long_enough - EVERYBODYS)
