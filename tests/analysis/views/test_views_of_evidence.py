"""What screens and JSON say of steps that no range names, and which options choose the evidence."""

import json
from dataclasses import replace

import pytest
from nvtx_kernels.analysis import compare, kernels
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.report.evidence import FOUND, StepEvidence
from nvtx_kernels.analysis.summary.parallel import Ranked
from nvtx_kernels.analysis.summary.together import kinds_for_all, same_evidence
from nvtx_kernels.analysis.views.evidence import sentences, subject_of
from nvtx_kernels.analysis.views.verdict import verdict

from tests.analysis.making.building import write
from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.looping import (
    COPY,
    backward,
    forward,
    gemm,
    named,
    report_of,
    training,
    update,
)

UPDATED = [
    event for _ in range(8) for event in (*forward(4), *backward(4), *named("Optimizer.step#SGD.step", update()))
]
CALLED = [event for _ in range(6) for event in (COPY, *named("Forward", forward(12)))]
REPEATED = [event for _ in range(6) for event in (COPY, *forward(12))]
ONE_PASS = named("Forward", forward(12))
SENTENCES = {
    "updates": (UPDATED, "each ends with an update by Optimizer.step#SGD.step (8 steps)."),
    "bursts": (training(8), "each ends with an update by the optimizer kernels (8 steps)."),
    "calls": (CALLED, "each call of `Forward` counts as one (6 calls)."),
    "repetition": (REPEATED, "each is a repetition of the same kernels (6 steps)."),
}


def report(folder, program, name="report.sqlite"):
    """Write the report of a program."""
    return write(folder / name, report_of(program))


def shown(capsys, *arguments):
    """Run `rank` and return what it prints, on one line."""
    assert kernels.main([*map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", SENTENCES)
def test_the_first_screen_says_once_by_what_steps_are_known(tmp_path, capsys, name):
    program, sentence = SENTENCES[name]
    screen = shown(capsys, report(tmp_path, program))
    assert screen.count("No range marks the steps: ") == 1
    assert f"No range marks the steps: {sentence}" in screen


def test_a_call_is_the_unit_of_a_program_that_does_not_train(tmp_path, capsys):
    screen = shown(capsys, report(tmp_path, CALLED))
    assert "A call takes " in screen
    assert "ms per Forward" in screen or "µs per Forward" in screen


def test_a_refusal_says_what_was_tried_and_which_option_helps(tmp_path, capsys):
    path = report(tmp_path, ONE_PASS)
    screen = shown(capsys, path)
    assert "No steps are known: what repeats has no copy, wait or update each time" in screen
    assert "If `Forward` is a step, add --step Forward." in screen
    assert "A step takes" in shown(capsys, path, "--step", "Forward")


def test_micro_batches_are_told(tmp_path):
    step = [*[COPY, *forward(4), *backward(4)] * 4, *update()]
    whole = opened(report(tmp_path, step * 5)).whole
    assert "Each step has 4 micro-batches." in verdict(whole)


def test_json_has_the_evidence_and_how_well_it_explains_the_work(tmp_path, capsys):
    path = report(tmp_path, UPDATED)
    assert kernels.main([str(path), "--format", "json"]) == 0
    account = json.loads(capsys.readouterr().out)["account"]
    keys = ("per", "steps_by", "steps_of", "steps_counted", "micro_batches")
    assert [account[key] for key in keys] == ["update", "updates", "Optimizer.step#SGD.step", 8, 1]
    assert account["steps_explained"] > 0.99
    assert account["steps_same"] > 0.99


def test_named_steps_have_no_explained_share(tmp_path, capsys):
    path = report(tmp_path, [event for _ in range(4) for event in named("step", forward(4))])
    assert kernels.main([str(path), "--format", "json"]) == 0
    account = json.loads(capsys.readouterr().out)["account"]
    assert (account["steps_by"], account["steps_explained"], account["steps_same"]) == ("named", None, None)


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        ("named", "--steps-by named excludes other evidence"),
        ("ranges", "--steps-by repetition does"),
        ("repetition", ""),
    ],
)
def test_an_option_chooses_the_evidence(tmp_path, capsys, allowed, told):
    screen = shown(capsys, report(tmp_path, REPEATED), "--steps-by", allowed)
    assert told in screen
    assert ("A step takes" in screen) == (not told)


def test_rules_for_a_build_use_repetition_only_if_asked(tmp_path, capsys):
    paths = [str(report(tmp_path, REPEATED, f"{name}.sqlite")) for name in "ab"]
    assert compare.main([*paths, "--fail-on", "total > +5%"]) == 0
    assert "Not per step" in " ".join(capsys.readouterr().out.split())
    assert compare.main([*paths, "--fail-on", "total > +5%", "--steps-by", "repetition"]) == 0
    assert "Not per step" not in " ".join(capsys.readouterr().out.split())


def test_sides_of_a_comparison_with_different_evidence_are_told(tmp_path, capsys):
    paths = [str(report(tmp_path, program, f"{len(program)}.sqlite")) for program in (REPEATED, training(8))]
    compare.main(paths)
    told = " ".join(capsys.readouterr().out.split())
    assert "A's are known by the repetition of the kernels, B's by updates." in told


def test_ranks_in_several_files_take_the_same_evidence(tmp_path, capsys):
    rank = [event for _ in range(8) for event in (COPY, *forward(4), *backward(4), *update())]
    silent = [event for event in rank if "multi_tensor" not in getattr(event, "name", "")]
    paths = [report(tmp_path, program, f"rank{number}.sqlite") for number, program in enumerate((rank, silent))]
    kinds = [opened(path).whole.account.evidence.by for path in paths]
    assert kinds == ["updates", "repetition"]
    screen = shown(capsys, *paths)
    assert "per step" in screen
    assert "do not have the same steps" not in screen


def test_ranks_whose_steps_differ_have_totals_and_are_told_why(tmp_path, capsys):
    paths = [report(tmp_path, training(steps), f"rank{steps}.sqlite") for steps in (8, 16)]
    screen = shown(capsys, *paths)
    assert "The reports do not have the same steps (8 by updates; 16 by updates), so figures are totals." in screen


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        ([("updates", 8), ("updates", 9)], FOUND),
        ([("updates", 8), ("updates", 16)], ()),
        ([("updates", 8), ("repetition", 8)], ("repetition",)),
        ([("ranges", 8), ("updates", 8)], ("ranges",)),
        ([("named", 8), ("repetition", 16)], FOUND),
        ([("none", 0), ("updates", 16)], FOUND),
    ],
)
def test_ranks_take_the_weakest_evidence_that_one_of_them_needs(found, kinds):
    assert kinds_for_all([StepEvidence(by, count=count) for by, count in found]) == kinds


def test_a_report_that_cannot_be_read_takes_no_part(tmp_path):
    ranked = [Ranked("rank0", opened(report(tmp_path, training(8))).whole), Ranked("rank1", problem="lost")]
    assert same_evidence([], ranked, lambda *_: pytest.fail("it was read again")) == (ranked, "")


def test_the_subject_of_a_sentence_is_what_the_steps_are(tmp_path):
    account = opened(report(tmp_path, CALLED)).whole.account
    assert subject_of(account) == "A call"
    assert subject_of(replace(account, evidence=replace(account.evidence, is_call=False))) == "Each `Forward`"
    assert subject_of(replace(account, evidence=StepEvidence("named"))) == "A step"


def test_on_a_cpu_operators_take_the_place_of_kernels(tmp_path):
    whole = opened(report(tmp_path, [gemm(1), *forward(4), *forward(4)])).whole
    on_cpu = replace(whole, provenance=replace(whole.provenance, unit_of_work="CPU"), no_steps="")
    account = replace(whole.account, evidence=StepEvidence("repetition", count=2, explained=0.9), per="step")
    assert next(sentences(on_cpu, account)).startswith(
        "No range marks the steps: each is a repetition of the same operators"
    )


SHARED_TRACES = SHARED / "failing" / "traces"


@needs_shared
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("updates_without_steps.pt.trace.json.gz", "an update by Optimizer.step#SGD.step (39 steps)"),
        (
            "cpu_micro_batches.json",
            "Only every 4th step has an update: these steps are micro-batches, and 4 of them take ",
        ),
        ("dataloader_t4.pt.trace.json", "The GPU is idle mostly while the program loads its next batch (43.7 ms"),
        ("one_step_data_wait.pt.trace.json", "idle mostly while the program loads its next batch (80.0 ms"),
        ("steps_without_gpu_events.pt.trace.json", "30 of 32 steps have no recorded work"),
    ],
)
def test_traces_that_were_told_wrongly_say_what_is_right(capsys, name, told):
    assert told in shown(capsys, SHARED_TRACES / name)
