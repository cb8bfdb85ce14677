"""Build the wheel and the source distribution, check them, and run every command of each in an empty environment.

    make package        # python -m tests.packaged -o build/dist

Nothing is built in the checkout, and each command runs in a folder outside it. The last lines name what failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "tests" / "data" / "h200_train_fp32.sqlite"
EXTRAS = "profiling,mcp"
LONGEST_S = 300

#: One real use of each command, in a folder with a program and a report.
USES = {
    "rank": "rank r.sqlite", "view": "view idle r.sqlite", "page": "page r.sqlite -o page.html",
    "timeline": "timeline r.sqlite -o t.json.gz",
    "compare": "compare r.sqlite r.sqlite", "summarize": "summarize r.sqlite -o r.summary.sqlite",
    "record": "record -o own.sqlite train.py", "doctor": "doctor r.sqlite",
    "try": "try --in-place --levers zero_grad --steps 3 train.py",
    "join": "join r.sqlite -o joined.sqlite", "scrub": "scrub r.sqlite -o shared.sqlite",
    "mcp": "mcp .", "skill": "skill", "run": "run --size tiny --steps 1 --warmup 1 --device cpu",
    "benchmark": "benchmark --sizes tiny --modes forward --device cpu --steps 1 --warmup 0 --into b.jsonl",
    "nsys": "nsys --sizes tiny --print-command",
    "precision": "precision --device cpu", "ask": "ask r.sqlite",
}  # fmt: skip
#: Commands that need a tool which may be missing; they then say so in a sentence.
TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def prepare(folder):
    """Put the program and the report of USES into a folder."""
    shutil.copy(REPORT, folder / "r.sqlite")
    (folder / "train.py").write_text(TRAINING)


def trouble_of(program, command, folder):
    """Run one use of a command; return what is wrong with how it ended, or ""."""
    words = [program, *USES[command].split()]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": LONGEST_S}
    done = subprocess.run(words, cwd=folder, env=environ, **options)
    return "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr.strip()[-400:]}"


def copy_of_checkout(folder, beginnings=("",)):
    """Copy the checkout's files, or those whose paths begin so, without what git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if name.startswith(beginnings) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build(folder):
    """Build into a folder, and let twine check what was built; return the wheel and the source distribution."""
    with tempfile.TemporaryDirectory() as source:
        copy_of_checkout(Path(source))
        run = [sys.executable, "-m", "build", "--outdir", folder]
        subprocess.run(run, cwd=source, check=True, stdout=subprocess.DEVNULL)
    built = [next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    return built


def failures(package):
    """Install a package into an empty environment, and run every command; yield what failed."""
    with tempfile.TemporaryDirectory() as name:
        environment, outside = Path(name) / "env", Path(name) / "outside"
        venv.create(environment, with_pip=True, symlinks=True)
        outside.mkdir()
        prepare(outside)
        install = ["-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{package}[{EXTRAS}]"]
        subprocess.run([environment / "bin" / "python", *install], check=True)
        for command in USES:
            began = time.monotonic()
            trouble = trouble_of(environment / "bin" / "nvtx-kernels", command, outside)
            say(f"{package.name}  {command:<14} {time.monotonic() - began:5.1f} s  {trouble or 'works'}")
            if trouble:
                yield f"{package.name}: {command}: {trouble}"


def say(text):
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    """Build and try both; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.packaged", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the folder for what is built; emptied first"
    )
    output = parser.parse_args().output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    failed = [failure for package in build(output) for failure in failures(package)]
    say("\n".join(failed) or f"{len(USES)} commands work from the wheel and from the source distribution.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
