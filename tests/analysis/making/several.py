"""Commands that read several files, of which some are changed: `answer(folder, Several(kind, base, changes))`.

The files are traces of captures, and folders of several ranks' reports or summaries.
"""

import gzip
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

from hypothesis import strategies as st
from nvtx_kernels.analysis import kernels, ranks
from nvtx_kernels.analysis.summary import parallel

from tests.analysis.making import building, checks, generated
from tests.analysis.making.kineto import (
    STEP,
    Block,
    Call,
    Program,
    Work,
    events_of,
    trace_text,
    write_kineto,
    write_nsys,
)
from tests.analysis.making.mutations import INTEGERS, NAMES

KINDS = ("captures", "ranks")
#: Where the files that are changed lie, and what is read beside them, which is not.
GIVEN, REPORT = "given", "report.sqlite"
PIECES = (
    b"", b"\x00", b"\xff", b'"', b",", b"\n", b"{", b"]", b"-1", b"9" * 5000, b"1e999", b"NaN", b"null",
    b"[" * 2000, b"\x1b[31m", b"\xe2\x80\xae", b"=1+1", b"(", b"==ERROR== ERR_NVGPUCTRPERM\n", b"\r",
    b"0x" + b"f" * 300,
)  # fmt: skip
ODD = (
    *INTEGERS,
    *NAMES,
    None,
    True,
    1.5,
    -0.0,
    1e300,
    1e-320,
    [],
    {},
    [[]],
    {"": {}},
    "0x" + "f" * 300,
    "x" * 5000,
)


@dataclass(frozen=True)
class Several:
    """Which files a command reads, and what is changed: kinds of changes, each with what draws its places."""

    kind: str
    base: int
    changes: tuple[tuple[str, int], ...]


def _captures(folder: Path) -> Iterator[list[str]]:
    from tests.analysis.readers.test_capture_traces import GRAPH, capture, replay

    names = [kernel for kernel, _ in GRAPH]
    replay(folder / REPORT, names, names, names[:2])
    options = ["rank", REPORT, "--capture", GIVEN, "--format", "json"]
    capture(folder / GIVEN, GRAPH, executed=["norm"])
    yield options
    for rank in range(3):
        capture(folder / GIVEN, GRAPH, GRAPH[:2], name=f"rank{rank}.json")
    path = folder / GIVEN / "rank2.json"
    path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
    yield options
    (folder / GIVEN / "stacks.json").write_text(json.dumps({"12": "a.py:3:f\nb.py:4:g"}))
    nodes = [Work(1, 30, 35, said=(("graph node id", 12),)), Work(1, 36, 40, said=(("graph node id", 13),))]
    write_kineto(folder / REPORT, Program([Block("step", 0, 90)], [Call(1, 5, 9, name="cudaGraphLaunch")], nodes))
    yield ["rank", REPORT, "--capture", f"{GIVEN}/stacks.json", "--format", "json"]


def _ranks(folder: Path) -> Iterator[list[str]]:
    options = ["rank", GIVEN, "--format", "json"]
    report = write_nsys(folder / REPORT, STEP)
    for rank in range(3):
        summary = folder / GIVEN / f"rank{rank}.summary.sqlite"
        assert checks.said(ranks, report, "-o", summary)[0] == 0
    yield options
    for rank in range(2):
        building.write(folder / GIVEN / f"rank{rank}.sqlite", generated.Program(7 + rank).run())
    write_kineto(folder / GIVEN / "rank2.pt.trace.json", STEP)
    (folder / GIVEN / "rank3.pt.trace.json.gz").write_bytes(
        gzip.compress(trace_text(events_of(STEP)).encode(), 1, mtime=0)
    )
    yield options


MAKE = dict(zip(KINDS, (_captures, _ranks), strict=True))


@cache
def bases(kind: str) -> list[tuple[list[str], dict[str, bytes]]]:
    """Return the command lines of a kind, each with its files."""
    found = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / GIVEN).mkdir()
        for words in MAKE[kind](folder):
            files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
            found.append((words, files))
            for path in (folder / GIVEN).iterdir():
                path.unlink()
    return found


def _spliced(content: bytearray, random: Random) -> None:
    at = random.randrange(len(content) + 1)
    content[at : at + random.choice((0, 1, 5, 50))] = random.choice(PIECES)


def _cut(content: bytearray, random: Random) -> None:
    del content[random.randrange(len(content) + 1) :]


def _flipped(content: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 4, 40)) if content else 0):
        content[random.randrange(len(content))] = random.randrange(256)


def _lines(content: bytearray, random: Random) -> None:
    lines = content.splitlines(keepends=True)
    at, count = random.randrange(len(lines) + 1), random.choice((1, 3, 20))
    change = random.choice(("again", "gone", "shuffled", "many"))
    if change == "again":
        lines[at:at] = lines[at : at + count]
    elif change == "gone":
        del lines[at : at + count]
    elif change == "shuffled":
        random.shuffle(lines)
    else:
        lines *= 50 if len(content) < 1 << 16 else 1
    content[:] = b"".join(lines)


def _json_value(content: bytearray, random: Random) -> None:
    """Put another value somewhere in a line of JSON, or in the whole file."""
    lines = content.splitlines(keepends=True)
    for at in random.sample(range(len(lines)), len(lines)):
        try:
            found = json.loads(lines[at])
        except (ValueError, RecursionError):
            continue
        lines[at] = json.dumps(_with_another_value(found, random)).encode() + b"\n"
        content[:] = b"".join(lines)
        return
    try:
        found = json.loads(bytes(content))
    except (ValueError, RecursionError):
        return
    content[:] = json.dumps(_with_another_value(found, random)).encode()


def _with_another_value(found, random: Random):
    at = found
    while isinstance(at, dict | list) and at:
        key = random.choice([*at] if isinstance(at, dict) else range(len(at)))
        if isinstance(at[key], dict | list) and at[key] and random.random() < 0.9:
            at = at[key]
            continue
        if random.random() < 0.1:
            del at[key]
        else:
            at[key] = random.choice(ODD)
        return found
    return random.choice(ODD)


def _cell(content: bytearray, random: Random) -> None:
    """Put another text into a cell of quoted CSV."""
    parts = content.split(b'"')
    if len(parts) > 2:
        parts[random.randrange(len(parts))] = str(random.choice(ODD)).encode("utf-8", "surrogatepass")
    content[:] = b'"'.join(parts)


def _gzipped(content: bytearray, random: Random) -> None:
    content[:] = gzip.compress(content, 1, mtime=0)


IN_CONTENT = {
    "spliced": _spliced, "cut": _cut, "flipped": _flipped, "lines": _lines, "a value": _json_value,
    "a cell": _cell, "gzipped": _gzipped,
}  # fmt: skip
#: What is done to a file, given another of the folder.
ENTRIES = {
    **{name: checks.PARQUET_PARTS[name] for name in ("gone", "empty", "another table", "a folder", "a pipe")},
    **{name: checks.PARQUET_PARTS[name] for name in ("a link to nothing", "a link to itself")},
    "again": lambda file, other: shutil.copy(file, file.with_name(f"again-{file.name}")),
    "another ending": lambda file, other: file.rename(file.with_name(f"{file.name}.{other.name}")),
    "a hostile name": lambda file, other: file.rename(file.with_name(f"\x1b[31m\u202e{file.name}")),
    "a device": lambda file, other: (file.unlink(), file.symlink_to("/dev/zero")),
    "a link to its folder": lambda file, other: (file.unlink(), file.symlink_to("..")),
}
OF_TABLES = {name: checks.PARQUET_PARTS[name] for name in checks.PARQUET_PARTS if name not in ENTRIES}
CHANGES = st.tuples(st.sampled_from([*IN_CONTENT, *IN_CONTENT, *ENTRIES, *OF_TABLES]), st.integers(0, 1 << 32))


def several(kind: str) -> st.SearchStrategy[Several]:
    """Return a strategy for cases of one kind."""
    return st.builds(
        Several,
        st.just(kind),
        st.integers(0, len(bases(kind)) - 1),
        st.lists(CHANGES, min_size=1, max_size=4).map(tuple),
    )


def answer(folder: Path, case: Several) -> bool:
    """Run the command on the changed files; return whether it answers, and assert what holds of every answer."""
    words, files = bases(case.kind)[case.base]
    (folder / GIVEN).mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for change, number in case.changes:
        _change(folder / GIVEN, change, Random(number))
    before = _state(folder)
    in_folder = [str(folder / word) if word.partition("/")[0] in (GIVEN, REPORT) else word for word in words]
    with patch.object(parallel, "_in_processes", _one_after_the_other):
        status, out, err = checks.said(kernels, *in_folder[1:])
    assert status in (0, 1, 2), err
    assert checks.SENTENCE.fullmatch(err) if status else not err, err
    assert checks.HARMLESS.fullmatch(err), err
    assert not checks.OUT_OF_MEMORY.search(out + err), err
    if not status:
        found = checks.parsed(out)
        if "totals" in found:
            checks.adds_up(out, folder)
    assert _state(folder) == before
    return status == 0


def _one_after_the_other(paths, summarize):
    yield from ((path, parallel.attempt(path, summarize)) for path in paths)


def _change(given: Path, change: str, random: Random) -> None:
    entries = sorted(given.iterdir())
    files = [path for path in entries if path.is_file() and path.resolve().parent == given.resolve()]
    if not files:
        return
    file, other = random.choice(files), random.choice(files)
    if change in IN_CONTENT:
        content = bytearray(file.read_bytes())
        packed = content[:2] == b"\x1f\x8b" and random.random() < 0.7
        if packed:
            try:
                content = bytearray(gzip.decompress(content))
            except (OSError, EOFError, zlib.error):
                packed = False
        IN_CONTENT[change](content, random)
        file.write_bytes(gzip.compress(content, 1, mtime=0) if packed else content)
        return
    try:
        {**ENTRIES, **OF_TABLES}[change](file, other)
    except (OSError, ValueError, IndexError):  # is no table, or no such file any more
        return


def _state(folder: Path) -> dict[str, object]:
    """Return what stands in a folder: bytes, where links lead, and that something is there."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        found[str(path)] = (
            path.read_bytes() if is_file else path.readlink() if path.is_symlink() else path.stat().st_mode
        )
    return found
