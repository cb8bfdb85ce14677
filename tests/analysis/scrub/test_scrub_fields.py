"""Of a trace of any format, a copy has the fields that a rule lets leave, and nothing that is planted anywhere."""

import dataclasses
import json
from dataclasses import dataclass, fields, replace
from itertools import count

import msgspec
import numpy as np
import pytest
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.marks import (
    CALL_MARK,
    RECORDED_MARK,
    RUN_MARK,
    TRAINING_MARK,
    UNRECORDED_MARK,
    read_mark,
)
from nvtx_kernels.analysis.readers.saved import save
from nvtx_kernels.analysis.scrub.fields import RULES, SharedTrace
from nvtx_kernels.analysis.scrub.names import Names
from nvtx_kernels.analysis.scrub.words import EVERYBODYS, own_words, words_of
from nvtx_kernels.analysis.trace import BETWEEN_TEXTS, Fact, Provenance, Trace, Waits
from nvtx_kernels.analysis.vocabulary.settings import CHOICES
from nvtx_kernels.profiling.study.one_run import mark_text
from nvtx_kernels.profiling.study.settings import AUTOCAST_DTYPE, with_defaults
from nvtx_kernels.profiling.study.workload import Workload

from tests.analysis.making import private
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.bundled import DATA, OURS, unpacked
from tests.analysis.making.copies import figures, scrubbed
from tests.analysis.making.fragments import ANNOTATED, of_rocprof
from tests.analysis.making.parquet_folders import as_parquet
from tests.analysis.readers.test_saved import with_stacks

SECRET = "zqsecret"
#: How a name, a path or an address has a private word in it.
FORMS = ("{} {}", "{}/home/{}/x", "{}{}", "{} {}@lab.org", "{}_v2{}3", "{}X{}Model", "{}:{}", "{}\0{}", "{}é{}")


def plant(value, number):
    """Return a trace, or a part of it, with a secret in each of its texts."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, str):
        place = next(number)
        return FORMS[place % len(FORMS)].format(value, SECRET + chr(97 + place % 26))
    if isinstance(value, bytes):
        parts = [msgspec.json.decode(part) if part else [] for part in value.split(BETWEEN_TEXTS)]
        return BETWEEN_TEXTS.join(msgspec.json.encode(plant([*part, ""], number)) for part in parts)
    if dataclasses.is_dataclass(value):
        return replace(value, **{field.name: plant(getattr(value, field.name), number) for field in fields(value)})
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(value, **{name: plant(getattr(value, name), number) for name in names})
    if isinstance(value, dict):
        return value | {plant(key, number): plant(part, number) for key, part in value.items()}
    if isinstance(value, list | tuple | frozenset):
        parts = [plant(part, number) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def a_trace(folder, content):
    path = folder / "trace.json"
    path.write_text(content)
    return path


def a_database(folder):
    path = folder / "12_results.db"
    path.write_bytes(of_rocprof())
    return path


FORMATS = {
    "nsys": lambda folder: unpacked(OURS[1], folder),
    "nsys as Parquet": lambda folder: as_parquet(DATA / OURS[1], folder / "tables"),
    "a recording": lambda folder: unpacked(OURS[2], folder),
    "PyTorch": lambda folder: a_trace(folder, ANNOTATED),
    "PyTorch with stacks": with_stacks,
    "rocprofv3": a_database,
    "saved": lambda folder: scrubbed(unpacked(OURS[0], folder)),
}


def sums(report):
    """Return the figures of a report without what it says of its program."""
    status, parts = figures(report, "--operators", "keep")
    return status, [part for part in parts if part[0] != "report"]


def copied(trace):
    return SharedTrace(trace, Names(own_words=own_words(trace))).trace()


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS.keys())
def test_nothing_planted_in_any_field_is_in_a_copy_and_its_figures_are_equal(tmp_path, make):
    number = count()
    trace = plant(read(make(tmp_path)), number)
    save(copied(trace), tmp_path / "copy.sqlite")
    save(trace, tmp_path / "planted.sqlite")
    assert SECRET.encode() not in (tmp_path / "copy.sqlite").read_bytes().lower()
    assert SECRET.encode() in (tmp_path / "planted.sqlite").read_bytes()
    assert next(number) >= 20
    assert sums(tmp_path / "copy.sqlite") == sums(tmp_path / "planted.sqlite")


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS.keys())
def test_a_report_of_any_format_has_a_copy_of_the_same_figures(tmp_path, make):
    report = make(tmp_path)
    assert figures(scrubbed(report), "--operators", "keep") == figures(report, "--operators", "keep")


@pytest.fixture
def trace(tmp_path):
    return read(build(tmp_path, ranges=[Range("step", 0, 90)], **launched((10, 20))))


@dataclass(frozen=True, slots=True)
class LaterProvenance(Provenance):
    account: str = ""


@dataclass(frozen=True, slots=True)
class LaterTrace(Trace):
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaterWaits(Waits):
    account: np.ndarray


def values_of(record):
    return {field.name: getattr(record, field.name) for field in fields(record)}


def test_a_field_that_a_later_version_adds_does_not_leave(trace, tmp_path):
    provenance = LaterProvenance(**values_of(trace.provenance), account=SECRET)
    later = LaterTrace(**values_of(replace(trace, provenance=provenance)), accounts=(SECRET,))
    copy = copied(later)
    assert (copy.accounts, copy.provenance.account) == ((), "")
    save(copy, tmp_path / "copy.sqlite")
    assert SECRET.encode() not in (tmp_path / "copy.sqlite").read_bytes()


def test_a_column_without_a_rule_cannot_be_copied(trace):
    columns = [np.zeros(1, np.int64)] * 4
    with pytest.raises(TypeError, match="account"):
        copied(replace(trace, waits=LaterWaits(*columns)))


def test_every_field_but_the_surroundings_has_a_rule():
    named = {(kind, name) for kind in RULES for name in getattr(kind, "_fields", None) or kind.__match_args__}
    assert named - {(kind, name) for kind, rules in RULES.items() for name in rules} == {(Trace, "surroundings")}


def run_of(trace, facts, own=()):
    """Return what a copy has of the facts that a run said of itself."""
    known = replace(trace, provenance=replace(trace.provenance, run=facts))
    return SharedTrace(known, Names(own_words=own)).trace().provenance.run


def test_facts_of_a_run_that_its_schema_lacks_do_not_leave(trace):
    facts = {
        "size": "small, jdoe 3",
        "acme": 3,
        "mode": SECRET,
        "flops": {"forward > jdoe": 3},
        "torch": "2.11.0",
    }
    assert run_of(trace, facts) == {
        "size": "small, name1 3", "mode": "name2", "flops": {"forward > name1": 3}, "torch": "2.11.0",
    }  # fmt: skip


SURROUNDED = {
    "nsys": (lambda folder: unpacked(OURS[1], folder), lambda report, folder: report),
    "nsys as Parquet": (
        lambda folder: unpacked(OURS[1], folder),
        lambda report, folder: as_parquet(report, folder / "tables"),
    ),
}


@pytest.mark.parametrize(("make", "export"), SURROUNDED.values(), ids=SURROUNDED.keys())
def test_users_and_folders_are_known_to_be_words_to_hide(tmp_path, make, export):
    report = make(tmp_path)
    private.add_variables(report, USER="max", HF_TOKEN="hf_secret words", OMP_NUM_THREADS="softmax")
    assert read(export(report, tmp_path)).surroundings == {"max"}


def test_rocprofv3_says_hosts_and_commands(tmp_path):
    assert "python train.py" in read(a_database(tmp_path)).surroundings


def test_tables_of_modules_are_under_the_new_names(trace):
    classes = {"AcmeNet": {"layer */attn": "JdoeAttention", "x": ""}}
    counted = {"ranges": {"forward": {"forward > jdoe": [2, 64, {"bf16": 8}]}}, "uncounted": {"acme.op": [1, 8]}}
    known = replace(
        trace.provenance,
        models=classes,
        counted=(counted, {SECRET: 1}),
        steps="steps of AdamW",
        run={"untrained": ["AcmeNet/layer 3/attn", "AcmeNet/jdoe"], "frozen": ["AcmeNet/jdoe"]},
    )
    shared = copied(replace(trace, provenance=known)).provenance
    assert shared.models == {"Name1Net": {"layer */attn": "Name2Attention", "x": ""}}
    assert shared.counted[0]["ranges"] == {"forward": {"forward > name2": [2, 64, {"bf16": 8}]}}
    assert (shared.counted[0]["uncounted"], shared.counted[1]) == ({"name1.op": [1, 8]}, {})
    assert shared.steps == "steps of AdamW"
    assert shared.run == {
        "untrained": ["Name1Net/layer 3/attn", "Name1Net/name2"],
        "frozen": ["Name1Net/name2"],
    }


def test_a_name_of_a_kernel_and_a_range_becomes_two_and_unused_names_stay_behind(trace):
    names = ["jdoe_gemm", f"unused {SECRET}"]
    work, ranges = (replace(part, name_id=part.name_id * 0) for part in (trace.work, trace.ranges))
    shared = copied(replace(trace, work=work, ranges=ranges, names=names))
    assert [shared.names[part.name_id[0]] for part in (shared.work, shared.ranges)] == [
        "gemm_name_1",
        "name2_gemm",
    ]
    assert len(shared.names) == 2


@pytest.fixture
def of_run(monkeypatch):
    """The facts of a run's mark."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    sizes = {"d_model": 48, "d_ff": 80, "layers": 5, "heads": 3, "vocab_size": 99}
    text = mark_text(Workload(with_defaults({"size": "tiny", "device": "cpu", **sizes})))
    return json.loads(text.removeprefix(RUN_MARK))


def test_every_fact_that_a_run_says_of_itself_is_shared(trace, of_run):
    assert run_of(trace, of_run) == of_run


CHOSEN = {
    **CHOICES,
    "device": ("cpu", "cuda", "cuda:1"),
    "autocast": ("off", *(str(dtype).removeprefix("torch.") for dtype in AUTOCAST_DTYPE.values())),
}


@pytest.mark.parametrize(("setting", "choice"), [(name, choice) for name in CHOSEN for choice in CHOSEN[name]])
def test_every_choice_of_a_setting_is_shared_whatever_the_program_is_called(trace, of_run, setting, choice):
    facts = {name: fact for name, fact in of_run.items() if name not in ("flops", "bytes")} | {setting: choice}
    assert read_mark(RUN_MARK + json.dumps(facts))[1] == []
    own = words_of([*map(str, facts.values()), *(str(word) for words in CHOSEN.values() for word in words)])
    assert {"train", "reference", "small", "cuda", "nsys"} - own <= EVERYBODYS
    assert run_of(trace, facts, own) == facts


TIMED = {"clock": "gpu", "step_ns": [5], "where": "after", "span_ns": {"forward": [3.5]}, "shape": "fbA"}
MARKS = [
    *(TRAINING_MARK + json.dumps({"event": event}) for event in ("begin", "measure", "end", "step", "update")),
    *(UNRECORDED_MARK + json.dumps(TIMED), RECORDED_MARK + '{"shapes": ["fbA"], "sizes": [64]}'),
    CALL_MARK + '{"positions": 31}',
]


@pytest.mark.parametrize("text", MARKS)
def test_schema_of_a_mark_is_shared_whatever_the_program_is_called(trace, text):
    mark, unfit = read_mark(text)
    known = replace(trace, facts=(Fact(1, 0, mark),))
    assert unfit == []
    assert SharedTrace(known, Names(own_words=words_of([text]))).trace().facts == known.facts


def test_names_of_optimizers_and_errors_in_marks_are_replaced(trace):
    mark, _ = read_mark(TRAINING_MARK + '{"event": "end", "error": "JdoeError", "optimizers": ["AdamW", "Jdoe"]}')
    (fact,) = copied(replace(trace, facts=(Fact(1, 0, mark),))).facts
    assert (fact.mark.error, fact.mark.optimizers) == ("Name1Error", ["AdamW", "Name1"])
