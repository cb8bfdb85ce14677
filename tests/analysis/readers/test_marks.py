"""Marks that anybody can push: what fits the schema is taken, the rest is ignored and said."""

import json

import msgspec
import pytest
from nvtx_kernels.analysis.readers import marks, read
from nvtx_kernels.analysis.readers.marks import FLOPS_MARK as FLOPS
from nvtx_kernels.analysis.readers.marks import MEMORY_MARK as MEMORY
from nvtx_kernels.analysis.readers.marks import RUN_MARK as RUN
from nvtx_kernels.analysis.readers.marks import read_mark

from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.mutations import MARKS, NO_VALUES, forged


def test_every_mark_of_the_schema_is_tried_here():
    assert MARKS.keys() == marks.MARKS.keys()


@pytest.mark.parametrize("prefix", MARKS)
def test_what_this_project_writes_fits_whole(prefix):
    mark, unfit = read_mark(prefix + json.dumps(MARKS[prefix]))
    assert not unfit
    assert MARKS[prefix].items() <= {"version": 1, **json.loads(msgspec.json.encode(mark))}.items()


@pytest.mark.parametrize("new", NO_VALUES)
@pytest.mark.parametrize("prefix", MARKS)
def test_no_forged_value_passes_for_another_type(prefix, new):
    for field in range(len(MARKS[prefix])):
        for depth in range(3):
            mark, _ = read_mark(forged(prefix, field, depth, new))
            if mark is not None:
                assert msgspec.convert(msgspec.to_builtins(mark), type(mark)) == mark
                json.dumps(msgspec.to_builtins(mark), allow_nan=False)


FORGED = {
    RUN + '{"size": "small", "batch_size": 1.5}': ({"size": "small"}, "batch_size of nvtx-kernels.run"),
    RUN + '{"flops": {"a": 1, "b": -1, "c": 1e30, "d": "1"}}': ({"flops": {"a": 1}}, "flops of nvtx-kernels.run"),
    RUN + '{"flops": 3, "cuda": null}': ({"cuda": None}, "flops of nvtx-kernels.run"),
    RUN + '{"flops": {"a": 1e999}}': (None, "all of nvtx-kernels.run"),
    RUN + '{"size": NaN}': (None, "all of nvtx-kernels.run"),
    RUN + "[1]": (None, "all of nvtx-kernels.run"),
    FLOPS + '{"calls": {"m": true, "n": 2}}': ({"calls": {"n": 2}}, "calls of nvtx-kernels flops"),
    MEMORY + '{"now_ns": 1, "part": 0, "parts": -1}': (None, "parts of nvtx-kernels memory"),
}


@pytest.mark.parametrize("text", FORGED)
def test_entries_that_fit_are_kept_and_fields_that_do_not_are_named(text):
    kept, unfit = FORGED[text]
    mark, fields = read_mark(text)
    assert fields == [unfit]
    assert kept is None or kept.items() <= msgspec.to_builtins(mark).items()
    assert (mark is None) == (kept is None)


def test_a_forged_mark_is_said_once_and_the_work_is_read(tmp_path):
    forged_mark = Range(RUN + '{"steps": "two"}', 5, None, event=34)
    path = build(tmp_path, ranges=[Range("step", 0, 1000), forged_mark, forged_mark], **launched((10, 12)))
    trace = read(path)
    assert trace.notes == ("Marks say what this project does not write; ignored: steps of nvtx-kernels.run.",)
    assert (len(trace.work), trace.provenance.run) == (1, {})
