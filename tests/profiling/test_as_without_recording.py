"""Small programs run the same recorded as plain: what they compute, print, raise, write and leave behind."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.conftest import slice_of
from tests.profiling.making.small_programs import SMALL
from tests.profiling.making.zygote import Zygote

pytestmark = pytest.mark.slow
#: What `record` says, which the program does not.
OURS = re.compile(
    r"^(report(-\d)?\.sqlite\b|No (report|step boundary|optimizer step)|Every step was|\w+\.step\(\) was never"
    r"|The recording ended early|The program ended with \w+ before its first step"
    r"|record: \d|.* is being written; Ctrl-C).*\n",
    re.MULTILINE,
)
ADDRESS = re.compile(
    r"0x[0-9a-f]{6,}(?!\.)|(?<=USDT:)[^\n]*\d+:\d+|(?:\[|^)W\d[\d:. ]+|\[\d+/\d+\]"
    r"|(?<=pid )\d+|(?<=(?:pipe|cket):\[)\d+|/dev/shm/\w+"
    # What calls the program: another in a recorded run.
    r'|^  File "[^"]*(?:runpy>|/zygote\.py|/profiling/(?:record|cli|program)\.py)", line .*\n(?:    .*\n)?',
    re.MULTILINE,
)
#: Names that torch.compile leaves in a module, numbered by all that was compiled before.
COMPILED = re.compile(r"__(compiled_fn|import|resume_at|builtins_dict)_")


@pytest.fixture(scope="module")
def zygote():
    process = Zygote(Path(__file__).parents[2])
    yield process
    process.close()


def outcome(zygote, folder, text, *, recorded, soon):
    """Return all that can be seen of a run, in which neither folders nor addresses differ."""
    folder.mkdir()
    (folder / "train.py").write_text(text, errors="surrogatepass")
    status = zygote.run(folder, ["train.py"], recorded=recorded, soon=soon)
    files = {file.name: file for file in folder.rglob("*") if file.is_file()}
    printed = {
        name: ADDRESS.sub("", files.pop(f"{name}.txt").read_text().replace(str(folder), ""))
        for name in ("stdout", "stderr")
    }
    printed["stderr"] = OURS.sub("", printed["stderr"])
    state = files.pop("state.json").read_text() if "state.json" in files else "{}"
    left = json.loads(ADDRESS.sub("", state.replace(str(folder), "")))
    left["main"] = [name for name in left.get("main", ()) if not COMPILED.match(name)]
    made = {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in files.items()
        if not file.relative_to(folder).parts[0].startswith("report") and file.suffix != ".pyc"
    }
    return {"status": status, **printed, **left, "made": made}


@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL)
def test_a_recorded_program_is_the_same(zygote, tmp_path, text):
    soon = text not in slice_of([*SMALL.values()], 10)
    plain, recorded = (
        outcome(zygote, tmp_path / str(way), text, recorded=way, soon=soon) for way in (False, True)
    )
    differ = {name: (plain.get(name), value) for name, value in recorded.items() if value != plain.get(name)}
    assert differ == {}
