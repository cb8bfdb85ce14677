"""No secret and no name of a person or a machine, planted in names, is in a copy; its figures are the report's."""

import gzip

import pytest
from nvtx_kernels.analysis import scrub
from nvtx_kernels.analysis.scrub.names import LONGEST

from tests.analysis.making import hostile, planted, private
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.checks import said
from tests.analysis.making.copies import figures, scrubbed
from tests.analysis.making.kineto import Block, Call, Program, Work, events_of, trace_text

TOGETHER = 200


def steps(names):
    """One range a name, each with a kernel of its own."""
    return [Range(name, 100 * n, 100 * n + 90) for n, name in enumerate(names)]


def launches(names):
    return launched(*((100 * n + 10, 100 * n + 20) for n in range(len(names))))


def as_sqlite(folder, names, variables=()):
    """A report whose ranges have these names, and which knows these environment variables."""
    report = build(folder, ranges=steps(names), **launches(names))
    private.add_variables(report, **dict(variables))
    return report


def as_trace(folder, names):
    """A PyTorch trace of the same."""
    ends = [(100 * n, 100 * n + 90, name) for n, name in enumerate(names)]
    program = Program(
        blocks=[Block(name, start, end) for start, end, name in ends],
        calls=[Call(n + 1, start + 10, start + 20) for n, (start, _, _) in enumerate(ends)],
        work=[Work(n + 1, start + 30, start + 40, "gemm") for n, (start, _, _) in enumerate(ends)],
    )
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(trace_text(events_of(program)).encode("utf-8", "surrogateescape")))
    return path


def holds_none(report, words):
    copy = scrubbed(report)
    assert planted.found_in(words, copy.read_bytes()) == []
    assert figures(copy, "--operators", "keep") == figures(report, "--operators", "keep")
    status, out, _ = said(scrub, str(copy), "--check")
    assert (status, "nothing private found" in out) == (0, True), out


@pytest.mark.parametrize("number", [TOGETHER, pytest.param(planted.COUNT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [as_sqlite, as_trace])
def test_no_planted_secret_is_in_any_copy(tmp_path, make, number):
    pairs = planted.secrets(number)
    for begin in range(0, len(pairs), TOGETHER):
        secrets, names = zip(*pairs[begin : begin + TOGETHER], strict=True)
        holds_none(make(tmp_path, names), secrets)


@pytest.mark.parametrize("secret", ["ghp_" + "aB3dE6gH9j" * 4, "/home/jdoe/model"])
def test_what_is_written_as_utf_16_inside_a_name_is_in_no_copy(tmp_path, secret):
    names = ["\0".join(f"x {secret} y"), f"a\0{secret}\0b"]
    holds_none(as_sqlite(tmp_path, names), [secret, "\0".join(secret)])


# Pieces of private values, which a slow search would begin and give up at every letter.
PIECES = (
    "a", "/a", "/home/a", "/home/a b", "a.", "a@", "a:", "1.", "a://", "password", "key", "api_key", "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----", "eyJ", "C:\\a", "~/a", "/layer.0", "a/", "a.py/", "0a:", "Bearer ", "-u a", "é",
)  # fmt: skip


@pytest.mark.slow
def test_long_names_take_no_long_time(tmp_path):
    names = [(piece * LONGEST)[:LONGEST] for piece in PIECES] + ["/home/jdoe" * LONGEST]
    said_ = hostile.run(str(as_sqlite(tmp_path, names)), "-o", str(tmp_path / "copy"), module="analysis.scrub")
    assert (said_.status, said_.err) == (0, "")
    assert b"jdoe" not in (tmp_path / "copy").read_bytes()


@pytest.fixture(scope="module")
def plain_copy(tmp_path_factory):
    """The bytes of a copy in which nobody is named."""
    return scrubbed(as_sqlite(tmp_path_factory.mktemp("plain"), ["step"])).read_bytes()


PEOPLE = [pytest.param(p, id=p.word, marks=[pytest.mark.slow] * (n % 3 > 0)) for n, p in enumerate(planted.PEOPLE)]


@pytest.mark.parametrize("person", PEOPLE)
def test_no_name_of_a_person_or_a_machine_is_in_a_copy(tmp_path, plain_copy, person):
    assert planted.found_in([person.word], plain_copy) == []
    holds_none(as_sqlite(tmp_path, person.names, [(person.variable, person.value)]), [person.word])
