"""One spelling for kernels that two tools demangle differently.

nsys (NVIDIA's cu++filt) and recordings (the C++ library) write the same symbol like this:

    void f<(int)4, void g<X>(const T1 &)::[lambda(int) (instance 1)]>(int, T2)
    void f<4, g<X>(X const&)::{lambda(int)#1}>(int, g<X>(X const&)::{lambda(int)#1})

The canonical spelling says all that either does: `Tn` in a function's parameters is its n-th template argument,
literals carry their type, `const` follows what it qualifies, and return types, which kernels have no
choice of, are left out. A name that is not understood stays as it is: its kernel is then compared by its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

_TOKEN = re.compile(
    r"(?P<anonymous>\(anonymous namespace\)|<unnamed>|\{anonymous\})"
    r"|\boperator ?(?:\(\)|\[\]|<=>|->\*?|<<=?|>>=?|&&|\|\||[-+*/%^&|~!=<>]=?)"
    r"|-?\d+u?l{0,2}\b|[A-Za-z_$][\w$]*(?:\.[\w$]+)*|#\d+|::|\.\.\.|&&|\S"
)
_NUMBER = re.compile(r"(-?\d+)(u?l{0,2})")
_PARAMETER = re.compile(r"T(\d{1,3})")
_WORD = re.compile(r"[\w$(]")
_CLOSING: Final = {"<": ">", "(": ")", "{": "}", "[": "]"}

#: How the C++ library marks the type of an integer among template arguments.
_SUFFIXES: Final = {
    "": "int",
    "u": "unsigned int",
    "l": "long",
    "ul": "unsigned long",
    "ll": "long long",
    "ull": "unsigned long long",
}
_LITERALS: Final = {"true": "(bool)1", "false": "(bool)0"}
_QUALIFIERS: Final = ("const", "volatile")
_REFERENCES: Final = ("&", "&&")

#: Characters of a name that are read and written, and how deep its brackets may nest.
_LONGEST_READ, _LONGEST_WRITTEN, _DEEPEST = 32_768, 131_072, 100


class _NotUnderstoodError(Exception):
    """A name that is not a balanced C++ name, or one that would become too long."""


@dataclass(slots=True)
class _Group:
    """The content of one pair of brackets, divided at commas."""

    bracket: str
    parts: list[list[_Item]] = field(default_factory=lambda: [[]])


_Item = str | _Group
_Scope = tuple[str, ...]


@lru_cache(maxsize=65_536)
def canonical_spelling(name: str) -> str:
    """Return the one spelling of a demangled kernel name; a name that is not understood as it is."""
    if not any(bracket in name for bracket in _CLOSING) or len(name) > _LONGEST_READ:
        return name
    try:
        return _written(_without_return_type(_parsed(name), of_kernel=True), ())
    except _NotUnderstoodError:
        return name


def spelled_like(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return, for those of `names` that are among `others` in another spelling only, that other spelling."""
    distinct, spellings_of = set(names), set(others)
    unknown = distinct - spellings_of
    if not unknown:
        return {}
    spellings = {canonical_spelling(name): name for name in sorted(spellings_of, reverse=True)}
    pairs = ((name, spellings.get(canonical_spelling(name))) for name in unknown)
    return {name: other for name, other in pairs if other is not None}


_QUALIFIER = re.compile(r"(?:(?:[A-Za-z_]\w*|<unnamed>|\(anonymous namespace\))::)+(?=[\w~])")
_TYPE_OF_LITERAL = re.compile(
    r"\((?:bool|char|short|int|long|long long|unsigned (?:char|short|int|long|long long))\)(?=-?\d)"
)


def abridged(name: str) -> str:
    """Return a name as ncu 2025.3 writes it: without namespaces, and without the types of literals.

    ncu keeps some namespaces, such as `std`: abridge both names to compare them. Seen with PyTorch's kernels on an
    H200 (reports/h200/counters.md).
    """
    return _QUALIFIER.sub("", _TYPE_OF_LITERAL.sub("", name))


def _parsed(name: str) -> list[_Item]:
    """Return the items of a name, with what is in brackets as groups.

    Raises _NotUnderstoodError where brackets do not match or nest too deep.
    """
    open_groups = [_Group("")]
    for token in _TOKEN.finditer(name):
        text, group = token[0], open_groups[-1]
        if text in _CLOSING:
            open_groups.append(_Group(text))
            group.parts[-1].append(open_groups[-1])
        elif text in _CLOSING.values():
            if text != _CLOSING.get(group.bracket):
                raise _NotUnderstoodError
            open_groups.pop()
        elif text == "," and group.bracket:
            group.parts.append([])
        else:
            group.parts[-1].append("(anonymous)" if token["anonymous"] else text.replace(" ", ""))
        if len(open_groups) > _DEEPEST:
            raise _NotUnderstoodError
    if len(open_groups) > 1:
        raise _NotUnderstoodError
    return open_groups[0].parts[0]


def _is_group(item: _Item, bracket: str) -> bool:
    return isinstance(item, _Group) and item.bracket == bracket


def _written(items: Sequence[_Item], scope: _Scope) -> str:
    """Write a name or a type; `scope` has the meaning of `T1`, `T2`, ….

    Raises _NotUnderstoodError where it becomes too long.
    """
    items = _with_qualifiers_behind(_without_return_type(items))
    text, own_scope = "", scope
    for index, item in enumerate(items):
        if isinstance(item, str):
            meant = _index(item, scope)
            text = _joined(text, scope[meant] if meant is not None and 0 <= meant < len(scope) else item)
            continue
        if instance := _instance(item):
            text += f"{{{_written(item.parts[0][:-1], ())}#{instance}}}"
        else:
            behind_template = item.bracket == "(" and index and _is_group(items[index - 1], "<")
            in_scope = own_scope if behind_template else scope
            arguments = tuple(_argument(part, each) for part in item.parts for each in _unpacked(part, in_scope))
            own_scope = arguments if item.bracket == "<" else own_scope
            text += f"{item.bracket}{','.join(arguments)}{_CLOSING[item.bracket]}"
        if len(text) > _LONGEST_WRITTEN:
            raise _NotUnderstoodError
    return text


def _unpacked(items: Sequence[_Item], scope: _Scope) -> Iterator[_Scope]:
    """Yield the meaning of `Tn`, once; in `Tn...`, a pack, every argument from the n-th on in turn."""
    if not items:
        return
    packs = [item for item in items[:-1] if items[-1] == "..." and isinstance(item, str)]
    first = next((index for index in (_index(item, scope) for item in packs) if index is not None), None)
    if first is None:
        yield scope
    else:
        yield from ((*scope[:first], argument) for argument in scope[first:])


def _argument(items: Sequence[_Item], scope: _Scope) -> str:
    """Write one argument: a literal with its type, or a type."""
    last = items[-1]
    if last == "..." and len(items) > 1:
        return _written(items[:-1], scope)
    if isinstance(last, str) and len(items) == 1:
        if number := _NUMBER.fullmatch(last):
            return f"({_SUFFIXES[number[2]]}){number[1]}"
        if last in _LITERALS:
            return _LITERALS[last]
    return _written(items, scope)


def _instance(group: _Group) -> _Item:
    """Return the 1 of a group `[lambda(int) (instance 1)]`; nothing for other groups."""
    last = group.parts[0][-1] if group.bracket == "[" and group.parts[0] else ""
    is_instance = isinstance(last, _Group) and last.parts[0][:1] == ["instance"]
    return last.parts[0][-1] if isinstance(last, _Group) and is_instance else ""


def _index(item: str, scope: _Scope) -> int | None:
    """Return the index of the argument that `Tn` refers to, from 0; None for other words."""
    match = _PARAMETER.fullmatch(item)
    return int(match[1]) - 1 if match and scope else None


def _joined(text: str, item: str) -> str:
    """Append to a text; qualifiers said twice count once, and references to references collapse."""
    if item in _QUALIFIERS and re.search(rf"\b{item}$", text):
        return text
    if item in _REFERENCES and text.endswith("&"):
        return text if text.endswith("&&") and item == "&&" else text.rstrip("&") + "&"
    apart = bool(text) and (text[-1].isalnum() or text[-1] in "_$") and bool(_WORD.match(item))
    return f"{text} {item}" if apart else text + item


def _with_qualifiers_behind(items: Sequence[_Item]) -> Sequence[_Item]:
    """Move `const` from before a type to behind it: `const T *` becomes `T const*`."""
    leading = next((index for index, item in enumerate(items) if item not in _QUALIFIERS), 0)
    if not leading:
        return items
    marks = ("*", "...", *_REFERENCES)
    ends = (
        index for index in range(leading + 1, len(items)) if items[index] in marks or _is_group(items[index], "(")
    )
    end = next(ends, len(items))
    return [*items[leading:end], *items[:leading], *items[end:]]


def _without_return_type(items: Sequence[_Item], *, of_kernel: bool = False) -> Sequence[_Item]:
    """Drop what a function returns from the name of what is local to it: `void f(int)::[lambda…]`.

    A kernel returns nothing: `void`, or a type equal to it.
    """
    parameters = next((index for index, item in enumerate(items) if index and _is_group(item, "(")), 0)
    behind = [item for item in items[parameters + 1 : parameters + 3] if item not in _QUALIFIERS]
    if not of_kernel and not (parameters and behind[:1] == ["::"]):
        return items
    # The function's name begins with the last word before its parameters that nothing joins to the one before.
    starts = (
        index
        for index in range((parameters or len(items)) - 1, 0, -1)
        if isinstance(item := items[index], str)
        and (item[0].isalpha() or item[0] in "_(")
        and item not in _QUALIFIERS
        and items[index - 1] not in ("::", "operator", "~")
    )
    start = next(starts, 0)
    is_returned = not of_kernel or items[:1] == ["void"] or "enable_if" in items[:start]
    return items[start:] if is_returned else items
