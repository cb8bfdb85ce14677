"""A timeline's slices nest on their tracks, sum to the report's own totals, and are tied to what launched them."""

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis import timeline as command
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.support.files import write_lines
from nvtx_kernels.analysis.timeline.as_chrome_trace import chrome_trace, slices
from nvtx_kernels.analysis.vocabulary import PATH_SEPARATOR

from tests.analysis.making.building import MAIN, WORKER, Launch, Range, Work, build, launched, thread
from tests.analysis.making.bundled import DATA, SHARED
from tests.analysis.making.made_reports import two_steps

REAL = sorted([*DATA.glob("*.sqlite"), *SHARED.glob("h200/*.sqlite"), *SHARED.glob("corpus/[!IY]*.sqlite")])
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 9)), max_size=20)


def timeline_of(path, **options):
    attribution = attribute(read(path))
    return json.loads("".join(chrome_trace(attribution, **options))), summarize(attribution, include_warm_up=True)


def ns(us):
    """Return whole nanoseconds of a time in the file, cut as a reader may that does not round."""
    return int(us * 1000)


def of_kind(trace, *phases):
    return [event for event in trace["traceEvents"] if event["ph"] in phases]


def with_category(trace, category):
    return [event for event in of_kind(trace, "X") if event["cat"] == category]


def work_of(trace):
    return [event for event in of_kind(trace, "X") if "given" in event.get("args", {})]


def named(trace):
    """Return the name of each track."""
    return {event["tid"]: event["args"]["name"] for event in of_kind(trace, "M") if event["name"] == "thread_name"}


def by_track(trace):
    tracks = defaultdict(list)
    for event in of_kind(trace, "X"):
        start = ns(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, start + ns(event["dur"])))
    return tracks


def nests(slices):
    """Brute force: slices in the order of the file, of which none crosses one that is still open."""
    opened = []
    for start, end in slices:
        while opened and opened[-1] <= start:
            opened.pop()
        if opened and end > opened[-1]:
            return False
        opened.append(end)
    return all(a[0] <= b[0] for a, b in pairwise(slices))


@given(SPANS, st.booleans())
def test_slices_of_one_lane_nest_and_those_that_may_not_are_apart(rows, nest):
    group, start, length = np.array(rows, np.int64).reshape(-1, 3).T
    drawn = slices(group, start, start + length, np.arange(len(group)), nest=nest)
    tracks = defaultdict(list)
    for place, lane, begins, ends in zip(
        *(column.tolist() for column in (drawn.group, drawn.lane, drawn.start_ns, drawn.end_ns)), strict=True
    ):
        tracks[place, lane].append((begins, ends))
    assert all(map(nests, tracks.values()))
    assert nest or all(a[1] <= b[0] for track in tracks.values() for a, b in pairwise(track))
    used_lanes = set(drawn.lane.tolist())
    assert used_lanes == set(range(len(used_lanes)))


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_slices_of_real_reports_nest_sum_to_their_totals_and_launches_point_at_their_work(path):
    trace, report = timeline_of(path)
    assert all(nests(slices) for slices in by_track(trace).values())
    assert sum(ns(event["dur"]) for event in work_of(trace)) == report.totals.work_ns
    drawn, known = Counter(), Counter()
    for event in work_of(trace):
        drawn[event["args"]["path"], event["cat"]] += ns(event["dur"])
    for row in report.kernels:
        known[PATH_SEPARATOR.join(row.path), row.category] += row.total_ns
    assert drawn == known
    begun, ended = ({event["id"]: event for event in of_kind(trace, phase)} for phase in "sf")
    launched_work = {(event["pid"], event["tid"], event["ts"]) for event in work_of(trace)}
    assert begun.keys() == ended.keys()
    assert {(event["pid"], event["tid"], event["ts"]) for event in ended.values()} <= launched_work
    starts = {place: {start for start, _ in slices} for place, slices in by_track(trace).items()}
    assert all(ns(event["ts"]) in starts[event["pid"], event["tid"]] for event in begun.values())


@pytest.mark.parametrize("report", ["h200_train_fp32", "h200_compiled"])
def test_projected_ranges_are_the_gpu_spans_of_the_report(report):
    trace, known = timeline_of(DATA / f"{report}.sqlite")
    span, kernels = Counter(), Counter()
    for event in with_category(trace, "projected range"):
        span[event["args"]["path"]] += ns(event["dur"])
        kernels[event["args"]["path"]] += event["args"]["kernel_ns"]
    assert span == {PATH_SEPARATOR.join(row.path): row.span_ns for row in known.ranges if row.span_ns is not None}
    assert kernels == Counter({PATH_SEPARATOR.join(row.path): row.inclusive_ns for row in known.ranges})


def test_backward_is_projected_although_another_thread_launched_it(tmp_path):
    autograd = thread(100, 101)
    report = build(
        tmp_path,
        ranges=[Range("backward", 0, 100)],
        **launched((10, 11, MAIN), (20, 21, autograd), (80, 81, autograd), lasts=15),
        thread_names={autograd: "pt_autograd_0"},
    )
    trace, _ = timeline_of(report)
    (projected,) = with_category(trace, "projected range")
    assert (projected["name"], ns(projected["dur"])) == ("backward", (82 + 15) - 12)
    assert [event["args"]["given"] for event in work_of(trace)] == ["own", "adopted", "adopted"]


def test_ranges_that_cross_are_on_two_tracks_with_their_own_times(tmp_path):
    ranges = [Range("a", 0, 50, domain=0), Range("b", 20, 80, domain=1), Range("inside b", 60, 70, domain=1)]
    trace, _ = timeline_of(build(tmp_path, ranges=ranges, **launched((30, 31))))
    drawn = {e["name"]: (named(trace)[e["tid"]], ns(e["ts"]), ns(e["dur"])) for e in with_category(trace, "range")}
    assert drawn == {
        "a": ("thread 100: ranges", 0, 50),
        "b": ("thread 100: ranges, crossing 1", 20, 60),
        "inside b": ("thread 100: ranges", 60, 10),
    }


def test_kernels_that_overlap_on_a_stream_are_side_by_side(tmp_path):
    work = [Work(None, 0, 100, "long"), Work(None, 40, 60, "within"), Work(None, 70, 130, "over")]
    trace, _ = timeline_of(build(tmp_path, work=work))
    drawn = {event["name"]: named(trace)[event["tid"]] for event in work_of(trace)}
    aside = "stream 7: work, crossing 1"
    assert drawn == {"long": "stream 7: work", "within": aside, "over": aside}


def test_tracks_have_numbers_of_their_own_in_every_process(tmp_path):
    other = thread(200, 100)  # another process whose thread has the number of the first one's
    report = build(
        tmp_path,
        ranges=[Range("one", 0, 50), Range("two", 0, 50, thread=other), Range("three", 0, 9, thread=WORKER)],
        launches=[Launch(1, 10, 11), Launch(1, 12, 13, thread=other)],
        work=[Work(1, 20, 30), Work(1, 22, 33, process=other >> 24 << 24)],
    )
    trace, _ = timeline_of(report)
    tids = [event["tid"] for event in of_kind(trace, "M") if event["name"] == "thread_name"]
    assert len(tids) == len(set(tids)) == 9
    assert len({event["pid"] for event in work_of(trace)}) == 2


def test_names_of_any_kind_stay_text(tmp_path):
    range_name, kernel_name = '</script>"\\ \x1b[0m\u202e', "</script>" + "x" * 5_000
    report = build(tmp_path, ranges=[Range(range_name, 0, 90)], **launched((10, 11), name=kernel_name))
    trace, _ = timeline_of(report)
    (kernel,), (drawn,) = work_of(trace), with_category(trace, "range")
    assert kernel["args"]["name"].startswith("</script>xxx")
    assert len(kernel["args"]["name"]) == 200
    assert drawn["name"] == '</script>"\\ \\x1b[0m\\u202e'


def test_without_arrows_only_arrows_are_missing(tmp_path):
    report = two_steps(tmp_path / "r.sqlite")
    (full, _), (plain, _) = timeline_of(report), timeline_of(report, arrows=False)
    assert len(of_kind(full, "s")) == len(of_kind(full, "f")) == 8
    assert plain["traceEvents"] == of_kind(full, "M", "X")


def test_a_file_that_ends_with_gz_is_compressed_and_always_the_same(tmp_path):
    report = str(two_steps(tmp_path / "r.sqlite"))
    outputs = [tmp_path / name for name in ("a.json.gz", "b.json.gz", "c.json")]
    assert [command.main([report, "-o", str(output)]) for output in outputs] == [0, 0, 0]
    first, second, plain = (output.read_bytes() for output in outputs)
    assert first == second
    assert gzip.decompress(first) == plain
    assert len(json.loads(plain)["traceEvents"]) > 40


def test_writing_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    def lines():
        yield "new"
        raise RuntimeError("out of luck")

    (tmp_path / "t.json").write_text("old")
    with pytest.raises(RuntimeError, match="out of luck"):
        write_lines(lines(), tmp_path / "t.json")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"t.json": "old"}


@pytest.mark.parametrize(
    ("report", "output", "status", "says"),
    [("none.sqlite", "t.json", 1, "does not exist"), ("r.sqlite", "no/such/t.json", 2, "cannot be written")],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(tmp_path, capsys, report, output, status, says):
    two_steps(tmp_path / "r.sqlite")
    assert command.main([str(tmp_path / report), "-o", str(tmp_path / output)]) == status
    assert says in capsys.readouterr().err
