"""Kernel names: split for classification, shortened for tables, made safe to print."""

from __future__ import annotations

import re

#: Characters of a name that are read: what tells one instance from another stands far before.
READ = 8192

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::")
_RETURN_TYPE = re.compile(r"void |(?:typename )?std::enable_if<[^;]{0,400}?>::type ")
_SOURCE_NAME = re.compile(r"(\d{1,3})([A-Za-z_])")


def split_name(name: str) -> tuple[str, str]:
    """Split a demangled name into its function (no return type) and its template arguments and parameters.

    Anonymous namespaces are dropped, in nsys's spelling and in the C++ library's. Mangled names, which
    profilers leave when they are long, are split where their template arguments begin.
    """
    text = name[:READ]
    if text.startswith("_Z"):
        return _split_mangled(text)
    text = _ANONYMOUS.sub("", text)
    returned = _RETURN_TYPE.match(text)
    text = text[returned.end() :] if returned else text
    ends = [at for at in (text.find("<"), text.find("(")) if at >= 0]
    end = min(ends, default=len(text))
    return text[:end], text[end:]


def _split_mangled(text: str) -> tuple[str, str]:
    """Split an Itanium-mangled name: `_ZN2at6native4copyILi512E…` is `at::native::copy` and `ILi512E…`."""
    at = 3 if text.startswith("_ZN") else 2
    parts = []
    while found := _SOURCE_NAME.match(text, at):
        at = found.start(2) + int(found[1])
        parts.append(text[found.start(2) : at])
    named = [part for part in parts if not part.startswith("_GLOBAL__N_")]
    return ("::".join(named), text[at:]) if named else (text, "")
