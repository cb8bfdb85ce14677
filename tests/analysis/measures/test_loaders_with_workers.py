"""A loader that has workers is told from one without, by each kind of evidence, and gets other advice."""

from functools import partial

import pytest
from nvtx_kernels.analysis.account.in_turn import has_workers
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.opened import opened, trace_of
from nvtx_kernels.analysis.vocabulary.loading import IN_PROGRAM, IN_WORKERS, loads_in_workers

from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.simulated import MS, TF32_GEMM, US, recorded

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
CUT = "enumerate(DataLoader)#_M…DataLoaderIter.__next__"


def loading(machine, name=WORKERS, waits=6 * MS):
    """Run a step that waits for its batch."""
    with machine.range(name):
        machine.host(waits)
    machine.work(2 * US, 1, kind="memcpy", bytes=32768, source=1, target=2)
    with machine.range("forward"):
        machine.gemms(30, 200 * US, TF32_GEMM)
    machine.read()


@pytest.mark.parametrize(("name", "has"), [(SINGLE, False), (WORKERS, True), (CUT, True)])
def test_the_advice_is_for_the_loader_that_the_program_has(tmp_path, name, has):
    fix = fixes_of(opened(recorded(tmp_path, partial(loading, name=name))).partition).fixes[0]
    assert fix.rule == "host_pause"
    for text in (fix.sentence, fix.short):
        assert ("more workers, or a faster __getitem__" in text.lower()) is has
        assert ("num_workers=" in text) is not has


@pytest.mark.parametrize("names", [IN_WORKERS, IN_PROGRAM])
def test_names_say_it(names):
    kind = names is IN_WORKERS
    assert {loads_in_workers(name) for name in names.examples} == {kind}
    assert kind not in {loads_in_workers(name) for name in names.near_misses}


@pytest.mark.parametrize(("counts", "has"), [([4], True), ([0], False), ([0, 4], None), ([], None)])
def test_without_names_the_settings_of_the_loaders_say_it(tmp_path, counts, has):
    trace = trace_of(recorded(tmp_path, partial(loading, name="load_batch")))
    assert has_workers(trace, {"loaders": [{"num_workers": count} for count in counts]}) is has


def test_names_are_believed_before_settings(tmp_path):
    trace = trace_of(recorded(tmp_path, loading))
    assert has_workers(trace, {"loaders": [{"num_workers": 0}]}) is True


@needs_shared
def test_a_trace_with_scrubbed_names_has_workers():
    report = SHARED / "failing/traces/dataloader_t4.pt.trace.json"
    assert "has workers" in fixes_of(opened(report).partition).fixes[0].sentence


def seldom_late(machine, *, late=9 * MS, **options):
    """Run steps of which the fourth is late: its batch, or something else in it, takes longer."""
    is_late = len(machine.begun) == 4
    loading(machine, waits=late if is_late else 20 * US, **options)


def loading_late(machine, *, late):
    """Run steps that all wait for their batch, the fourth of them longer."""
    is_late = len(machine.begun) == 4
    loading(machine, waits=late if is_late else 9 * MS, name=WORKERS)


@pytest.mark.parametrize(
    ("name", "late", "is_told"), [(WORKERS, 9, True), (WORKERS, 1.5, False), ("save", 9, False)]
)
def test_batches_that_come_late_in_few_steps_are_told(tmp_path, name, late, is_told):
    program = partial(seldom_late, name=name, late=round(late * MS))
    advice = fixes_of(opened(recorded(tmp_path, program)).partition)
    fixes = [fix for fix in advice.fixes if fix.rule == "late_batches"]
    assert bool(fixes) is is_told
    for fix in fixes:
        assert "1 of 6 steps wait 8.98 ms longer for their batch, 1.50 ms on average" in fix.sentence
        assert "more workers" in fix.sentence
        assert fix.alone_ns == pytest.approx(9 * MS / 6, rel=0.01)
        assert fix.step_ns == pytest.approx(advice.step_ns + fix.alone_ns)


def test_the_same_change_for_loading_and_for_late_batches_is_named_once(tmp_path):
    program = partial(loading_late, late=round(50 * MS))
    advice = fixes_of(opened(recorded(tmp_path, program)).partition)
    rows = {fix.rule: fix.short for fix in advice.fixes}
    assert rows["late_batches"].startswith("The same for late batches: 1 of 6 steps wait ")
