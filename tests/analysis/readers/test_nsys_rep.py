"""A .nsys-rep is read as its SQLite export is, by the faster way where this nsys has it."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.readers.nsys_rep import KEEP
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.support.progress import listening

from nvtx_kernels import analysis
from tests.analysis.making.building import Launch, Node, Range, Work, build
from tests.analysis.making.kineto import STEP, write_nsys
from tests.analysis.making.standin_export import MAGIC

ROOT = Path(__file__).parents[3]
# How nsys behaves, and what it leaves of an export that is kept.
MANNERS = {
    "2025.3": "run_pqtdir", "2026.1": "run_pqtdir", "2025.3 without parquet": "run.sqlite",
    "2025.3 forgetful": "run.sqlite", "2024.6": "run.sqlite",
}  # fmt: skip


def summary_of(trace):
    report = summarize(attribute(trace))
    return replace(report, provenance=replace(report.provenance, file=""))


@pytest.fixture(params=MANNERS)
def nsys(request, tmp_path, monkeypatch):
    """Put an nsys of some version on the PATH; return its manner."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "nsys"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.analysis.making.standin_export "$@"\n')
    script.chmod(0o755)
    for name, value in {"NSYS": request.param, "PATH": str(script.parent), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.fixture
def report(tmp_path):
    export = write_nsys(tmp_path / "export.sqlite", STEP)
    (tmp_path / "run.nsys-rep").write_bytes(MAGIC + export.read_bytes())
    return tmp_path / "run.nsys-rep"


def test_report_is_read_as_its_export_is(nsys, report, tmp_path):
    seen = []
    with listening(lambda expected, read: seen.append((expected, read))):
        found = analysis.read(report)
    assert found.provenance.file == "run.nsys-rep"
    assert summary_of(found) == summary_of(analysis.read(tmp_path / "export.sqlite"))
    assert seen[0] == (100, 0)
    assert {"bin", "run.nsys-rep", "export.sqlite"} == {entry.name for entry in tmp_path.iterdir()}


def test_export_can_be_kept_and_is_not_overwritten(nsys, report, tmp_path, monkeypatch):
    monkeypatch.setenv(KEEP, str(tmp_path / "kept"))
    expected = summary_of(analysis.read(report))
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.name == MANNERS[nsys]
    assert summary_of(analysis.read(kept)) == expected
    with pytest.raises(UsageError, match=f"{kept.name} exists already: read it instead of run.nsys-rep"):
        analysis.read(report)


def test_creations_of_graphs_nodes_are_exported_too(nsys, tmp_path):
    replay = {"launches": [Launch(1, 250, 260)], "work": [Work(1, 270, 280, node=7)]}
    export = build(tmp_path, ranges=[Range("layer", 10, 20)], nodes=[Node(7, 15)], **replay)
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(MAGIC + export.read_bytes())
    assert analysis.read(report).captures.of_work.tolist() == [0]


PROGRAM = """
import torch
with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
    model = torch.nn.Linear(64, 64, device="cuda")
    model(torch.ones(8, 64, device="cuda")).sum().backward()
"""


@pytest.mark.gpu
def test_real_nsys_exports_the_same_answer_either_way_and_parquet_if_it_can(tmp_path, monkeypatch):
    if not (nsys := shutil.which("nsys")):
        pytest.skip("nsys is not installed")
    monkeypatch.setenv(KEEP, str(tmp_path / "kept"))
    report, export = tmp_path / "run.nsys-rep", tmp_path / "run.sqlite"
    record = [nsys, "profile", "-t", "cuda,nvtx", "-o", str(report), sys.executable, "-c", PROGRAM]
    subprocess.run(record, check=True)
    subprocess.run([nsys, "export", "--type", "sqlite", "-o", str(export), str(report)], check=True)
    trace = analysis.read(report)
    assert len(trace.work)
    assert summary_of(trace) == summary_of(analysis.read(export))
    assert [entry.name for entry in (tmp_path / "kept").iterdir()] == ["run_pqtdir"]
