"""What is wrong with a report: one built report for each way, each named and with its remedy."""

import json
import os

import pytest
from nvtx_kernels.analysis import doctor
from nvtx_kernels.analysis.doctor.checks import examine
from nvtx_kernels.analysis.kernel_names.arithmetic import arithmetic_of

from tests.analysis.making.building import AUTOGRAD, MARK, Launch, Overhead, Range, Work, build, launched, thread
from tests.analysis.making.subjects import DATA, SHARED

STEP = [Range("step", 0, 500), Range("forward", 5, 400)]
TWO = launched((10, 20), (30, 40), name="sgemm_128x128x8_NT_vec")


def levels(path):
    """Return what is found wrong, by level."""
    found = examine(path)
    return {level: " ".join(one.what for one in found if one.level == level) for level in ("problem", "warning")}


def test_a_good_report_has_nothing_wrong(tmp_path, capsys):
    path = build(tmp_path, ranges=STEP, **TWO)
    assert levels(path) == {"problem": "", "warning": ""}
    assert doctor.main([str(path)]) == 0
    assert capsys.readouterr().out.endswith("0 problems, 0 warnings.\n")


@pytest.mark.parametrize("name", ["h200_train_fp32.sqlite", "h200_compiled.sqlite", "h200_recorder.sqlite"])
def test_our_own_reports_have_nothing_wrong(name):
    found = levels(DATA / name)
    assert found["problem"] == ""
    # The recorder of 0.2 ended the recording when an operator was open; what there is of it is sound.
    ended_early = "The recording ended early: an operator or record_function block was open while"
    assert found["warning"].startswith(ended_early) if name == "h200_recorder.sqlite" else not found["warning"]


def run_mark(**run):
    return Range(f"nvtx-kernels.run {json.dumps(run)}", 1, None, event=MARK)


TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4>(Params)"
LATE = launched((10, 20), (30, 40), (610, 620), name="sgemm_128x128x8_NT_vec")
AMBIGUOUS = {
    "ranges": [*STEP, Range("step", 0, 500, thread(100, 105)), Range("forward", 5, 400, thread(100, 105))],
    **launched((50, 60, AUTOGRAD), (70, 80, AUTOGRAD)),
    "thread_names": {AUTOGRAD: "pt_autograd_0"},
}
WRONG = {
    "no kernels": ("problem", "no kernels", {"ranges": STEP, **launched((10, 20), kind="memcpy", name="[copy]")}),
    "no work": ("problem", "no kernel, copy or memset", {"ranges": STEP, "launches": [Launch(1, 10, 20)]}),
    "graphs": ("problem", "100.0% of the GPU work is inside 2 CUDA graph", {
        "ranges": STEP, **launched((10, 20), (30, 40), kind="graph", name="graph")}),
    "launches without kernels": ("problem", "1 of 3 calls that launch a kernel have none", {
        "ranges": STEP, "launches": [*TWO["launches"], Launch(9, 50, 60)], "work": TWO["work"]}),
    "kernels before their launch": ("problem", "1 kernel or copy starts before its call", {
        "ranges": [Range("step", 0, 9000)], "launches": [Launch(1, 10, 20), Launch(2, 8000, 8010)],
        "work": [Work(1, 30, 40, "sgemm"), Work(2, 3000, 3010, "sgemm")]}),
    "times of zero": ("problem", "1 kernel or copy has a time of zero", {
        "ranges": STEP, "launches": TWO["launches"], "work": [Work(1, 0, 0, "sgemm"), TWO["work"][1]]}),
    "no ranges": ("problem", "no NVTX ranges", TWO),
    "unknown kernels": ("warning", "50.0% of the kernel time is in kernels of unknown category", {
        "ranges": STEP, "launches": TWO["launches"],
        "work": [TWO["work"][0], Work(2, 60, 70, "secret_kernel")]}),
    "no steps": ("warning", "no measured step ranges", {"ranges": STEP[1:], **TWO}),
    "open step": ("problem", "1 range was never closed (step)", {"ranges": [Range("step", 0, None)], **TWO}),
    "open layer": ("warning", "(layer)", {"ranges": [*STEP, Range("layer", 300, None)], **TWO}),
    "cut step": ("problem", "step 1 (1) has far fewer kernels", {
        "ranges": [Range("step", n, n + 90) for n in (0, 100, 200)],
        **launched((1, 2), (5, 6), (9, 10), (101, 102), (201, 202), (205, 206), (209, 210))}),
    "all warm-up": ("problem", "all GPU work is in warm-up", {"ranges": [Range("warm-up", 0, 500)], **TWO}),
    "a warm-up phase": ("problem", "all forward work is in warm-up and left out", {
        "ranges": [Range("warm-up", 0, 25), Range("forward", 5, 24), Range("step", 28, 90)], **TWO}),
    "some outside": ("warning", "33.3% of the GPU work is in no range", {"ranges": STEP, **LATE}),
    "most outside": ("problem", "66.7% of the GPU work is in no range", {
        "ranges": [Range("step", 605, 700)], **LATE}),
    "no launch": ("problem", "66.7% of the GPU work is in no range, because the report has no launch of it", {
        "ranges": STEP, **TWO, "work": [*TWO["work"], Work(None, 50, 90)]}),
    "ambiguous": ("problem", "100.0% of the GPU work was launched on autograd's threads while two", AMBIGUOUS),
    "TF32 against the mark": ("problem", "TF32 is off, but its GEMMs used it (2 tf32)", {
        "ranges": [*STEP, run_mark(tf32=False)], **launched((10, 20), (30, 40), name=TF32)}),
    "FP32 against the mark": ("problem", "TF32 is on, but no GEMM used it (2 fp32)", {
        "ranges": [*STEP, run_mark(tf32=True)], **TWO}),
    "TF32 undecided": ("warning", "cannot be decided from names (1 with unknown arithmetic)", {
        "ranges": [*STEP, run_mark(tf32=False)], **launched((10, 20), name="nvjet_sss_128x256_TNT")}),
    "TF32 unsaid": ("warning", "GEMMs ran in TF32", {"ranges": STEP, **launched((10, 20), name=TF32)}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_remedy(tmp_path, capsys, case):
    level, says, rows = WRONG[case]
    path = build(tmp_path, **rows)
    assert says in levels(path)[level]
    assert doctor.main([str(path)]) == int(bool(levels(path)["problem"]))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert all(one.fix or one.level == "good" or "ecord again: nsys" in one.what for one in examine(path))


FIXES = [
    ([Work(None, 50, 250)], "record the CUDA calls too, from before the work is launched"),
    ([Work(3, 50, 250)], "push ranges around the whole program"),
]


@pytest.mark.parametrize(("work", "fix"), FIXES)
def test_work_in_no_range_gets_the_remedy_of_its_reason(tmp_path, work, fix):
    launches = [*TWO["launches"], Launch(3, 600, 610)]
    found = examine(build(tmp_path, ranges=STEP, launches=launches, work=[*TWO["work"], *work]))
    assert [one.fix.startswith(fix) for one in found if "in no range" in one.what] == [True]


def test_a_recording_of_a_cpu_is_not_said_to_be_of_a_gpu(tmp_path):
    facts = {"NVTX_KERNELS_WORK": "CPU"}
    found = examine(build(tmp_path, ranges=[Range("step", 605, 700)], metadata=facts, **LATE))
    assert any("66.7% of the CPU work is in no range" in one.what for one in found)


@pytest.mark.parametrize(("behind_s", "problems"), [(3600, 1), (0, 0), (-3600, 0)])
def test_an_export_older_than_the_report_beside_it_is_stale(tmp_path, behind_s, problems):
    path = build(tmp_path, ranges=STEP, **TWO)
    source = path.with_suffix(".nsys-rep")
    source.write_bytes(b"report")
    exported = path.stat().st_mtime
    os.utime(source, (exported + behind_s, exported + behind_s))
    found = [one for one in examine(path) if one.level == "problem"]
    assert len(found) == problems
    assert all("nsys export" in one.fix for one in found)


def test_a_nameless_autograd_thread_is_told_but_not_wrong(tmp_path):
    ranges = [Range("step", 0, 900), Range("backward", 5, 800)]
    calls = launched((10, 20), *((n, n + 5, AUTOGRAD) for n in range(100, 700, 10)))
    found = examine(build(tmp_path, ranges=ranges, **calls))
    assert any("thread 101 has no name" in one.what for one in found)


def test_json_holds_every_finding(tmp_path, capsys):
    assert doctor.main([str(build(tmp_path, **TWO)), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {tuple(one) for one in found} == {("level", "what", "fix")}
    assert [one["level"] for one in found].count("problem") == 1


def test_what_cannot_be_read_is_a_problem_and_wrong_usage_is_not(capsys):
    assert doctor.main(["/nowhere/report.sqlite"]) == 1
    assert "does not exist" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="2"):
        doctor.main([])


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not at hand")
def test_a_run_in_bf16_on_a_hopper_has_only_gemms_of_bf16():
    found = [one.what for one in examine(SHARED / "h200" / "cuda_graph_nodes.sqlite")]
    assert "GEMM launches by arithmetic: 327 bf16" in found


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not at hand")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*/*.sqlite")), ids=lambda path: path.stem[:20])
def test_every_report_of_others_is_examined_within_80_columns(path, capsys):
    assert doctor.main([str(path)]) in (0, 1)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("kernel", "arithmetic"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_cublas", "fp32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "tf32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
        (TF32, "tf32"),
        ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_tn", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "fp16"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "bf16"),
        ("nvjet_sm90_tss_256x128_64x4_1x2_h_bz_coopA_TNT", "bf16"),
        ("nvjet_sm90_hsh_320x128_64x3_1x2_h_bz_coopB_TNT", "fp16"),
        ("nvjet_hss_64x8_64x16_1x1_v_bz_splitK_NNT", "fp16"),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", "fp8"),
        ("nvjet_sss_tf32_128x256_TNT", "tf32"),
        ("nvjet_sm100_sss_128x256_64x4_2x1_v_bz_TNT", "unknown"),
        ("void cutlass::Kernel2<cutlass_75_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8>()", "fp16"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>(T13)", "fp32"),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16>(T13)", "fp16"),
        ("triton_tem_fused_bmm_7", "unknown"),
        ("volta_dgemm_64x64_nn", "fp64"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_tn_align1>(T1::Params)", "fp64"),
    ],
)
def test_names_of_gemms_tell_their_arithmetic(kernel, arithmetic):
    assert arithmetic_of(kernel) == arithmetic


@pytest.mark.parametrize(("took", "is_much"), [([(450, 490)], False), ([(100, 151), (120, 160)], True)])
def test_much_time_of_the_recording_itself_is_said(tmp_path, took, is_much):
    """Of a step of 500 ns: 40, and two threads' that overlap."""
    path = build(tmp_path, ranges=STEP, overhead=[Overhead(*times) for times in took], **TWO)
    said = "recording itself took 60 ns, 12.0% of the time that was measured"
    assert (said in levels(path)["warning"]) == is_much
