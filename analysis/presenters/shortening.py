"""Names that have too little room: what tells them apart is kept, at whole words where that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, takewhile

from analysis.kernel_names import bounded, cells, fit, head_of
from analysis.tables import PATH_SEPARATOR

ELLIPSIS = "…"
#: A cut between words may waste so many cells.
WASTE = 8
_BETWEEN = (" ", "_", "-", ":", ",")


def shortened(names: Sequence[str], rooms: Sequence[int]) -> list[str]:
    """Shorten each name to its room; different names stay different where any place for the cut allows it.

    A name may stand in several rooms, as in a tree, and is then shortened for each.
    """
    names = [bounded(name) for name in names]
    shown = [_shorter(name, room) for name, room in zip(names, rooms, strict=True)]
    meant: dict[str, dict[str, int]] = {}
    for name, room, text in zip(names, rooms, shown, strict=True):
        alike = meant.setdefault(text, {})
        alike[name] = min(room, alike.get(name, room))
    apart: dict[tuple[str, str], str] = {}
    for text, group in meant.items():
        if len(group) > 1:
            cut = _apart(group, set(meant) | set(apart.values()))
            apart |= {(name, text): better for name, better in cut.items()}
    return [apart.get((name, text), text) for name, text in zip(names, shown, strict=True)]


def _shorter(name: str, room: int) -> str:
    """Shorten a path by its middle ranges and then its outer ones, for the innermost says the most."""
    first, *inner = name.split(PATH_SEPARATOR)
    shorter = [[first, ELLIPSIS, *inner[dropped:]] for dropped in range(1, len(inner))]
    paths = [[first, *inner], *shorter, [ELLIPSIS, *inner[-1:]]]
    texts = (PATH_SEPARATOR.join(path) for path in paths)
    innermost = inner[-1] if inner else name
    fitting = next((text for text in texts if cells(text) <= room and text != ELLIPSIS), "")
    return fitting or _between_words(innermost, room) or fit(innermost, room)


def _between_words(name: str, room: int) -> str:
    """Leave out whole words in the middle, few of them; nothing where that wastes much room."""
    fronts = [name[:n] for n in range(1, min(len(name), room)) if name[n] in _BETWEEN]
    backs = [name[n:] for n in range(max(1, len(name) - room), len(name)) if name[n - 1] in _BETWEEN]
    cuts = [(cells(front), cells(back), f"{front}{ELLIPSIS}{back}") for front in fronts for back in backs]
    fitting = [cut for cut in cuts if room - WASTE <= cut[0] + 1 + cut[1] <= room]
    return max(fitting, key=lambda cut: (cut[0] + cut[1] - abs(cut[0] - cut[1]) / 4, cut[2]), default=(0, 0, ""))[
        2
    ]


def _apart(group: dict[str, int], taken: set[str]) -> dict[str, str]:
    """Cut the names of a group, each to its room, at one place so that they differ; nothing where none does."""
    ways = (_cut_once(group, at_words=True), _cut_once(group, at_words=False), _without_beginning(group))
    for texts in chain(*ways, _numbered(group)):
        if len(set(texts.values())) == len(group) and taken.isdisjoint(texts.values()):
            return texts
    return {}


def _cut_once(group: dict[str, int], *, at_words: bool) -> Iterator[dict[str, str]]:
    """Yield the group's names with one middle left out, the most even first; where asked, up to a whole word."""
    for before in _cuts(max(group.values())):
        cuts = {name: _cut(name, room, before) for name, room in group.items()}
        if not at_words or all(name[: -len(back)].endswith(_BETWEEN) for name, (_, back) in cuts.items() if back):
            yield {name: f"{front}{ELLIPSIS}{back}" for name, (front, back) in cuts.items()}


def _without_beginning(group: dict[str, int]) -> Iterator[dict[str, str]]:
    """Leave out what all names of a group begin with."""
    common = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*group, strict=False)))
    yield {name: fit(ELLIPSIS + name[common:], room) for name, room in group.items()}


def _numbered(group: dict[str, int]) -> Iterator[dict[str, str]]:
    """Give names that no cut tells apart a number each, where that leaves some of the names."""
    marks = dict(zip(group, (f"#{number}" for number in count(1)), strict=False))
    if all(room > len(marks[name]) for name, room in group.items()):
        yield {name: fit(name, room - len(marks[name])) + marks[name] for name, room in group.items()}


def _cuts(room: int) -> Iterator[int]:
    """Yield how many cells may stand before the cut, from the middle outwards."""
    middle = room // 2
    for away in range(1, middle + 1):
        yield middle - away
        if middle + away < room:
            yield middle + away


def _cut(name: str, room: int, before: int) -> tuple[str, str]:
    front = head_of(name, min(before, room - 1))
    return front, head_of(name[::-1], room - 1 - cells(front))[::-1]
