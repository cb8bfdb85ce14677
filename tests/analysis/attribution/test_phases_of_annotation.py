"""Phases where no range's name says one, but this project's annotation says what is forward and what backward."""

import json

import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import measured_steps
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.trace import MODEL_BACKWARD, MODEL_FORWARD, NO_CATEGORY
from nvtx_kernels.profiling import annotate, recorder
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.analysis.making import building
from tests.analysis.making.building import AUTOGRAD, MAIN, WORKER, Range, annotation, build, launched, module
from tests.analysis.making.bundled import unpacked
from tests.analysis.making.copies import scrubbed
from tests.analysis.making.traces import answers

BACK = building.MODEL_BACKWARD
# Two calls of a model and its backward on autograd's thread, in one range that opens no phase; times in tens.
PIPELINE = [
    Range("forward and backward", 0, 300),
    module("GPT", 10, 50),
    module("update", 20, 40),
    module("GPT", 100, 200, AUTOGRAD, BACK),
    module("update", 120, 140, AUTOGRAD, BACK),
]
CALLS = {
    "before": (5, 6),
    "module": (25, 26),
    "model": (45, 46),
    "loss": (60, 61),
    "loss's node": (90, 91, AUTOGRAD),
    "module's node": (125, 126, AUTOGRAD),
    "gradients": (210, 211, AUTOGRAD),
    "clipping": (220, 221),
}
EXPECTED = {
    "before": "other", "module": "forward", "model": "forward", "loss": "forward", "loss's node": "backward",
    "module's node": "backward", "gradients": "backward", "clipping": "other",
}  # fmt: skip


def phases(tmp_path, ranges, calls=CALLS, **more):
    """Return the phase of each call, by its name."""
    rows = launched(*calls.values())
    report = build(tmp_path, ranges=[*annotation(), *ranges], **rows, **more)
    return dict(zip(calls, (phase for _, _, phase in answers(attribute(read(report)))), strict=True))


@pytest.mark.parametrize("ranges", [PIPELINE, PIPELINE[1:]], ids=["in one range", "in no other range"])
def test_a_models_ranges_tell_forward_and_backward_apart(tmp_path, ranges):
    assert phases(tmp_path, ranges) == EXPECTED


def test_categories_of_other_domains_say_nothing(tmp_path):
    theirs = [
        Range("model/forward", 0, None, MAIN, 5, building.CATEGORY, 1),
        Range("theirs", 0, None, MAIN, 5, 75),
    ]
    ranges = [*annotation(WORKER), *theirs, Range("net", 10, 50, MAIN, 5, category=1)]
    report = build(tmp_path, ranges=ranges, **launched((20, 30)))
    assert read(report).ranges.category.tolist() == [NO_CATEGORY]
    assert [phase for _, _, phase in answers(attribute(read(report)))] == ["other"]


def test_a_mark_tells_the_categories_that_a_capture_range_lost(tmp_path):
    numbers = json.dumps({"version": 1, "categories": building.CATEGORIES})
    mark = Range(f"nvtx-kernels annotation: {numbers}", 1, None, MAIN, building.OWN_DOMAIN, building.MARK)
    report = build(tmp_path, ranges=[mark, *PIPELINE], **launched(*CALLS.values()))
    assert [phase for _, _, phase in answers(attribute(read(report)))] == list(EXPECTED.values())
    assert answers(attribute(read(scrubbed(report)))) == answers(attribute(read(report)))


@pytest.mark.parametrize("column", ["with", "without"])
def test_reports_without_categories_are_read_as_before(tmp_path, column):
    report = build(tmp_path, ranges=[*annotation(), *PIPELINE], **launched((25, 26)))
    if column == "without":
        building.alter(report, "ALTER TABLE NVTX_EVENTS DROP COLUMN category")
    told = [NO_CATEGORY, MODEL_FORWARD, MODEL_FORWARD, MODEL_BACKWARD, MODEL_BACKWARD]
    assert read(report).ranges.category.tolist() == (told if column == "with" else [NO_CATEGORY] * 5)


class Net(nn.Module):
    """Modules whose names are those of phases and steps."""

    def __init__(self):
        super().__init__()
        self.update, self.step, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.head(checkpoint(self.step, self.update(x).relu(), use_reentrant=False))


def trained(path, around=None):
    """Record three steps of a model that is only annotated, as a Trainer's loop has them; return the report."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", operators=True):
        for _ in range(3):
            with annotate.range(around or "training"):
                loss = model(torch.ones(4, 32)).square().mean()
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return path


def by_operator(attribution):
    """Return the phases of each operator's work."""
    found, names = {}, attribution.trace.names
    for name_id, (_, path, phase) in zip(attribution.trace.work.name_id, answers(attribution), strict=True):
        found.setdefault(names[name_id], {}).setdefault(phase, set()).add(path[-1] if path else "")
    return found


@pytest.mark.parametrize("around", [None, "forward and backward"])
def test_recorded_training_is_told_apart_by_annotation_alone(tmp_path, around):
    attribution = attribute(read(trained(tmp_path / "report.sqlite", around)))
    work = by_operator(attribution)
    assert work["aten::addmm"] == {"forward": {"update", "step", "head"}, "backward": {"step"}}
    assert work["aten::mm"] == {"backward": {"update", "step", "head"}}
    assert set(work["aten::mean"]) == set(work["aten::relu"]) == {"forward"}
    assert set(work["aten::threshold_backward"]) == set(work["aten::mul"]) - {"other"} == {"backward"}
    assert set(work["aten::linalg_vector_norm"]) == {"other"}
    assert set(work["aten::addcdiv_"]) == {"optimizer"}
    assert len(measured_steps(attribution)) == 2
    report = summarize(attribution)
    rest = report.totals.outside_ns + report.totals.ambiguous_ns + report.totals.excluded_ns
    assert report.totals.work_ns == sum(row.self_work_ns for row in report.ranges) + rest
    assert "A step ends with each update by AdamW." in report.notes
    assert not [note for note in report.notes if "No range opens" in note]


def test_annotations_phase_stays_around_pytorchs_own_range_of_an_update(tmp_path):
    report = summarize(attribute(read(unpacked("h200_emit_nvtx.sqlite.xz", tmp_path))))
    paths = {row.path for row in report.ranges if row.phase == "optimizer"}
    optimizer = ("measure", "step", "optimizer")
    assert {optimizer, (*optimizer, "Optimizer.step#ReferenceAdamW.step")} <= paths
