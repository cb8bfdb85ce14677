"""One spelling for kernels that two tools demangle differently.

nsys (NVIDIA's cu++filt) and recordings (the C++ library) write the same symbol like this:

    void f<(int)4, void g<X>(const T1 &)::[lambda(int) (instance 1)]>(int, T2)
    void f<4, g<X>(X const&)::{lambda(int)#1}>(int, g<X>(X const&)::{lambda(int)#1})

A kernel's template arguments and the numbers of its lambdas identify it. Almost all that the tools write
differently is in parameter lists and return types, so the spelling of a template leaves those out: two overloads
with the same template arguments have one spelling, and only their text distinguishes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

#: What is written differently, in the order in which it is replaced.
_REWRITES: Final = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\(anonymous namespace\)|<unnamed>|\{anonymous\}", "@anonymous"),
        (r"\(bool\)1", "true"),
        (r"\(bool\)0", "false"),
        (r"\(int\)(?=-?\d)", ""),
        (r"\(unsigned int\)(\d+)", r"\1u"),
        (r"\(long\)(-?\d+)", r"\1l"),
        (r"\(unsigned long\)(\d+)", r"\1ul"),
        (r"\(long long\)(-?\d+)", r"\1ll"),
        (r"\(unsigned long long\)(\d+)", r"\1ull"),
        (r"\b(unsigned|signed|long) (?=(?:char|short|int|long)\b)", r"\1_"),
        (r"operator ?\(\)", "operator@call"),
        (r"[{\[]lambda\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)(?: \(instance |#)(\d+)\)?[]}]", r"@lambda{\1}\2"),
    )
]
_PARAMETERS: Final = re.compile(r"\([^()]*\)")
_CONST: Final = re.compile(r"\b(?:const|volatile)\b ?")
# What a function returns stands before its name, and only there does a space part two words.
_RETURN_TYPE: Final = re.compile(r"(?<![\w:>@])(?:[\w:@]+(?:<[^<>]*>)?(?:::\w+)?[*& ]*) (?=[A-Za-z_@])")
#: Characters of a name that are read, and how deep parameter lists may nest.
_LONGEST, _DEEPEST = 32_768, 100


@lru_cache(maxsize=65_536)
def canonical_spelling(name: str) -> str:
    """Return the one spelling of a demangled kernel name, without the return types and parameters of templates."""
    if len(name) > _LONGEST or not any(bracket in name for bracket in "<([{"):
        return name
    spelling = name
    for pattern, replacement in _REWRITES:
        spelling = pattern.sub(replacement, spelling)
    if "<" in spelling.partition("(")[0]:
        for _ in range(_DEEPEST):
            spelling, removed = _PARAMETERS.subn("", spelling)
            if not removed:
                break
    constants = len(_CONST.findall(spelling))
    spelling = _RETURN_TYPE.sub("", _CONST.sub("", spelling))
    return f"{spelling.replace(' ', '')}{'@const' * constants}"


def spelled_like(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return, for those of `names` that are among `others` in another spelling only, that other spelling.

    Where several names of one side have the same spelling, it says nothing.
    """
    distinct = set(names)
    spellings_of = set(others)
    if distinct <= spellings_of:
        return {}
    ours = Counter(map(canonical_spelling, distinct))
    theirs = Counter(map(canonical_spelling, spellings_of))
    other_of = {canonical_spelling(name): name for name in spellings_of}
    keys = {name: canonical_spelling(name) for name in distinct - spellings_of}
    return {name: other_of[key] for name, key in keys.items() if ours[key] == theirs[key] == 1}
