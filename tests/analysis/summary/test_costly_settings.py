"""Notes on settings that cost time or memory, and silence where they do not."""

import json

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.summary.costly_settings import COSTLY, of_settings

from tests.analysis.making.building import MARK, Range, build, launched

LOADER = {"num_workers": 2, "pin_memory": True, "persistent_workers": True}
#: The facts of a run, what a note begins with, and similar facts without a note.
NOTED = {
    "checks of collectives": ({"distributed_debug": "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG is DETAIL", {}),
    "no workers": (
        {"loaders": [LOADER, LOADER | {"num_workers": 0}]},
        "A DataLoader has num_workers=0",
        {"loaders": [LOADER]},
    ),
    "not pinned": (
        {"loaders": [LOADER | {"pin_memory": False}], "device_memory_bytes": 1},
        "A DataLoader has pin_memory=False",
        {"loaders": [LOADER | {"pin_memory": False}]},
    ),
    "full memory": ({"memory_retries": 3}, "Memory was full", {"memory_retries": 0}),
    "odd sizes": (
        {"odd_sizes": {"head.weight": [50257, 768], "classifier.weight": [10, 8]}},
        "head.weight is 50,257 × 768",
        {"odd_sizes": {"classifier.weight": [10, 8]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_costs_is_noted(case):
    facts, begins, harmless = NOTED[case]
    [note] = of_settings(facts)
    assert note.startswith(begins)
    assert list(of_settings(harmless)) == []


@pytest.mark.parametrize(("fact", "costs"), [(fact, costs) for fact, costs, _ in COSTLY])
def test_a_switch_is_noted_where_it_costs(fact, costs):
    assert len(list(of_settings({fact: costs}))) == 1
    assert list(of_settings({fact: not costs})) == []
    assert list(of_settings({})) == []


def test_a_report_has_the_notes_of_its_run(tmp_path, capsys):
    run = Range(f"nvtx-kernels.run {json.dumps({'launch_blocking': True})}", 0, None, event=MARK)
    report = build(tmp_path, ranges=[run, Range("step", 5, 40)], **launched((10, 12)))
    assert kernels.main([str(report), "--format", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["report"]["notes"]
    assert any(note.startswith("CUDA_LAUNCH_BLOCKING is set") for note in notes)
