"""Text for people: safe to print, measured in terminal cells, cut to a width. Alone: errors load it."""

from __future__ import annotations

import json
import re
import unicodedata

#: No screen shows more of one name than its first and last characters.
SHOWN = 4096
#: Where the parts of a name begin: at the dot before an attribute, behind any other sign between words.
_PARTS = re.compile(r"(?<=.)\.(?=[^\W\d_])|(?<=[ #/(:])(?=\w)")


def printable(name: str) -> str:
    """Return `name` with all that could control a terminal escaped: controls, bidi marks, lone surrogates."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def on_terminal(text: str) -> str:
    """Return text of a format for programs such that it cannot control a terminal, and JSON stays JSON."""
    pieces = re.split(r"([^\n -~])", text)  # every second one is a character that may control
    pieces[1::2] = (c if c.isprintable() else json.dumps(c)[1:-1] for c in pieces[1::2])
    return "".join(pieces)


def capitalized(text: str) -> str:
    """Return a text, which is not empty, with a capital letter first; `str.capitalize` lowers all others."""
    return f"{text[0].upper()}{text[1:]}"


def cells(text: str) -> int:
    """Return how many terminal cells `text` takes at most: two for a wide character, one for any other."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def head_of(text: str, width: int) -> str:
    """Return the longest beginning of `text` that fits in `width` cells."""
    used = 0
    for place, character in enumerate(text):
        used += _cells_of(character)
        if used > width:
            return text[:place]
    return text


def bounded(name: str) -> str:
    """Return `name`, safe to print; of one that is longer than any screen, its beginning and its end."""
    return printable(name if len(name) <= 2 * SHOWN else name[:SHOWN] + name[-SHOWN:])


def fit(name: str, width: int) -> str:
    """Return `name`, safe to print and with its middle left out, in at most `width` cells."""
    text = bounded(name)
    if cells(text) <= width:
        return text
    if width < 1:
        return ""
    front = head_of(text, width // 2)
    back = head_of(text[::-1], width - 1 - cells(front))[::-1]
    return f"{front}…{back}"


def ending(name: str, width: int) -> str:
    """Return `name`, safe to print, or so many of its last parts as fit in `width` cells, behind dots.

    >>> ending("encoder.layers.*.self_attn.out_proj", 24), ending("scaled dot product attention", 24)
    ('….self_attn.out_proj', '…dot product attention')
    """
    text = bounded(name)
    if cells(text) <= width:
        return text
    ends = (text[part.start() :] for part in _PARTS.finditer(text))
    short = next((end for end in ends if cells(end) < width), "")
    return f"…{short.lstrip()}" if short else fit(text, width)
