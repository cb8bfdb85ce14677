"""The modules of annotated models in paths of ranges: their classes, and what a screen shows of them.

Annotation writes two tables of each model into a report, by paths of ranges below the model's own, which are
joined by `/`; a `*` is any index, if all modules of that path are the same. `classes` are the modules' classes.
`attributes` are PyTorch's names of the modules, below the module of the next outer range: `layers.*` for
`layer *`. Recordings of earlier versions have classes alone; their names are shown as they are recorded.

A path keeps its recorded names, for comparisons and for programs; `naming` makes names of it that know their text
on screens, and `shown` writes it: `backward > GPT2 > layers.*.mlp.0` for `backward > GPT2 > layer * > mlp > mlp
0`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from . import FUSED, PATH_SEPARATOR, collapsed, fused_parts

Path = tuple[str, ...]
Naming = Callable[[Path], Path]
#: By a model's name, what is known of its modules by their paths of ranges.
Models = Mapping[str, Mapping[str, str]]

_INDEX = re.compile(r"(?<= )\d+(?=/|$)")
_INDEX_ABOVE = re.compile(r"(?<= )\d+(?=/)")
_IS_INDEX = re.compile(r"(?:\d+|\*)(?:\.|$)")
# Of several layers of one class that a module calls, as a trace with stacks has them: `Linear #2`.
_ORDINAL = re.compile(r"(.+) #\d+$")


def _list_of(path: str) -> str:
    """Return the last attribute of a dotted path that is no index, and the indices behind it."""
    attributes = path.split(".")
    begin = len(attributes) - 1
    while begin and _IS_INDEX.fullmatch(attributes[begin]):
        begin -= 1
    return ".".join(attributes[begin:])


class Shown(str):
    """What a screen shows of a path, which it keeps."""

    path: Path

    def __new__(cls, text: str, path: Path = ()) -> Self:
        """Take both."""
        shown_text = super().__new__(cls, text)
        shown_text.path = path
        return shown_text

    @property
    def class_name(self) -> str:
        """The class of the path's last module, if it is true of all in the row."""
        return getattr(self.path[-1], "class_name", "") if self.path else ""


class ModuleName(str):
    """A recorded name in a path of ranges that is a module's.

    `dotted` is the module's path behind the model's name (`GPT2.layers.3.mlp`), empty where it is not known;
    `alone` is what the module is called where nothing stands before it (`mlp`, `mlp.2`), and `joined` what is
    written behind the range around it (`.mlp`), empty where that is not of the module that holds this one.
    """

    dotted: str = ""
    alone: str = ""
    joined: str = ""
    class_name: str = ""


def shown(path: Path, common: int = 0) -> Shown:
    """Write a path without the ranges that all begin with, except its last, and modules by their attributes."""
    text = ""
    for name in path[min(common, len(path) - 1) :] if path else ():
        alone, joined = (name.alone, name.joined) if isinstance(name, ModuleName) else (name, "")
        text = f"{text}{joined or PATH_SEPARATOR + alone}" if text else alone
    return Shown(text, path)


def naming(classes: Models, attributes: Models, *, every_index: bool = False) -> Naming:
    """Return a function that gives a path its names on screens, by the tables of models.

    Names that differ in an index alone are one (`layer *`) unless `every_index`, but for modules of different
    classes: `nn.Sequential(Linear, GELU, Linear)` is three rows, and not one of `mlp *`.
    """
    models = {}
    ordinals = set[str]()
    for model_name, of_model in classes.items():
        places = frozenset(_INDEX.sub("*", place) for place in of_model)
        models[model_name] = _Model(model_name, of_model, attributes.get(model_name, {}), places)
        ordinals |= {last for place in of_model if _ORDINAL.match(last := place.rpartition("/")[2])}

    named_paths: dict[Path, _Named] = {(): _Named()}

    def named(path: Path) -> Path:
        depth = len(path)
        while path[:depth] not in named_paths:
            depth -= 1
        for end in range(depth, len(path)):
            named_paths[path[: end + 1]] = below(named_paths[path[:end]], path[end])
        return named_paths[path].names

    def below(above: _Named, name: str) -> _Named:
        """Return the shown form of a name below others."""
        model = above.model
        place = above.place
        row_place = above.row_place
        holder = above.holder
        row_name: str
        if model and _INDEX.sub("*", inner := f"{place}/{name}".lstrip("/")) in model.known:
            row_name = name if every_index else model.without_index(name, inner)
            row_place = f"{row_place}/{row_name}".lstrip("/")
            module = model.module(row_name, row_place, holder, follows=above.is_holder)
            if not module.dotted and not every_index and row_name != collapsed(name) and name not in ordinals:
                module.alone = f"{row_name} {module.class_name}".strip()
                module.class_name = ""
            return _Named((*above.names, module), model, inner, row_place, module, is_holder=True)
        if (root := name if name in models else collapsed(name)) in models:
            names = (*above.names, name if every_index else root)
            return _Named(names, models[root], is_holder=True)
        row_name = name if every_index or name in ordinals else collapsed(name)
        if model and fused_parts(row_name):
            row_name = model.fusion(row_name, row_place, holder)
        return _Named((*above.names, row_name), model, place, row_place, holder)

    return named


@dataclass(frozen=True, slots=True)
class _Named:
    """The names of a path on screens, and the innermost model and module around what is below.

    `place` is the module's path below the model as recorded, and `row_place` as shown; `holder` is its name, None
    for the model itself. `is_holder` says whether the path ends with that module, or with the model.
    """

    names: Path = ()
    model: _Model | None = None
    place: str = ""
    row_place: str = ""
    holder: ModuleName | None = None
    is_holder: bool = False


@dataclass(frozen=True, slots=True)
class _Model:
    """A model's tables, and the paths of its modules with `*` for every index."""

    name: str
    classes: Mapping[str, str]
    attributes: Mapping[str, str]
    known: frozenset[str]

    def without_index(self, name: str, place: str) -> str:
        """Return a module's name without its index, unless its siblings are of other classes."""
        if _ORDINAL.match(name) and at(self.classes, place) is not None:
            return name
        together = collapsed(name)
        if together == name or _INDEX.sub("*", place) in self.classes:
            return together
        return together if at(self.classes, place) is None else name

    def module(self, name: str, place: str, holder: ModuleName | None, *, follows: bool) -> ModuleName:
        """Return the name of a module at a place, below its holder; the model holds the outermost ones."""
        module = ModuleName(name)
        module.alone = name
        module.class_name = at(self.classes, place) or ""
        attribute = at(self.attributes, place)
        holder_path = self.name if holder is None else holder.dotted
        if not attribute or not holder_path:
            module.class_name = _besides(name, module.class_name)
            return module
        if attribute.endswith("*") and " " in name:  # the index that the name has
            attribute = attribute[:-1] + name.rsplit(" ", 1)[1]
        module.dotted = f"{holder_path}.{attribute}"
        is_index = _IS_INDEX.match(attribute)
        module.alone = f"{_list_of(holder_path)}.{attribute}" if is_index else attribute
        module.joined = f".{attribute}" if follows and (holder is not None or is_index) else ""
        return module

    def fusion(self, name: str, place: str, holder: ModuleName | None) -> ModuleName:
        """Return the name of a fusion below a place; its parts begin with modules there."""
        fusion = ModuleName(name)
        texts = []
        for part in fused_parts(name):
            words = part.split(" ")
            length = part.count(" ") + 1
            while length and _INDEX.sub("*", f"{place}/{' '.join(words[:length])}".lstrip("/")) not in self.known:
                length -= 1
            first = " ".join(words[:length])
            module = self.module(first, f"{place}/{first}".lstrip("/"), holder, follows=False)
            texts.append(" ".join([module.alone, *words[length:]]).strip())
        fusion.alone = FUSED.join(texts)
        return fusion


def _besides(name: str, class_name: str) -> str:
    """Return the part of a class that a module's name lacks: for `Linear #2` and `Linear 512→256` the shape."""
    bare_class, _, shape = class_name.partition(" ")
    return shape if re.sub(r" (?:#?\d+|\*)$", "", name) == bare_class else class_name


def at(table: Mapping[str, str], place: str) -> str | None:
    """Return a table's value for a path of ranges, in the first of its forms that the table has."""
    return next((table[form] for form in _forms(place) if form in table), None)


def _forms(place: str) -> Iterator[str]:
    """Yield the forms in which a table may have a path of ranges."""
    yield place
    yield _INDEX_ABOVE.sub("*", place)
    yield _INDEX.sub("*", place)


def agreed(tables: Iterable[Models]) -> dict[str, dict[str, str]]:
    """Merge the tables of several marks or reports on the same models; values that differ become empty.

    A path disagrees with a form of it that stands for several, too.
    """
    values_of: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for models in tables:
        for model, table in models.items():
            of_model = values_of[model]  # also of a model without modules inside
            for place, value in table.items():
                of_model[place].add(value)
    merged = {}
    for model, values in values_of.items():
        together = {place: set(of_place) for place, of_place in values.items()}
        for place in values:
            for form in _forms(place):
                if form in values and values[form] != values[place]:
                    together[place] |= values[form]
                    together[form] |= values[place]
        merged[model] = {place: of_all.pop() if len(of_all) == 1 else "" for place, of_all in together.items()}
    return merged
