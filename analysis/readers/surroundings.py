"""What nsys writes of a program's surroundings: who ran it, where and how. Scrub hides the words of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

#: Tables of names and values, with the names (as patterns) of values that name users, hosts, folders and commands.
VARIABLES = "*ENVIRONMENT_VARIABLE"
_EXPORT = ("EXPORT_HOST", "EXPORT_USER", "EXPORT_PARAM*PATH*", "EXPORT_PARAM*FILE")
TABLES = {
    "TARGET_INFO_SYSTEM_ENV": ("Hostname",),
    "META_DATA_EXPORT": _EXPORT,
    "EXPORT_META_DATA": _EXPORT,
    "META_DATA_CAPTURE": (
        *("DEVICE_DISPLAY_NAME", "*USER_NAME", "*WORKING_DIR*", "*:COMMAND*", "*:ARGUMENT*", VARIABLES),
    ),
}
_VARIABLE = re.compile(r'(\w+)="?(.*?)"?$', re.DOTALL)
# Variables that hold a user, a host, a folder or a command, and those that hold a secret. The others say how
# libraries are set.
_PRIVATE_VARIABLE = re.compile(
    r"(?:\w+_)?(?:USER|LOGNAME|USERNAME|NAME|ENTITY|ACCOUNT|LOGIN|MAIL|EMAIL|CONTACT|HOST|HOSTNAME|NODELIST|ADDR|ADDRESS"
    r"|CLIENT|CONNECTION|HOME|PWD|OLDPWD|DIR|PREFIX|PATH|TMP|TMPDIR|FOLDER|ENV|ROOT|CACHE|SHELL|COMMAND|ARGS|PROJECT|ID)|_",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"\w*(?:KEY|TOKEN|SECRET|PASSW|PASS|CREDENTIAL|COOKIE)\w*", re.IGNORECASE)
# A secret that is more than a word is no name that is known.
_ONE_WORD = re.compile(r"(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)[0-9]*|[0-9]+")


def surroundings(table: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the texts on a program's surroundings among a table's names and values."""
    patterns = TABLES[table]
    for name, value in rows:
        pattern = next((pattern for pattern in patterns if fnmatchcase(name.upper(), pattern.upper())), "")
        if pattern == VARIABLES:
            yield from _of_variable(value)
        elif pattern:
            yield value


def _of_variable(assignment: str) -> Iterator[str]:
    """Yield the value of an environment variable, `NAME="value"`, if it names something of the surroundings."""
    variable = _VARIABLE.match(assignment)
    if not variable:
        return
    name, value = variable.groups()
    is_word_of_secret = _SECRET_VARIABLE.fullmatch(name) and _ONE_WORD.fullmatch(value)
    if _PRIVATE_VARIABLE.fullmatch(name) or is_word_of_secret:
        yield value
