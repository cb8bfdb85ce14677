"""ncu's file is read within bounds; what is beyond them is refused in one sentence."""

import tracemalloc

import pytest
from nvtx_kernels.analysis.errors import AnalysisError, NotAReport
from nvtx_kernels.analysis.ncu import counters
from nvtx_kernels.analysis.ncu.counters import read
from nvtx_kernels.analysis.ncu.tool import run_ncu

HEADER = '"ID","Kernel Name","Process ID","Grid Size","a metric"\n'
ROW = '"{}","k","1","(1, 1, 1)","3"\n'
TOO_MUCH = {
    "a line without an end": (HEADER + '"' + "x" * (3 << 20), "a line of more than"),
    "a long field": (HEADER + '"1","' + "x" * 200_000 + '","1","1","3"\n', "cannot be read as ncu's CSV"),
    "many values": (HEADER + ROW.format(1) * 200_001, "more than 1,000,000 values"),
    "a long number": (HEADER + ROW.format("9" * 5000), "is not a number"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_too_much_is_refused_in_a_sentence(tmp_path, what):
    text, sentence = TOO_MUCH[what]
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(NotAReport, match=sentence) as refusal:
        read(tmp_path / "c.csv")
    assert "\n" not in str(refusal.value)


def test_a_grid_of_many_digits_does_not_end_the_reading(tmp_path):
    (tmp_path / "c.csv").write_text(HEADER + f'"1","k","1","({"9" * 5000}, 1, 1)","3"\n')
    assert [launch.metrics for launch in read(tmp_path / "c.csv")] == [{"a metric": 3}]


def test_what_others_print_takes_no_memory_and_ends_at_the_limit(tmp_path, monkeypatch):
    (tmp_path / "c.csv").write_text("loss 2.31\n" * (2 << 20) + "==ERROR== ERR_NVGPUCTRPERM\n")
    tracemalloc.start()
    with pytest.raises(NotAReport, match="ncu may not read the GPU's counters"):
        read(tmp_path / "c.csv")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20
    monkeypatch.setattr(counters, "LARGEST_FILE", 10 << 20)
    with pytest.raises(NotAReport, match=r"has more than 10 MiB\. Profile fewer kernels"):
        read(tmp_path / "c.csv")


@pytest.mark.parametrize("line", ["loss 2.31\n", "==PROF== 0%\n", "x" * 99, "==ERROR== " * 9])
def test_a_programs_output_in_ncus_log_takes_no_memory(tmp_path, line):
    (tmp_path / "log").write_text("==ERROR== The application returned an error code (3).\n" + line * (1 << 20))
    tracemalloc.start()
    with pytest.raises(AnalysisError, match="ncu ended with status 1") as refusal:
        run_ncu(["false"], tmp_path / "log")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(refusal.value)
    assert most < 16 << 20
