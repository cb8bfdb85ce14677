"""The pages of `reports/` are made from files of results alone, compared with the published figures."""

import csv
import json
import re
import sys

import pytest

from tests.profiling.making.measured_rows import failed, row
from tests.profiling.making.recordings import REPOSITORY, python

REPORTS = REPOSITORY / "reports"
SCRIPT = REPOSITORY / "benchmarks" / "record_reports.py"
sys.path.append(str(SCRIPT.parent))
report_pages = pytest.importorskip("report_pages")
report_cold_start = pytest.importorskip("report_cold_start")
MEASUREMENTS = REPORTS / "h200" / "measurements"


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(path.stem for path in MEASUREMENTS.glob("*.md")))
def test_page_is_what_its_rows_make(part):
    assert report_pages.page(MEASUREMENTS, part) == (MEASUREMENTS / f"{part}.md").read_text()


def steps(**times):
    """Ten measured steps of these times in ms, and five before them."""
    run = {**times, "step": sum(times.values())}
    return {"warmup": [run] * 5, "measured": [run] * 10}


def h200(times, started="2026-01-02T03:04:05Z", **cell):
    return {**row(warmup=range(5), measured=range(10), **cell), **steps(**times), "started": started}


def pages(folder, *rows, parts):
    for name in ("measurements.1", "nsys", "warmup"):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return [report_pages.page(folder, part) for part in parts]


def lines_of(page, title):
    """The cells of a table's lines, by its headers."""
    text = page.partition(f"### {title}")[2].partition("\n\n")[2].partition("\n\n")[0]
    headers, _, *lines = [list(map(str.strip, line.split("|")[1:-1])) for line in text.strip().splitlines()]
    return [dict(zip(headers, line, strict=True)) for line in lines]


def beside(page):
    return {(line["size"], line.get("dtype"), line["phase"]): line for line in lines_of(page, "Compared")}


@pytest.mark.slow
def test_own_figures_stand_beside_the_published_ones(tmp_path):
    near = h200({"forward": 18.9, "backward": 36.8, "optimizer": 3.4}, dtype="fp32")
    far = h200({"forward": 9.6, "backward": 30.0, "optimizer": 3.4}, dtype="bf16")
    other = h200({"forward": 1.0, "backward": 1.0, "optimizer": 1.0}, dtype="fp32", compile=True)
    seed = h200({"forward": 34.0, "backward": 46.9}, mode="forward-backward")
    watched = h200({"forward": 35.0, "backward": 46.9}, mode="forward-backward", capture="nsys-light")
    first, second = pages(tmp_path, near, far, other, seed, watched, parts=["a", "n"])
    assert "python -m profiling.benchmark --sizes small,medium,large,xl,2.7B" in first
    close = {key: line["within 10 %"] for key, line in beside(first).items()}
    assert (close["small", "bf16", "backward"], close["small", "fp32", "optimizer"]) == ("no", "yes")
    assert (close["2.7B", "bf16", "backward"], beside(first)["2.7B", "bf16", "backward"]["ours ms"]) == ("–", "–")
    assert ("33.980 ± 0.180" in second, "| 1 " in " ".join(second.split())) == (True, True)


@pytest.mark.slow
def test_page_says_what_of_its_command_was_not_measured(tmp_path):
    seen = h200({"forward": 34.0, "backward": 46.9}, mode="forward-backward", started="2026-01-02T09:04:05Z")
    lost = failed(mode="forward", size="medium", warmup=range(5), measured=range(10))
    [page] = pages(tmp_path, seen, h200({"forward": 12.0}, mode="forward"), lost, parts=["b003"])
    assert "> Note: medium failed: the process was ended by SIGKILL" in page
    measured = "2 of the command's 40 configurations were measured, 2026-01-02 03:04; 2026-01-02 09:04 (UTC)."
    assert f"- {measured}\n" in page
    assert (
        "small forward warm-up 0, 1, 2; small forward-backward warm-up 0, 1, 2; medium forward warm-up 5" in page
    )


@pytest.mark.slow
def test_ten_steps_count_after_so_many_of_warmup(tmp_path):
    times = [{"forward": ms, "backward": 2.0, "step": ms + 2.0} for ms in (1000.0, 500.0, *[10.0] * 13)]
    cold = row(mode="forward-backward", compile=True, warmup=(), measured=range(15))
    [page] = pages(tmp_path, {**cold, "measured": times}, parts=["w"])
    here = [line for line in lines_of(page, "Mean of ten steps") if line["source"] == "here"]
    means = [line["mean ms"] for line in here if line["phase"] == "forward"]
    assert means == ["158.000", "59.000", "10.000", "10.000"]


def test_what_first_steps_spend_their_time_in_is_of_the_rows(tmp_path):
    assert report_cold_start.cold_starts(tmp_path) == []
    cell = {"size": "small", "context_length": 512, "batch_size": 4, "mode": "forward", "dtype": "fp32"}
    state = {"device_name": "NVIDIA H200", "torch": "2.11.0"}
    first = {"loading code": 20.0, "launching new kernels": 30.0, "new kernels": 46, "allocating": 11.0}
    runs = [
        {"cell": {**cell, "attention": "reference", "compile": how}, "state": state, "steps": steps}
        for how, steps in {
            False: [{"step": 300.0, **first}, {"step": 60.0}],
            True: [{"step": 24000.0, "compiling": 23000.0}, {"step": 50.0}],
            "reduce-overhead": [{"step": 24000.0}, {"step": 170.0}, {"step": 40.0}],
        }.items()
    ]
    file = tmp_path / "cold_start.jsonl"
    file.write_text("".join(f"{json.dumps(run)}\n" for run in runs))
    text = " ".join("".join(report_cold_start.cold_starts(tmp_path)).split())
    assert "takes 300 ms: 20 ms load code, 30 ms launch 46 kernels for the first time" in text
    assert "Compilation takes 23.0 of the first 24.0 s" in text
    assert "second step still takes 170 ms, in which CUDA graphs are recorded, and the third 40 ms" in text


@pytest.mark.slow
def test_times_under_nsys_stand_beside_those_of_the_seed(tmp_path):
    times = {"forward": 20.0, "backward": 40.0, "optimizer": 4.0}
    slower = {**times, "forward": 25.0}
    [page] = pages(tmp_path, h200(times), h200(slower, capture="nsys-light"), parts=["d"])
    ratios = {
        (line["source"][:3], line["size"], line["phase"]): line["ratio"] for line in lines_of(page, "Slower")
    }
    assert ratios["her", "small", "forward"] == "1.25"
    assert ratios["001", "small", "forward"] == "2.87"


@pytest.mark.parametrize("page", sorted(REPORTS.rglob("*.md")), ids=lambda path: str(path.relative_to(REPORTS)))
def test_every_link_of_a_report_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_published_time_stands_on_a_page_of_the_reports():
    text = "".join(page.read_text() for page in MEASUREMENTS.glob("*.md"))
    with (SCRIPT.parent / "published.csv").open() as file:
        figures = [float(line["mean_ms"]) for line in csv.DictReader(file)]
    assert len(figures) > 200
    assert [ms for ms in figures if f"{ms:.3f}" not in text and f"{ms:,.3f}" not in text] == []


def test_part_that_does_not_exist_is_refused(tmp_path):
    done = python(SCRIPT, tmp_path, "z")
    assert (done.returncode, "no such part: z" in done.stderr) == (2, True)
