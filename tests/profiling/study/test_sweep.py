"""Real processes: they are killed, run out of memory, take too long, and a sweep goes on."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from nvtx_kernels.profiling.study import results
from nvtx_kernels.profiling.study.frame import frame
from nvtx_kernels.profiling.study.processes import Cell, measured, missing, product, row_of, state_of, sweep
from nvtx_kernels.profiling.study.settings import Settings
from nvtx_kernels.profiling.study.table import table

from tests.profiling.making.measured_rows import row
from tests.profiling.making.recordings import REPOSITORY
from tests.profiling.making.shown_tables import shown

TINY = {"size": "tiny", "context_length": 16, "batch_size": 1, "warmup": 1, "steps": 2, "device": "cpu"}
CELLS = product({**{name: [value] for name, value in TINY.items()}, "mode": ["forward", "train"]})
PATIENCE_S = 120


def benchmark(path):
    """Sweep three modes from a process of its own."""
    sizes = ["--sizes", "tiny", "--contexts", "16", "--steps", "2", "--device", "cpu"]
    modes = ["--modes", "forward,forward-backward,train", "--into", str(path)]
    command = [sys.executable, "-m", "profiling.benchmark", *sizes, *modes]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rows_in(path):
    return results.read(path)[0]


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def measuring_for(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            measures = "profiling.run\0" in (stat.parent / "cmdline").read_text()
            found += [int(stat.parent.name)] if parent == pid and measures else []
    return found


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_killed_sweep_leaves_no_process_and_is_completed_by_the_same_command(tmp_path):
    path = tmp_path / "rows.jsonl"
    killed = benchmark(path)
    wait_for(lambda: len(rows_in(path)) == 1 and measuring_for(killed.pid))
    [measuring] = measuring_for(killed.pid)
    killed.kill()
    killed.communicate()
    wait_for(lambda: not is_running(measuring))
    [first] = rows_in(path)
    with path.open("a") as file:
        file.write('{"version": 1, "kind": "model", "cell"')
    shown, said = benchmark(path).communicate(timeout=PATIENCE_S)
    rows = rows_in(path)
    assert rows[0] == first
    assert [row["cell"]["mode"] for row in rows] == ["forward", "forward-backward", "train"]
    assert "3 of 3 configurations are in" in said
    assert "2 measured now" in said
    assert "1 incomplete or foreign lines skipped" in said
    assert "1 of 2: tiny ctx16 forward-backward" in said
    assert [shown.count(f" {phase} ") for phase in ("backward", "optimizer")] == [2, 1]


@pytest.mark.slow
def test_resumed_sweep_measures_what_is_missing_and_what_failed(tmp_path):
    path, cells = tmp_path / "rows.jsonl", [*CELLS, replace(CELLS[0], repeat=1), replace(CELLS[1], repeat=1)]
    done, elsewhere = row(state=state_of("cpu")), row(state={"device_name": "CPU", "torch": "1.0"})
    rows = [{**done, "cell": cells[0].key}, {**elsewhere, "cell": cells[1].key}]
    rows += [{**done, "cell": cells[2].key, "status": "failed"}]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert missing(cells, path) == cells[1:]


@pytest.mark.slow
def test_sweep_under_nsys_leaves_its_cells_to_be_measured_without(tmp_path, monkeypatch):
    path, cells = tmp_path / "rows.jsonl", CELLS[:1]
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    assert sweep(cells, path, measured) == (1, 0)
    [told] = rows_in(path)
    assert (told["status"], told["state"]["watched_by"], missing(cells, path)) == ("ok", "nsys", [])
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID")
    assert missing(cells, path) == cells


@pytest.mark.slow
def test_budget_ends_a_sweep_between_two_cells(tmp_path):
    path, cells = tmp_path / "rows.jsonl", [replace(cell, capture="bare") for cell in CELLS]
    assert sweep(cells, path, measured, budget_s=0.01) == (1, 1)
    [told] = rows_in(path)
    assert told["cell"] == cells[0].key
    assert (told["status"], len(told["warmup"]), len(told["measured"])) == ("ok", 1, 2)


@pytest.mark.slow
def test_out_of_memory_is_a_row_with_phase_and_request():
    cell = Cell(Settings(**{**TINY, "size": "small"}), memory_fraction=0.05)
    told = measured(cell)
    assert (told["status"], told["cell"], told["state"]["device_name"][:3]) == ("oom", cell.key, "CPU")
    assert told["phase"] in ("building the model", "forward", "backward", "optimizer")
    assert told["requested_bytes"] > 1 << 20
    [line] = shown(table(frame([told])))
    assert line["result"].startswith(f"OOM in {told['phase']}, asked for")


def test_cell_that_takes_too_long_is_ended_with_what_it_started():
    told = measured(Cell(Settings(**TINY)), longest_s=0.2)
    assert (told["status"], told["message"]) == ("failed", "took longer than 0.2 s")


KILLED = "import os; print('nearly there'); os.sys.stdout.flush(); os.kill(os.getpid(), 9)"
ENDINGS = [
    (KILLED, "the process was ended by SIGKILL; its last words: nearly there"),
    ("raise SystemExit(3)", "the process ended with status 3; its last words: none"),
]


@pytest.mark.parametrize(("program", "message"), ENDINGS)
def test_process_that_leaves_no_row_is_told_by_its_end(program, message, tmp_path):
    assert row_of([sys.executable, "-c", program], str(tmp_path), None) == {"message": message}


@pytest.mark.parametrize("cold", [True, False])
def test_cold_program_has_caches_of_its_own(cold, tmp_path):
    program = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    environment = row_of(
        [sys.executable, "-c", program, str(tmp_path / "row.json")], str(tmp_path), None, cold=cold
    )
    caches = [environment.get("TORCHINDUCTOR_CACHE_DIR", ""), environment.get("TRITON_CACHE_DIR", "")]
    assert [cache.startswith(str(tmp_path)) for cache in caches] == [cold, cold]


def test_error_in_the_measured_program_is_a_failed_row():
    told = measured(Cell(Settings(**TINY), capture="emit-nvtx"))
    assert told["status"] == "failed"
    assert "without a GPU, ranges for operators need a recording" in told["message"]


@pytest.mark.slow
def test_terminated_sweep_says_how_to_go_on(tmp_path):
    sweeping = benchmark(tmp_path / "rows.jsonl")
    wait_for(lambda: measuring_for(sweeping.pid))
    [measuring] = measuring_for(sweeping.pid)
    sweeping.send_signal(signal.SIGTERM)
    _, said = sweeping.communicate(timeout=PATIENCE_S)
    assert (sweeping.returncode, "run the same command again to continue" in said) == (130, True)
    assert not is_running(measuring)


@pytest.mark.slow
def test_recorder_watches_the_same_steps():
    told = measured(Cell(Settings(**TINY), capture="recorder"))
    assert (told["status"], len(told["warmup"]), len(told["measured"])) == ("ok", 1, 2)
    assert set(told["measured"][0]) == {"forward", "backward", "optimizer", "step"}
    assert set(told["phase_peak_bytes"]) == {"forward", "backward", "optimizer"}
