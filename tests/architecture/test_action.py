"""The GitHub Action under test: its steps run here, in a repository of two commits."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.analysis.making.old_summaries import OLD

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
SLOW, FAST = (ROOT / "tests" / "data" / f"h200_{name}.sqlite" for name in ("train_fp32", "compiled"))


@pytest.fixture
def repository(tmp_path):
    """A repository of two commits, a command on the path, and what the action's steps get of their runner."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "nvtx-kernels"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m nvtx_kernels "$@"\n')
    command.chmod(0o755)
    folder = tmp_path / "repository"
    git(tmp_path, "init", "-q", str(folder))
    for message in ("first", "second"):
        git(folder, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", message)
    return folder


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def act(folder, **inputs):
    """Run the steps in order, as a runner does, until one fails; return the status, outputs and job summary."""
    given = {name: field.get("default", "") for name, field in ACTION["inputs"].items()} | inputs
    files = {name: folder.parent / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    path = f"{folder.parent / 'bin'}:{os.environ['PATH']}"
    for step in STEPS.values():
        environment = {name: given[INPUT.fullmatch(value)[1]] for name, value in step["env"].items()}
        environment |= {name: str(file) for name, file in files.items()}
        ran = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder, env=os.environ | environment | {"PATH": path}, capture_output=True, text=True,
        )  # fmt: skip
        if ran.returncode:
            break
    summary = files["GITHUB_STEP_SUMMARY"].read_text() + ran.stdout + ran.stderr
    return ran.returncode, outputs_of(files["GITHUB_OUTPUT"].read_text()), summary


def outputs_of(text):
    """Read the file as a runner does: `name=value`, or `name<<delimiter`, lines and the delimiter."""
    outputs, lines = {}, iter(text.splitlines())
    for line in lines:
        name, heredoc, delimiter = line.partition("<<")
        if heredoc and "=" not in name:
            outputs[name] = "\n".join(iter(lambda: next(lines), delimiter))
        else:
            name, _, value = line.partition("=")
            outputs[name] = value
    return outputs


def at(folder, commit, report, **inputs):
    number = git(folder, "rev-parse", commit).strip()
    return act(folder, report=str(report), commit=number, install="", **inputs)


def test_the_first_commit_is_stored_and_compared_with_nothing(repository):
    status, outputs, summary = at(repository, "HEAD~1", SLOW)
    assert (status, outputs) == (0, {"verdict": "no baseline"})
    assert "this one is the first" in summary
    assert len(list((repository / ".nvtx-kernels").iterdir())) == 1


def test_a_slower_commit_violates_a_rule_and_a_faster_one_holds(repository):
    at(repository, "HEAD~1", FAST)
    status, outputs, summary = at(repository, "HEAD", SLOW, rules="total > +5%\nphase:optimizer > +5%\n")
    verdicts = [rule["violated"] for rule in json.loads(Path(outputs["json"]).read_text())["rules"]]
    assert (status, outputs["verdict"], verdicts) == (3, "violated", [True, False])
    first = git(repository, "rev-parse", "HEAD~1").strip()
    assert Path(outputs["baseline"]).name == f"{first}.summary.sqlite"
    assert "VIOLATED" in summary
    status, outputs, _ = at(repository, "HEAD", FAST, baseline=str(SLOW))
    assert (status, outputs["verdict"]) == (0, "holds")


def test_a_summary_that_an_earlier_version_stored_is_the_baseline(repository):
    store = repository / ".nvtx-kernels"
    store.mkdir()
    first = git(repository, "rev-parse", "HEAD~1").strip()
    shutil.copy(OLD, store / f"{first}.parquet")
    status, outputs, _ = at(repository, "HEAD", FAST)
    assert (status, Path(outputs["baseline"]).name) == (0, f"{first}.parquet")


def test_a_report_that_cannot_be_read_fails_with_its_sentence(repository):
    status, outputs, _ = at(repository, "HEAD", repository / "absent.sqlite")
    assert (status, outputs) == (1, {})


def clone(repository, *options):
    """Clone a repository with its store, as a checkout of a later job finds both."""
    copy = repository.parent / "clone"
    git(repository.parent, "clone", "-q", *options, f"file://{repository}", str(copy))
    shutil.copytree(repository / ".nvtx-kernels", copy / ".nvtx-kernels")
    return copy


@pytest.mark.parametrize("depth", [("--depth", "1"), ()], ids=["shallow", "full"])
def test_a_baseline_is_found_in_a_clone_of_any_depth(repository, depth):
    at(repository, "HEAD~1", FAST)
    first = git(repository, "rev-parse", "HEAD~1").strip()
    copy = clone(repository, *depth)
    status, outputs, _ = at(copy, "HEAD", SLOW, rules="total > +5%")
    assert (status, outputs["verdict"], Path(outputs["baseline"]).name) == (
        3,
        "violated",
        f"{first}.summary.sqlite",
    )


def test_a_shallow_clone_without_its_origin_fails_and_says_what_to_do(repository):
    at(repository, "HEAD~1", FAST)
    copy = clone(repository, "--depth", "1")
    git(copy, "remote", "set-url", "origin", str(copy.parent / "gone"))
    status, outputs, told = at(copy, "HEAD", SLOW, rules="total > +5%")
    assert (status, outputs, "fetch-depth: 0" in told) == (1, {}, True)


def test_a_commit_of_no_history_fails(repository):
    status, outputs, told = act(repository, report=str(FAST), commit="0" * 40, install="")
    assert (status, outputs, "history of the input commit is unknown" in told) == (1, {}, True)


def test_an_input_with_a_newline_sets_no_other_output(repository):
    baseline = repository / "a\nverdict=holds\nevil=1"
    shutil.copy(FAST, baseline.parent / (baseline.name + ".sqlite"))
    status, outputs, _ = at(repository, "HEAD", SLOW, baseline=f"{baseline}.sqlite", rules="total > +5%")
    assert (status, outputs["verdict"], "evil" in outputs) == (3, "violated", False)
    assert outputs["baseline"] == f"{baseline}.sqlite"


def test_no_step_puts_an_input_into_its_script():
    assert [name for name, step in STEPS.items() if "${{" in step["run"]] == []
