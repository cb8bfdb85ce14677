"""What an answer holds of a report: names in sentences stand in “…”, and texts and the whole answer are bounded.

A name that is one plain word, such as `softmax` or `fp32`, stays as it is: no instruction fits into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nvtx_kernels import DOMAIN

from ..report import Report
from ..summary.selection import naming_of
from ..support.text import printable
from ..trace import Trace
from ..vocabulary import PATH_SEPARATOR, collapsed
from ..vocabulary.modules import shown

#: Characters of a cell, of a name in a sentence, of a sentence, and of a whole answer as JSON.
LONGEST_TEXT, LONGEST_QUOTED, LONGEST_SENTENCE, LONGEST_ANSWER = 400, 120, 1_000, 32_000
#: The keys of an answer whose values are sentences.
SENTENCES = frozenset(
    "refused reason remedy answer title caption accounting notes what fix sentence".split()  # noqa: SIM905
)
#: And lists that may be shortened, besides tables and where changes apply.
LISTS = ("findings", "reports", "notes", "accounting", "violated", "fixes")
SHORTENED = (
    f"Parts of this answer are left out, as it had more than {LONGEST_ANSWER:,} characters: ask for fewer rows "
    "(`top`), or for a range (`pattern`)."
)
_PLAIN = re.compile(r"[A-Za-z]{1,24}\d{0,4}|[\W\d_]+")


def names_in(trace: Trace) -> Iterator[str]:
    """Yield every name that a report holds: of ranges, kernels, threads, processes, domains, models and GPUs."""
    origin = trace.provenance
    yield from trace.names
    for named in (trace.threads, trace.processes, trace.domains):
        yield from (row.name for row in named)
    yield from (origin.file, origin.tool, origin.schema, *origin.gpus, origin.steps)
    yield from (value for value in origin.run.values() if isinstance(value, str))
    for tables in (origin.models, origin.attributes):
        for model, table in tables.items():
            yield from (model, *table, *table.values())


def shown_names(report: Report) -> Iterator[str]:
    """Yield the names of a report's ranges on screens: `GPT2.layers.*.mlp`."""
    naming = naming_of(report)
    for row in report.ranges:
        yield from shown(naming(row.path)).split(PATH_SEPARATOR)


def safe(answer: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return an answer with quoted names in its sentences, printable bounded texts, and a bounded length."""
    quoted = _Quoting(names, answer)
    texts = {key: _texts(value, key, quoted) for key, value in answer.items()}
    if "tables" in answer:  # else `report` is a name
        texts["report"] = quoted(answer["report"])
    return _bounded(texts)


class _Quoting:
    """Puts names into “…” in sentences; a path of ranges is one name."""

    def __init__(self, names: Iterable[str], answer: Mapping[str, Any]) -> None:
        text = "\n".join(_sentences(answer))
        spellings: dict[str, None] = {}
        for name in names:
            if name not in ("", DOMAIN):
                spellings |= dict.fromkeys((name, collapsed(name), printable(name)))
        present = sorted((name for name in spellings if name in text), key=len, reverse=True)
        any_name = f"(?:{'|'.join(map(_whole, present))})"
        separated = f"(?:{re.escape(PATH_SEPARATOR)}{any_name})*"
        self._path = re.compile(any_name + separated) if present else None

    def __call__(self, sentence: str) -> str:
        """Return a sentence, bounded and safe to print, in which names are quoted."""
        text = self._path.sub(_in_quotes, sentence) if self._path else sentence
        return cut(text, LONGEST_SENTENCE)


def _whole(name: str) -> str:
    """Return a pattern of a name that is no part of a longer word."""
    before = r"(?<!\w)" if name[0].isalnum() else ""
    after = r"(?!\w)" if name[-1].isalnum() else ""
    return f"{before}{re.escape(name)}{after}"


def _in_quotes(match: re.Match[str]) -> str:
    name = match[0]
    if _PLAIN.fullmatch(name):
        return name
    inner = cut(name, LONGEST_QUOTED).replace("“", '"').replace("”", '"')
    return f"“{inner}”"


def _sentences(value: Any, key: str = "") -> Iterator[str]:
    """Yield the sentences of an answer, its heading included."""
    if isinstance(value, str):
        if key in SENTENCES or key == "report":
            yield value
    elif isinstance(value, Mapping):
        for inner, part in _parts(value):
            yield from _sentences(part, inner)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _sentences(part, key)


def _parts(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an object; of a table the cells with their columns' keys."""
    for key, part in value.items():
        if key == "rows" and "columns" in value:
            for row in part:
                yield from ((column["key"], cell) for column, cell in zip(value["columns"], row, strict=True))
        else:
            yield key, part


def _texts(value: Any, key: str, quoted: _Quoting) -> Any:
    """Return a part of an answer with bounded texts, and with quoted names where it is a sentence."""
    if isinstance(value, str):
        return quoted(value) if key in SENTENCES else cut(value, LONGEST_TEXT)
    if isinstance(value, Mapping):
        safe_parts = {inner: _texts(part, inner, quoted) for inner, part in value.items() if inner != "rows"}
        if "rows" in value:
            keys = [column["key"] for column in value["columns"]]
            safe_parts["rows"] = []
            for row in value["rows"]:
                cells = zip(keys, row, strict=True)
                safe_parts["rows"].append([_texts(cell, column, quoted) for column, cell in cells])
        return {inner: safe_parts[inner] for inner in value}
    if isinstance(value, list | tuple):
        return [_texts(part, key, quoted) for part in value]
    return value


def cut(text: str, longest: int) -> str:
    """Return a text that is safe to print; of a long one its beginning, and how much was left out."""
    if len(text) <= longest:
        return printable(text)
    begin = printable(text[:longest])
    closing = "”" if begin.count("“") > begin.count("”") else ""
    return f"{begin}{closing}… ({len(text) - longest:,} more characters)"


def _bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of at most LONGEST_ANSWER characters, its longest lists halved until it is."""
    while len(json.dumps(answer, ensure_ascii=False)) > LONGEST_ANSWER:
        lists = [(rows, owner) for rows, owner in _shortenable(answer) if len(rows) > 1]
        if not lists:
            break
        longest, owner = max(lists, key=lambda entry: len(json.dumps(entry[0])))
        half = len(longest) // 2
        for count in {"more", "more_rows"} & owner.keys():
            owner[count] += len(longest) - half
        del longest[half:]
        if "depths" in owner:
            del owner["depths"][half:]
        answer = {"data": answer["data"], "shortened": SHORTENED, **answer}
    return answer


def _shortenable(answer: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the lists of an answer that may be shortened, each with what holds it."""
    for table in answer.get("tables", ()):
        yield table["rows"], table
    for fix in answer.get("fixes", ()):
        yield fix["where"], {}
    for key in LISTS:
        if isinstance(answer.get(key), list):
            yield answer[key], answer if key == "reports" else {}
