"""Prefill and decode of steps that generate, against a slow count, and the programs that show neither."""

from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.report import as_object
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.support.units import time_in_digits
from nvtx_kernels.analysis.views.verdict import verdict

from nvtx_kernels import analysis
from tests.analysis.making.building import MARK, Launch, Range, Work, build
from tests.analysis.making.subjects import table, viewed
from tests.analysis.making.training_facts import DOMAIN, B, F, Recorded, U

LASTS = {"m": 50, "d": 7, "sample": 3}


class Calls(Recorded):
    """Rows of calls of models, each with its number of positions, a kernel, and one that samples after it."""

    def __init__(self):
        super().__init__()
        self.parts = []  # of each step: the model, the positions, when the call begins

    def kernel(self, name, thread=None):
        self.correlation += 1
        start = max(self.now + 3, self.work[-1].end if self.work else 0)
        self.launches.append(Launch(self.correlation, self.now, self.now + 2, thread or self.main))
        self.work.append(Work(self.correlation, start, start + LASTS.get(name, 10), name))
        self.now += 5

    def call(self, model, positions):
        def body():
            if positions:
                text = f'nvtx-kernels call: {{"positions": {positions}}}'
                self.ranges.append(Range(text, self.now, None, self.main, DOMAIN, MARK))
            self.kernel(model)

        self.parts[-1].append((model, positions, self.now))
        self.range(model, "model/evaluation", body)
        self.kernel("sample")
        self.now += 20

    def steps(self, *steps):
        self.mark("begin", warmup=0)
        for calls in steps:
            self.parts.append([])
            for model, positions in calls:
                self.call(model, positions)
            self.mark("step")
        return self


@pytest.fixture
def attributed(tmp_path_factory):
    return lambda recorded: attribute(analysis.read(build(tmp_path_factory.mktemp("report"), **recorded.rows)))


def times(attribution):
    account = summarize(attribution).account
    return [(row.prefill_ns, row.decode_ns, row.decode_calls, row.tokens) for row in account.rows], account


def expected(recorded):
    """Return the same by the definition."""
    launched = {launch.correlation: launch.start for launch in recorded.launches}
    ends = [(launched[work.correlation], work.end) for work in recorded.work]
    marks = [r.start for r in recorded.ranges if r.event == MARK and "training" in r.name]
    before, rows = None, []
    for calls, (low, high) in zip(recorded.parts, pairwise(marks), strict=True):
        done = [end for at, end in ends if at <= high]
        begins = low + 1 if before is None else before  # a step begins right behind its mark
        before = max(done)
        models = [model for model, positions, _ in calls if positions]
        main = [n for n, (model, positions, _) in enumerate(calls) if positions and model == models[-1]]
        parts = [calls[low:high] for low, high in pairwise([0, *(n + 1 for n in main)])]
        if parts:
            parts[-1] += calls[main[-1] + 1 :]
        most = [max(positions for _, positions, _ in part) for part in parts]
        jumps = [(b / a, b) for a, b in pairwise(sorted({*most}))]
        jump, least = max(jumps, default=(0, 0))
        if jump < 2 or most[0] < least or 1 not in [positions for _, positions, _ in calls]:
            rows.append((None, None, None, None))
            continue
        starts = [part[0][2] for part in parts[1:]]
        edges = [begins, *(max([begins, *(end for at, end in ends if at < start)]) for start in starts), before]
        lasts = [high - low for low, high in pairwise(edges)]
        prefill = sum(ns for ns, size in zip(lasts, most, strict=True) if size >= least)
        decoded = [calls[n][1] for n, size in zip(main, most, strict=True) if size < least]
        tokens = len(decoded) if {*decoded} == {1} else None
        rows.append((prefill, sum(lasts) - prefill, len(decoded), tokens))
    return rows


COUNTS = st.sampled_from([0, 1, 1, 1, 4, 6, 20, 40])
STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from("mmd"), COUNTS), min_size=1, max_size=8), min_size=1, max_size=4
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_parts_of_any_steps_are_those_of_the_definition(attributed, steps):
    recorded = Calls().steps(*steps)
    found, account = times(attributed(recorded))
    assert found == expected(recorded)
    assert all(row.prefill_ns + row.decode_ns == row.own_ns for row in account.rows if row.decode_calls)
    prefill_ns, decode_ns = map(account.generation, ("prefill_ns", "decode_ns"))
    if decode_ns is not None:
        assert prefill_ns + decode_ns == pytest.approx(account.step_ns)


PLAIN = [("m", 16), ("m", 1), ("m", 1), ("m", 1)]
SPECULATIVE = [("d", 12), ("d", 1), ("m", 16), *[("d", 1), ("d", 1), ("m", 3)] * 4]


@pytest.mark.parametrize(
    ("calls", "decode_calls", "tokens"),
    [
        (PLAIN, 3, 3),
        (SPECULATIVE, 4, None),
        ([*PLAIN, *PLAIN], 6, 6),
        ([("m", 512), ("m", 512), ("m", 300), ("m", 1), ("m", 1)], 2, 2),  # a prompt in chunks
        ([("m", 24), ("m", 1), ("m", 4), ("m", 1), ("m", 4)], 4, None),  # by looking the prompt up
        ([("d", 30), ("m", 1), ("m", 1), ("m", 1)], 2, 2),  # an encoder
        ([("m", 0), ("m", 1), ("m", 1)], None, None),
        ([("m", 16), ("m", 17), ("m", 18)], None, None),  # no cache
        ([("m", 64), ("m", 40), ("m", 10)], None, None),  # an evaluation
        ([("m", 16)], None, None),
        ([("m", 1), ("m", 1)], None, None),
    ],
)
def test_tokens_of_loops_that_people_write(calls, decode_calls, tokens, attributed):
    found, account = times(attributed(Calls().steps(calls, calls)))
    assert [row[2:] for row in found] == [(decode_calls, tokens)] * 2
    assert account.generation("tokens") == tokens
    assert (account.token_ns is None) == (tokens is None)


def test_a_program_that_trains_has_no_prefill(attributed):
    recorded = Calls()
    recorded.mark("begin", warmup=0)
    recorded.parts.append([])
    for call in PLAIN:
        recorded.call(*call)
    for number, event in enumerate([F("m"), B(), U("a")]):
        recorded.do(number, event)
    assert times(attributed(recorded))[0] == [(None,) * 4]


def test_the_answer_tells_both_and_json_has_them(attributed):
    report = summarize(attributed(Calls().steps(PLAIN, PLAIN, PLAIN)))
    prefill_ns, decode_ns = map(report.account.generation, ("prefill_ns", "decode_ns"))
    about = as_object(report)["report"]
    assert (about["prefill_ns"], about["decode_ns"]) == (prefill_ns, decode_ns)
    assert (about["decode_calls"], about["tokens"], about["token_ns"]) == (3, 3, decode_ns / 3)
    assert about["prefill_ns"] + about["decode_ns"] == about["step_ns"]
    text = f"decode {decode_ns:.0f} ns: {decode_ns / 3:.0f} ns a token (3 tokens)."
    assert f"Prefill takes {time_in_digits(prefill_ns)}, {text}" in verdict(report)
    report = summarize(attributed(Calls().steps(SPECULATIVE)))
    assert "a call (4 calls of several tokens)." in verdict(report)
    about = as_object(summarize(attributed(Calls().steps([("m", 16)]))))["report"]
    assert {about[name] for name in ("prefill_ns", "decode_ns", "decode_calls", "tokens", "token_ns")} == {None}


def test_the_steps_view_has_a_column_each(tmp_path):
    path = build(tmp_path, **Calls().steps(PLAIN, PLAIN, PLAIN).rows)
    account = analysis.rank(path, per_step=True).report.account
    steps = [row for row in table(viewed("steps", path, whole=True), "steps") if row["level"] == "step"]
    shown = table(viewed("steps", path), "steps")
    for name in ("prefill_ns", "decode_ns", "tokens"):
        figures = [getattr(row, name) for row in account.rows]
        assert [row[name] for row in steps] == figures
        assert [row[name] for row in shown] == [*figures, mean(getattr(row, name) for row in account.counted)]
