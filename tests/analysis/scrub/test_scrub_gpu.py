"""A fresh report of nsys, made here with private values wherever a program leaves them; its copy holds none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nvtx_kernels.analysis import scrub
from nvtx_kernels.profiling.study.nsight import export_command, profile_command

from tests.analysis.making import private
from tests.analysis.making.copies import figures, scrubbed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here"),
    pytest.mark.skipif(not shutil.which("nsys"), reason="nsys is not installed here"),
]
REPOSITORY = Path(__file__).parents[3]
PROGRAM = """
import sys
from profiling.run import main
print(sys.argv[2], file=sys.stderr)
print(sys.argv[2])
sys.exit(main(["--size", "tiny", "--steps", "2"]))
"""
ENVIRONMENT = {
    "HF_TOKEN": private.TOKEN,
    "DB_PASSWORD": private.PASSWORD,
    "AWS_ACCESS_KEY_ID": private.AWS_KEY,
    "DEPLOY_KEY": private.SSH_KEY,
    "CONTACT": private.E_MAIL,
    "MASTER_ADDR": private.ADDRESS,
    "LOGNAME": private.USER,
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Return a report of a program with planted values in its environment, arguments, folder and output."""
    folder = tmp_path_factory.mktemp("home") / private.USER / "secret-project"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(PROGRAM)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    report = folder / "r.nsys-rep"
    program = [sys.executable, "train.py", private.ARGUMENT, private.OUTPUT]
    export = report.with_suffix(".sqlite")
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}
    for command, made in (
        (profile_command("nsys", program, report), report),
        (export_command("nsys", report), export),
    ):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert (done.returncode, made.exists()) == (0, True), done.stdout + done.stderr
    return export


def planted():
    return [*ENVIRONMENT.values(), private.ARGUMENT, private.OUTPUT, "secret-project"]


def held(path):
    """Tell which planted values are in a file, in the encodings that nsys and SQLite write."""
    content = path.read_bytes()
    return [value for value in planted() if any(value.encode(e) in content for e in ("utf-8", "utf-16-le"))]


def test_copy_of_a_fresh_report_holds_nothing_planted_and_answers_alike(fresh):
    assert held(fresh) == planted()
    copy = scrubbed(fresh)
    assert held(copy) == []
    # Names may differ: a word of this machine's environment that is also one of a kernel's name is in no copy.
    for options in (["--operators", "keep"], ["--like-nsys"]):
        assert figures(copy, *options) == figures(fresh, *options)


def test_check_lists_the_tables_with_planted_values_and_finds_nothing_in_the_copy(fresh, tmp_path, capsys):
    assert scrub.main([str(fresh), "--check"]) == scrub.WOULD_LEAK
    listed = capsys.readouterr().out
    assert [table for table in ("META_DATA_CAPTURE", "PROCESSES", "ProcessStreams") if table not in listed] == []
    assert scrub.main([str(fresh), "-o", str(tmp_path / "copy.sqlite")]) == 0
    assert scrub.main([str(tmp_path / "copy.sqlite"), "--check"]) == 0
