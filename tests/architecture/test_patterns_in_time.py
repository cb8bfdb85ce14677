"""Each pattern that stands in a module ends in time on texts made to make it try much."""

import ast
import importlib
import pkgutil
import re
import time
from pathlib import Path

import pytest
from nvtx_kernels.analysis.kernel_names.parts import READ

from nvtx_kernels import analysis, profiling

LENGTHS, SECONDS = (10_000, 100_000), 1.0
PIECES = (
    "a", "A", "Aa", "0", "_", " ", "::", "a::", "a.", "a/", ".", "0x", "1,", "(", "<", "[", "a b ", "-", "a_",
    "1.", "norm", "name", "nccl", "sm80_xmma_", "std::enable_if<", "void ", "torch/optim/", "a:1:", "a(1): ",
    "lambda(",
    "tuple<cute::C<1", "\n", "é", "kernel_cutlass",
)  # fmt: skip


#: What looks for a pattern anywhere in a text, and so begins anew at each of its characters.
SEARCHING = {"search", "sub", "subn", "findall", "finditer", "split"}


def modules():
    """Yield the modules of this project, with their syntax."""
    for package in (analysis, profiling):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                try:
                    module = importlib.import_module(found.name)
                except ImportError:  # of a framework that is not installed
                    continue
                yield module, ast.parse(Path(module.__file__).read_text(encoding="utf-8"))


MODULES = [*modules()]


def within(value):
    """Yield the patterns in a value of a module, also those of tables and of their rows."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from within(part)
    elif isinstance(value, dict):
        yield from within([*value.values()])
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        yield from within([getattr(value, name) for name in value.__dataclass_fields__])


def patterns():
    """Return every compiled pattern that stands in a module, by where."""
    return {
        f"{module.__name__}.{name}.{number}": pattern
        for module, _ in MODULES
        for name, value in vars(module).items()
        for number, pattern in enumerate(within(value))
    }


def texts_in(value):
    """Yield the texts of a table, which may be patterns."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from texts_in(part)
    elif isinstance(value, dict):
        yield from texts_in([*value, *value.values()])


def tables_of(module, tree):
    """Return the tables that a module makes: of these are the patterns that its variables hold."""
    assigned = [node.targets for node in tree.body if isinstance(node, ast.Assign)]
    assigned += [[node.target] for node in tree.body if isinstance(node, ast.AnnAssign)]
    targets = (target for several in assigned for target in several if isinstance(target, ast.Name))
    names = dict.fromkeys(target.id for target in targets)
    values = (getattr(module, name, None) for name in names)
    return [value for value in values if isinstance(value, tuple | list | dict)]


def compiled(texts, call):
    for text in texts:
        try:
            yield re.compile(text, re.IGNORECASE * ("IGNORECASE" in ast.unparse(call)))
        except (re.error, OverflowError):
            continue


def patterns_of(module, tree, call):
    """Return the patterns that a call of `re`, or of a pattern, may use, and how it uses them."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=use) if len(call.args) > 1:
            first = call.args[0]
            texts = [first.value] if isinstance(first, ast.Constant) else texts_in(tables_of(module, tree))
            return use, [*compiled(texts, call)]
        case ast.Attribute(value=ast.Name(id=name), attr=use):
            named = getattr(module, name, None)
            if isinstance(named, re.Pattern):
                return use, [named]
            return use, [] if use == "split" else [*within(tables_of(module, tree))]
    return "", []


def searched():
    """Return the patterns that are looked for anywhere in a text, by where."""
    found = {}
    for module, tree in MODULES:
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            use, of_call = patterns_of(module, tree, call)
            if use in SEARCHING:
                found |= {f"{module.__name__} {use} {pattern.pattern!r}": pattern for pattern in of_call}
    return found


PATTERNS, SEARCHED = patterns(), searched()


def assert_in_time(pattern, use, lengths=LENGTHS):
    for length in lengths:
        for piece in PIECES:
            text = piece * (length // len(piece)) + "\x01"
            text = text.encode() if isinstance(pattern.pattern, bytes) else text
            began = time.process_time()
            use(text)
            assert time.process_time() - began < SECONDS, (piece, length)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_ends_in_time_on_hostile_text(pattern):
    assert_in_time(pattern, pattern.match)


@pytest.mark.parametrize("where", SEARCHED)
def test_a_pattern_is_found_or_not_in_time_anywhere_in_hostile_text(where):
    lengths = (READ,) if ".kernel_names." in where else LENGTHS  # of kernels' names no more is looked at
    assert_in_time(SEARCHED[where], lambda text: sum(1 for _ in SEARCHED[where].finditer(text)), lengths)
