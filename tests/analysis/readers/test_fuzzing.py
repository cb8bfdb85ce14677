"""A fixed number of fuzzed reports; `make fuzz` tries more. What was once found stands here by itself."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.analysis.making.checks import CHECKS, check, is_harmless
from tests.analysis.making.fragments import REPORTS, fragments, of_report
from tests.analysis.making.mutations import MARKS, Change, changed
from tests.analysis.making.several import KINDS, Several, answer, bases
from tests.analysis.making.ways import Way
from tests.conftest import VARIABLE, slice_of
from tests.fuzzing import fuzz, run

ROOT = Path(__file__).parents[3]
CASES, SEED = 60, int(os.environ[VARIABLE])
DIGEST = """
import hashlib
from tests.analysis.making.fragments import REPORTS, of_report
print(hashlib.sha256(b"".join(of_report(REPORTS[0]))).hexdigest())
"""


def test_changed_reports_are_answered_right_or_refused():
    passed = fuzz(CASES, SEED)
    assert passed["cases"] == CASES
    assert passed["answered"] >= CASES / 6


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_beside_reports_are_read_or_refused(kind):
    assert fuzz(CASES, SEED, (kind,))["cases"] == CASES


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_beside_reports_are_answered(tmp_path, kind):
    for number in range(len(bases(kind))):
        (tmp_path / str(number)).mkdir()
        assert answer(tmp_path / str(number), Several(kind, number, ()))


#: The first case of each defect that fuzzing found in files beside reports.
FOUND_BESIDE = {
    "a summary's histogram of another size": Several("ranks", 0, (("flipped", 381149718),)),
}


@pytest.mark.parametrize("case", FOUND_BESIDE)
def test_what_fuzzing_found_beside_reports_stays_mended(tmp_path, case):
    answer(tmp_path, FOUND_BESIDE[case])


@pytest.mark.slow
def test_a_seed_stands_for_the_same_reports_in_every_process():
    there = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    said = subprocess.check_output([sys.executable, "-c", DIGEST], cwd=ROOT, env=there, text=True)
    assert said.strip() == hashlib.sha256(b"".join(of_report(REPORTS[0]))).hexdigest()


RUN, MODEL, FLOPS, *_ = MARKS
# Stretch of a report, and what was changed, of the first case of each defect that fuzzing found.
FOUND = {
    "metadata without values": (0, [Change("no column", 9, 1, 0, 0, 0)]),
    "a line feed for a time": (0, [Change("a value", 0, 0, 1, 1, b"\n")]),
    "rows out of order": (0, [Change("flipped", 0, 9, 4, 0, 0)]),
    "rows without numbers": (
        0,
        [
            Change("a value", 0, 0, 0, 0, 0),
            Change("a value", 0, 0, 0, 0, 0),
            Change("an index", 2, 0, 0, 0, 0),
            Change("a page for another", 0, 0, 1, 2, 0),
        ],
    ),
    "zeros in a page": (0, [Change("zeros", 0, 0, 4, 49, 0)]),
    "bytes for a string's id": (0, [Change("a column", 1, 5, 0, 0, b"\x01")]),
    "the last string id there is": (0, [Change("a column", 0, 5, 0, 0, 2**63 - 1)]),
    "a number for a thread's name": (0, [Change("a page for another", 0, 0, 14, 9, 0)]),
    "kernels of no length": (1, [Change("a column", 2, 0, 0, 0, 5), Change("a column", 2, 1, 0, 0, 5)]),
    "a GPU before the first": (0, [Change("a column", 2, 2, 0, 0, -2)]),
    "a GPU before the first, in a trace": (3, [Change("a column", 2, 9, 0, 0, -2)]),
    "a fact of the run that no run writes": (0, [Change("flipped", 0, 0, 293, 222, 0)]),
    "1.0 for a category": (0, [Change("a mark", 0, 0, 3, 0, MODEL + '{"categories": {"model/forward": 1.0}}')]),
    "FLOPs that are no number": (0, [Change("a mark", 0, 0, 3, 0, RUN + '{"flops": {"forward": "1"}}')]),
    "FLOPs beyond 64 bits": (0, [Change("a mark", 0, 0, 3, 0, RUN + f'{{"flops": {{"forward": {10**30}}}}}')]),
    "FLOPs beyond all": (0, [Change("a mark", 0, 0, 3, 0, RUN + '{"flops": {"forward": 1e999}, "size": NaN}')]),
    "counts that are no numbers": (0, [Change("a mark", 0, 0, 3, 0, FLOPS + '{"calls": {"m": 1e999}}')]),
    "a GPU without a number": (4, [Change("no column", 8, 0, 0, 0, 0)]),
    "a range's name of which the run counts bytes": (8, [Change("flipped", 0, 0, 12, 400, 0)]),
    "a registered string that is missing": (14, [Change("a value", 0, 12, 8, 8, -1)]),
    "bytes close to zero": (
        0,
        [Change("a mark", 0, 0, 3, 0, RUN + '{"flops": {"forward": 1}, "bytes": {"forward": 1e-320}}')],
    ),
    "an escape sequence for the unit of work": (8, [Change("a column", 9, 1, 0, 0, "\x1b")]),
}


#: Of each command and of each rule one check, and some of the others.
OF_EACH = {each: one for one in reversed(CHECKS) for each in (one[0], one[2])}
OTHERS = [one for one in dict.fromkeys(CHECKS) if one not in OF_EACH.values()]
MADE = [pytest.param(one, id=one[1]) for one in (*dict.fromkeys(OF_EACH.values()), *slice_of(OTHERS, 5))]


@pytest.mark.parametrize("command_and_rule", MADE)
@pytest.mark.parametrize("case", FOUND)
def test_what_fuzzing_found_stays_mended(tmp_path, case, command_and_rule):
    which, changes = FOUND[case]
    report = fragments()[which]
    check(tmp_path, report, changed(report, changes), command_and_rule)


def test_a_text_that_is_in_no_dictionary_is_refused(tmp_path):
    """Arrow reads the numbers of Parquet's texts unchecked: they led beyond the dictionary."""
    way = Way("kernels", "parquet", "none", (), (59, 5226, 1, 0, 0, 0, 0, 0))
    assert not run((14, [Change("a value", 0, 0, 0, 0, 0)], way), tmp_path)


@pytest.mark.parametrize("command_and_rule", MADE)
def test_no_reason_for_a_refusal_can_drive_a_terminal(tmp_path, command_and_rule):
    report = fragments()[0]
    damaged = report.replace(b'TABLE "TARGET_INFO_GPU"(', b'TABLE "TARGET_INFO_GPU"\x1b')
    assert damaged != report
    check(tmp_path, report, damaged, command_and_rule)


def wrong(status=0, out="", err="", then=lambda report: None):
    """Return a command that behaves as no command may."""

    def main(words):
        sys.stdout.write(out)
        sys.stderr.write(err)
        then(Path(words[0]))
        return status

    command = ModuleType("command")
    command.main = main
    return command


WRONG = {
    "unknown exit status": wrong(status=7),
    "no reason": wrong(status=1),
    "two sentences": wrong(status=1, err="error: this\nthat\n"),
    "an answer and a reason": wrong(out="answer", err="error: this\n"),
    "memory": wrong(status=1, err="error: not enough memory for this report.\n"),
    "escape sequence": wrong(out="\x1b[31mred"),
    "escape sequence in a reason": wrong(status=1, err="error: \x1b[31mred\n"),
    "a file beside the report": wrong(then=lambda report: report.with_name("stray").touch()),
    "a changed report": wrong(then=lambda report: report.write_bytes(b"")),
    "traceback": wrong(then=lambda report: report.with_name("missing").read_bytes()),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_checks_notice(tmp_path, fault):
    with pytest.raises((AssertionError, FileNotFoundError)):
        check(tmp_path, b"whole", b"changed", (WRONG[fault], "REPORT", is_harmless))
