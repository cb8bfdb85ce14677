"""Idle time by Python function, where a trace has stacks: on a GPU and on a CPU."""

import pytest
from nvtx_kernels.analysis.views.verdict import verdict

import nvtx_kernels as nk
from tests.analysis.making.stacks import Event, launch, write
from tests.analysis.making.subjects import screen, subject, summarized, table, viewed

US = 1000


def frame(name, start, end, **more):
    """Return a call of a function, in microseconds."""
    return Event(name, start * US, end * US, **more)


def step(number, start, end):
    return frame(f"ProfilerStep#{number}", start, end, category="user_annotation")


@pytest.fixture
def traced(tmp_path):
    """A step of 1,000 us with two kernels, between which load runs, and in it zoom for most of the time."""
    frames = [
        frame("train.py(1): <module>", 0, 1_000),
        frame("train.py(5): load", 20, 900),
        frame("scipy/ndimage/_interpolation.py(9): zoom", 100, 800),
        frame("<built-in method sum>", 200, 300),
        frame("torch/nn/modules/module.py(1): _call_impl", 300, 400),
        frame("threading.py(3): run", 400, 500),
        frame("other.py(1): on_another_thread", 100, 800, thread=9),
    ]
    return write(tmp_path / "trace.json", step(0, 0, 1_000), launch(1, 10 * US), *frames, launch(2, 950 * US))


def test_host_code_is_told_by_its_innermost_function(traced):
    rows = {(row["cause"], row["function"]): row["idle_ns"] for row in table(viewed("idle", traced), "places")}
    assert rows["Python, other host code", "scipy/ndimage/_interpolation.py(9): zoom"] == 700 * US
    assert rows["Python, other host code", "train.py(5): load"] == (80 + 100) * US
    assert not any("built-in" in name or "torch" in name or "thread" in name for _, name in rows)
    assert "function" in screen(viewed("idle", traced))


def test_the_answer_names_the_function_with_half_of_a_cause(traced):
    said = verdict(subject(traced, per_step=True).report)
    assert "Python and other host code (950 µs, most in scipy/ndimage/_interpolation.py(9): zoom)" in said


def test_pieces_have_their_function_and_add_up(traced):
    (gpu,), pieces = summarized(traced).account.gpus, nk.idle(traced, pieces=True)
    assert list(pieces) == ["gpu", "cause", "range", "function", "line", "start_ns", "end_ns", "exposed_by"]
    pieces["ns"] = pieces["end_ns"] - pieces["start_ns"]
    assert pieces.groupby("cause")["ns"].sum().to_dict() == {row.cause: row.total_ns for row in gpu.causes}
    assert pieces[pieces["function"].str.contains("zoom", na=False)]["ns"].sum() == 700 * US


def test_people_see_no_column_of_functions_without_stacks(tmp_path):
    path = write(tmp_path / "trace.json", step(0, 0, 1_000), launch(1, 10 * US), launch(2, 950 * US))
    assert {row["function"] for row in table(viewed("idle", path), "places")} == {""}
    assert "function" not in screen(viewed("idle", path)).split("Note")[0]
    assert nk.idle(path, pieces=True)["function"].isna().all()


def test_a_program_on_a_cpu_is_told_by_function_too(tmp_path):
    operators = [frame("aten::mm", start, start + 100, category="cpu_op") for start in (0, 900)]
    frames = [frame("train.py(5): load", 150, 850), frame("scipy/x.py(9): zoom", 200, 700)]
    shown = viewed("idle", write(tmp_path / "trace.json", step(0, 0, 1_000), *operators, *frames))
    rows = {(row["cause"], row["function"]): row["idle_ns"] for row in table(shown, "places")}
    assert rows == {
        ("Python", "scipy/x.py(9): zoom"): 500 * US,
        ("Python", "train.py(5): load"): 200 * US,
        ("Python", ""): 100 * US,
    }
