"""docs/gallery.md under test: the answers that it quotes are today's answers of the recorded programs."""

import lzma
import re
import shutil
from pathlib import Path

import pytest

from nvtx_kernels.__main__ import main

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
PAGE = (ROOT / "docs" / "gallery.md").read_text()
QUOTED = re.findall(r"^```\n(.*?)\n^```$", PAGE, re.DOTALL | re.MULTILINE)
#: The recorded programs of the page, in its order.
PROGRAMS = (
    "loader",
    "images.record",
    "unaligned",
    "empty_cache",
    "eager_chains",
    "metrics_cpu",
    "moe_loop",
    "ranks",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SHARED / "gains").exists(), reason="../shared/gains is absent"),
]


def unpacked(name, folder):
    """Return paths of a program's reports, unpacked into a folder: one a rank."""
    if name == "ranks":
        packed = sorted((SHARED / "ranks").rglob("rank0_slow.rank*.sqlite.xz"))
    else:
        packed = [SHARED / "gains" / f"{name}.sqlite.xz"]
    for source in packed:
        with lzma.open(source) as content, (folder / source.stem).open("wb") as file:
            shutil.copyfileobj(content, file)
    return [str(folder / source.stem) for source in packed]


@pytest.mark.parametrize(("name", "quoted"), [*zip(PROGRAMS, QUOTED, strict=True)], ids=PROGRAMS)
def test_an_answer_is_as_quoted(name, quoted, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["rank", *unpacked(name, tmp_path)]) == 0
    answer = " ".join(capsys.readouterr().out.split())
    first, _, changes = quoted.partition("\n\n")
    assert " ".join(first.split()) in answer
    assert " ".join(changes.split()) in answer
