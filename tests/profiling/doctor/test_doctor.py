import json
from dataclasses import replace
from pathlib import Path

import pytest
from nvtx_kernels.profiling.doctor import findings, main, text
from nvtx_kernels.profiling.doctor.facts import Facts, driver_of, look

GOOD = Facts(
    torch="2.11.0",
    nvtx="0.2.14",
    torch_cuda="13.0",
    gpus=("NVIDIA H200",),
    recorder_sees_gpu=True,
    driver="580.65.06",
    nsys="/usr/bin/nsys",
    nsys_version=(2025, 3, 1),
    trial_trouble="",
    paranoid=2,
    counters_for_admins=False,
)
# What is wrong, how bad that is, and words of the finding and of its fix.
WRONG = {
    "torch": ({"torch": None}, "problem", "torch is not installed", "pip install"),
    "nvtx": ({"nvtx": None}, "warning", "nvtx is not installed", "pip install"),
    "CPU build": ({"torch_cuda": None, "gpus": ()}, "problem", "built for CPUs", "CUDA build"),
    "hidden GPU": ({"gpus": ()}, "problem", "sees no GPU", "--gpus all"),
    "no driver": ({"gpus": (), "driver": None}, "warning", "no NVIDIA driver", "nvtx-kernels record train.py"),
    "no CUPTI": ({"recorder_sees_gpu": False}, "warning", "torch.profiler cannot see CUDA", "Kineto"),
    "no nsys": (
        {"nsys": None, "nsys_version": None, "nsys_trouble": "nsys was not found"},
        "warning",
        "nsys was not found",
        "install nsight-systems-cli",
    ),
    "no report": ({"trial_trouble": "libdw.so.1: cannot open"}, "problem", "libdw.so.1", "libelf"),
    "old nsys": ({"nsys_version": (2022, 4, 2)}, "warning", "older than 2025.3, which came", "newer"),
    "old driver": ({"driver": "390.1"}, "warning", "driver 390.1 is older", "update"),
    "paranoid": ({"paranoid": 4}, "warning", "perf_event_paranoid is 4", "sysctl"),
    "counters": (
        {"counters_for_admins": True},
        "warning",
        "require an administrator",
        "NVreg_RestrictProfilingToAdminUsers",
    ),
    "container": ({"in_container": True}, "warning", "container", "SYS_ADMIN"),
    "WSL": ({"in_wsl": True}, "problem", "no kernels", "CuptiUseRawGpuTimestamps=false"),
    "annotation off": ({"variables": {"NVTX_KERNELS_OFF": "1"}}, "warning", "switches every range off", "unset"),
    "TF32 forced": (
        {"variables": {"NVIDIA_TF32_OVERRIDE": "1"}},
        "warning",
        "overrides the TF32 setting",
        "unset",
    ),
}


def test_with_nsys_it_says_how_to_record():
    (told,) = (
        found.what for found in findings(GOOD) if "-c cudaProfilerApi --capture-range-end=stop" in found.what
    )
    assert "CUDA graphs" in told
    without = replace(GOOD, nsys=None, nsys_version=None, nsys_trouble="nsys was not found")
    assert not any("cudaProfilerApi" in found.what for found in findings(without))


def test_good_machine_has_no_complaint():
    assert {finding.level for finding in findings(GOOD)} == {"good"}
    assert text(findings(GOOD)).endswith("0 problems, 0 warnings.\n")


@pytest.mark.parametrize(("changes", "level", "what", "fix"), WRONG.values(), ids=WRONG)
def test_each_trouble_is_found_with_its_fix(changes, level, what, fix):
    [found] = [finding for finding in findings(replace(GOOD, **changes)) if finding.level != "good"]
    assert (found.level, what in found.what, fix in found.fix) == (level, True, True)


FINE = [
    {"paranoid": 4, "is_root": True},
    {"counters_for_admins": True, "is_root": True},
    {"in_wsl": True, "wsl_clock_fixed": True},
    {"nsys_version": (2026, 1, 0)},
    {"driver": "550.54", "nsys_version": (2023, 4, 4)},
]


@pytest.mark.parametrize("changes", FINE)
def test_what_does_no_harm_is_not_complained_about(changes):
    assert {finding.level for finding in findings(replace(GOOD, **changes))} == {"good"}


FILES = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\nGCC 12.2.0",
    "proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n",
    "proc/sys/kernel/perf_event_paranoid": "4\n",
    "proc/version": "Linux version 5.15.90.1-microsoft-standard-WSL2",
    ".dockerenv": "",
}


def test_facts_are_read_from_the_system_s_files(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    facts = look(tmp_path, trial=False)
    assert (facts.driver, facts.counters_for_admins, facts.paranoid) == ("535.104.05", True, 4)
    assert (facts.in_wsl, facts.in_container) == (True, True)


def test_empty_system_is_no_trouble(tmp_path):
    facts = look(tmp_path, trial=False)
    assert (facts.paranoid, facts.counters_for_admins, facts.in_container) == (None, None, False)
    assert facts.torch is not None


@pytest.mark.parametrize(("said", "driver"), [("", None), ("580.65.06\n", "580.65.06"), ("none here", None)])
def test_driver_s_version_is_found_in_its_words(said, driver):
    assert driver_of(said) == driver


def nsys_that(folder, monkeypatch, script):
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


VERSION = 'if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2025.3.1.90"; exit; fi\n'
TRIALS = [
    ("echo 'Importer error: libdw.so.1' >&2; exit 1", "Importer error: libdw.so.1"),
    ("exit 3", "status 3"),
    ('for word in "$@"; do case $word in --output=*) touch "${word#--output=}.nsys-rep";; esac; done', ""),
]


@pytest.mark.parametrize(("script", "trouble"), TRIALS)
def test_trial_tells_whether_nsys_can_write_a_report(script, trouble, tmp_path, monkeypatch):
    nsys_that(tmp_path, monkeypatch, VERSION + script)
    facts = look(Path("/"))
    assert (facts.nsys_version, facts.trial_trouble) == ((2025, 3, 1), trouble)


def test_command_ends_with_1_if_something_must_be_fixed(tmp_path, monkeypatch, capsys):
    nsys_that(tmp_path, monkeypatch, f"{VERSION}exit 3")
    assert main(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {"level", "what", "fix"} == set(found[0])
    assert "nsys wrote no report: status 3" in [finding["what"] for finding in found]
    assert main(["--quick"]) == int(any(f["level"] == "problem" and "wrote no" not in f["what"] for f in found))
