"""Whether an answer tells the program and not its recording: a step's time without a recorder, ours and measured.

    python -m benchmarks.unrecorded [--programs "Llama 8" …] [--runs 5] [--folder FOLDER] [--output FILE]
    python -m benchmarks.unrecorded --kinds

Each program trains alone in `--runs` processes of its own, where the clock is read when the GPU is empty, before
the first of 20 steps and after the last. Then it trains under `nk.profile`, under `nk.record`, and if there is
nsys, under it with a capture range. `profiling.run` runs with `--json`, with `--record`, and under nsys. The table
has the step of the answer (≤: told as an upper limit), its bounds and the GPU's busy share, against the runs
alone, whose share is a recorded step's work over their median; where the answer tells no step, the reason. As
processes differ, a program that our recorder records trains alone in that process, too, before the recording.

`--kinds` runs eight programs that differ in what ends their steps and in what is seen only once. Each has steps
that were timed without recording, or the reason why it has none.

The processes of a program start side by side, and take turns once all have made their models.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from nvtx_kernels.profiling.tool import INJECTIONS
from torch import nn

from benchmarks.recording_cost import DEVICE, PROGRAMS, Program, device_name, publish, wait
from benchmarks.recording_cost import USUAL as USUAL_TO_RECORD

STEPS, BEFORE = 20, 12
LONG = 45  # as many steps as a recording and what is timed after it need
VOCABULARY = 8192
ROOT = Path(__file__).parents[1]
LONGEST_S, LOOK_S = 150, 0.02
#: Batches that are ready before the first step, and how long the next ones take.
READY, BATCH_S = 6, 0.03 if DEVICE == "cuda" else 0.1
#: After how many steps another process works, too: those before nsys captures, or those of our recording.
ALONE_UNTIL = {"nsys": 6, "nk.profile": 13, "nk.record": 13}


def _made(model: nn.Module, step: Callable[[torch.optim.Optimizer], None]) -> Program:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Program(model, optimizer, lambda: step(optimizer))


def _updated(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class Recurrent(nn.Module):
    """A cell that is called for each token, in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, 256), nn.GRUCell(256, 256)
        self.head = nn.Linear(256, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits of the next token, of the shape (batch, length, vocabulary)."""
        state, states = torch.zeros(len(ids), 256, device=ids.device), []
        for at in range(ids.shape[1]):
            state = self.cell(self.embedding(ids[:, at]), state)
            states.append(state)
        return self.head(torch.stack(states, 1))


def _of_tokens(model: nn.Module, batch: int, length: Callable[[], int]) -> Program:
    model = model.to(DEVICE)

    def step(optimizer: torch.optim.Optimizer) -> None:
        ids = torch.randint(0, VOCABULARY, (batch, length()), device=DEVICE)
        _updated(optimizer, nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))

    return _made(model, step)


def _encoder(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, VOCABULARY)
    )


def vision_transformer() -> Program:
    """Return a ViT on images that are drawn on the device."""
    patches = nn.Sequential(nn.Conv2d(3, 384, 16, 16), nn.Flatten(2))
    layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True)
    blocks, head = nn.TransformerEncoder(layer, 12), nn.Linear(384, 1000)
    model = nn.ModuleDict({"patches": patches, "blocks": blocks, "head": head}).to(DEVICE)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.parts["head"](self.parts["blocks"](self.parts["patches"](images).transpose(1, 2)).mean(1))

    whole = Whole()

    def step(optimizer: torch.optim.Optimizer) -> None:
        images, labels = torch.randn(64, 3, 224, 224, device=DEVICE), torch.randint(0, 1000, (64,), device=DEVICE)
        _updated(optimizer, nn.functional.cross_entropy(whole(images), labels))

    return _made(whole, step)


def gan() -> Program:
    """Return a generator and a discriminator, whose updates take turns."""
    made, judge = (
        nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, out))
        for out in (784, 1)
    )
    judge[0] = nn.Linear(784, 1024)
    model = nn.ModuleList([made, judge]).to(DEVICE)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4)
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-4)

    def step() -> None:
        real, noise = torch.randn(256, 784, device=DEVICE), torch.randn(256, 128, device=DEVICE)
        _updated(of_judge, judge(made(noise).detach()).mean() - judge(real).mean())
        _updated(optimizer, -judge(made(noise)).mean())

    return Program(model, optimizer, step)


def every_other() -> Program:
    """Return a program with a second optimizer that updates in every other step."""
    program = _of_tokens(_encoder(256, 4), 8, lambda: 128)
    second = torch.optim.SGD(program.optimizer.param_groups[0]["params"][:1], lr=1e-4)
    count = iter(range(10**6))

    def step() -> None:
        if next(count) % 2:
            second.step()
        program.step()

    return Program(program.model, program.optimizer, step)


def growing() -> Program:
    """Return a program whose sequences grow."""
    count = iter(range(10**6))
    return _of_tokens(_encoder(256, 4), 8, lambda: 64 + 8 * next(count))


def prefetched() -> Program:
    """Return a program whose first batches are ready, and whose loader limits the steps after them."""
    batches: queue.Queue[torch.Tensor] = queue.Queue(READY)

    def load() -> None:
        while threading.main_thread().is_alive():
            time.sleep(BATCH_S)
            with suppress(queue.Full):
                batches.put(torch.randint(0, VOCABULARY, (8, 128) if DEVICE == "cuda" else (2, 16)), timeout=1)

    threading.Thread(target=load).start()
    model = _encoder(256, 2).to(DEVICE)

    def step(optimizer: torch.optim.Optimizer) -> None:
        ids = batches.get().to(DEVICE)
        _updated(optimizer, nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))

    while not batches.full():
        time.sleep(LOOK_S)
    return _made(model, step)


NEIGHBOUR = """
import sys, torch
x = torch.randn(4096 if sys.argv[1] == "cuda" else 1024, 2048, device=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while True:
    x.T @ x
    if sys.argv[1] == "cuda":
        torch.cuda.synchronize()
"""


@contextmanager
def neighbour() -> Iterator[Callable[[], None]]:
    """Yield a function after whose call another process, unseen by nsys, uses the device until the block ends."""
    words, pipes = [sys.executable, "-c", NEIGHBOUR, DEVICE], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    unwatched = {
        name: value for name, value in os.environ.items() if name not in INJECTIONS and "NSYS" not in name
    }
    process = subprocess.Popen(words, text=True, env=unwatched, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield lambda: print(file=process.stdin, flush=True)
    finally:
        process.kill()
        process.wait()


def _kind(*, batches: int = 1, optimizers: int = 1, compiles: str | None = None) -> Program:
    """Return a program with micro-batches, with several optimizers, or with a model to be compiled when called."""
    model: Any = _encoder(256, 4 if DEVICE == "cuda" else 1).to(DEVICE)
    run: Any = torch.compile(model, mode=compiles) if compiles is not None else model
    each = [torch.optim.AdamW(model.parameters(), lr=1e-4) for _ in range(optimizers)]
    ids = torch.randint(0, VOCABULARY, (8, 128) if DEVICE == "cuda" else (2, 16), device=DEVICE)

    def step() -> None:
        for _ in range(batches):
            nn.functional.cross_entropy(run(ids).flatten(0, 1), ids.flatten()).backward()
        for optimizer in each:
            optimizer.step()
        model.zero_grad()

    return Program(model, each[0] if each else torch.optim.SGD(model.parameters()), step)


MORE: dict[str, Callable[[], Program]] = {
    "recurrent cell": lambda: _of_tokens(Recurrent(), 64, lambda: 64),
    "small BERT": lambda: _of_tokens(_encoder(256, 6), 16, lambda: 128),
    "ViT": vision_transformer,
    "GAN": gan,
    "every other step": every_other,
    "growing sequences": growing,
    "prefetched batches": prefetched,
    "changing pace": vision_transformer if DEVICE == "cuda" else gan,
}
#: The steps of these change on the way.
CHANGING = ("growing sequences", "prefetched batches", "changing pace")
#: What ends the steps of these, or is seen only once.
KINDS: dict[str, Callable[[], Program]] = {
    "compiled": lambda: _kind(compiles="default"),
    "reduce-overhead": lambda: _kind(compiles="reduce-overhead"),
    "no updates": lambda: _kind(optimizers=0),
    "memory": _kind,
    "three updates": _kind,
    "accumulation": lambda: _kind(batches=4),
    "two optimizers": lambda: _kind(optimizers=2),
    "own step": lambda: _kind(batches=2),
}
SIZE = "small" if DEVICE == "cuda" else "tiny"
#: The options of `profiling.run`, by the name of its program.
RUNS = {
    f"run {SIZE}": ["--size", SIZE],
    "run one sequence": ["--size", SIZE, "--batch-size", "1", "--context-length", "128"],
}
#: How many iterations of a program are one step of the answer: its second optimizer ends that.
ITERATIONS = {"every other step": 2}
OF_OTHER_DEVICE = {*USUAL_TO_RECORD["cpu"]} if DEVICE == "cuda" else set()
TRAINED = {name: make for name, make in PROGRAMS.items() if name not in OF_OTHER_DEVICE} | MORE
ALL = [*TRAINED, *RUNS, *KINDS]
ON_CPU = ["GPT 32", "recurrent cell", "GAN", "growing sequences", "prefetched batches", "changing pace", *RUNS]
USUAL = [*TRAINED, *RUNS] if DEVICE == "cuda" else ON_CPU


def work(name: str, case: str, report: str) -> None:
    """Make a program in this process, wait for its turn, and train; print what a step took alone, ms."""
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    import nvtx_kernels as nk

    if name in RUNS:
        torch.zeros(1, device=DEVICE)
        _wait_for_turn(Path(report))
        _run(RUNS[name], case, report)
        return
    program = (TRAINED | KINDS)[name]()
    wait()

    def train(steps: int, *ended: Callable[[], None]) -> float:
        wait()
        began = time.perf_counter()
        for number in range(steps):
            program.step()
            for end in ended:
                end()
            if name == "changing pace" and number == ALONE_UNTIL.get(case):
                change_pace()
        wait()
        return (time.perf_counter() - began) / steps * 1e3

    with neighbour() if name == "changing pace" and case != "alone" else nullcontext(print) as change_pace:
        _wait_for_turn(Path(report))
        if case == "alone" or (case != "nsys" and name in TRAINED and name not in CHANGING):
            train(BEFORE)
            print(train(STEPS))
        if case == "alone":
            return
        if case == "nk.record":
            with nk.record(report):
                train(LONG)
        else:
            options = {"memory": True} if name == "memory" else {}
            with nk.profile(program.model, None, report, **options) as profile:
                train(3 if name == "three updates" else LONG, *[profile.step] * (name == "own step"))


def _wait_for_turn(report: Path) -> None:
    """Say that this process is ready, and wait until it may go on."""
    report.with_suffix(".ready").touch()
    while not report.with_suffix(".turn").exists():
        time.sleep(LOOK_S)


def _run(options: Sequence[str], case: str, report: str) -> None:
    """Run `profiling.run` in this process."""
    from nvtx_kernels.profiling.run import main as run

    row = Path(report).with_suffix(".json")
    words = [*options, "--steps", str(STEPS), "--warmup", "5", "--device", DEVICE, "--json", str(row)]
    status = run([*words, "--record", report] if case == "run --record" else words)
    if status:
        sys.exit(status)
    print(statistics.fmean(times["step"] for times in json.loads(row.read_text())["measured"]))


CASES = ("nk.profile", "nk.record", "run --record", "nsys")


def cases_of(name: str, wanted: Sequence[str]) -> list[str]:
    """Return how a program is recorded."""
    ours = ["run --record"] if name in RUNS else ["nk.profile"] if name in KINDS else ["nk.profile", "nk.record"]
    return [case for case in [*ours, "nsys"] if case in wanted]


def started(name: str, case: str, report: Path) -> subprocess.Popen[str]:
    """Start the process of a case."""
    words = [sys.executable, "-m", "benchmarks.unrecorded", "--work", name, case, str(report)]
    if case == "nsys":
        words = ["nsys", "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-c", "cudaProfilerApi",
                 "--capture-range-end=stop", "-f", "true", "-o", str(report.with_suffix("")), *words]  # fmt: skip
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


class Measured(NamedTuple):
    """What a step took alone, ms: in processes of their own, and by case in the same process; and what failed."""

    alone: list[float]
    before: dict[str, float]
    failures: dict[str, str]


def measured(name: str, cases: Sequence[str], runs: int, folder: Path) -> Measured:
    """Run a program alone and recorded, each in a process of its own.

    They start side by side, and take turns.
    """
    turns = [*(("alone", number) for number in range(runs)), *((case, 0) for case in cases)]
    processes = {}
    for case, number in turns:
        report = report_of(folder, name, f"{case}{number or ''}")
        for left in (".ready", ".turn"):
            report.with_suffix(left).unlink(missing_ok=True)
        processes[report] = (case, started(name, case, report))
    deadline = time.monotonic() + LONGEST_S
    for report, (_, process) in processes.items():
        while not report.with_suffix(".ready").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
    found = Measured([], {}, {})
    for report, (case, process) in processes.items():
        report.with_suffix(".turn").touch()
        try:
            out, complaint = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, complaint = process.communicate()
        if process.returncode:
            found.failures[case] = (complaint.strip().splitlines() or ["no reason"])[-1][:90]
        elif case == "alone":
            found.alone.append(float(out.split()[-1]) * ITERATIONS.get(name, 1))
        elif out.strip() and case != "nsys" and name in TRAINED:
            found.before[case] = float(out.split()[0]) * ITERATIONS.get(name, 1)
    return found


def report_of(folder: Path, name: str, case: str) -> Path:
    """Return the path of the report of a case."""
    return folder / f"{name}.{case.strip('-')}.sqlite".replace(" ", "_")


def told(report: Path, case: str) -> dict[str, Any]:
    """Return what the answer says of recording."""
    if case == "nsys":
        export = ["nsys", "export", "--type", "sqlite", "-f", "true", "-o", str(report)]
        subprocess.run([*export, str(report.with_suffix(".nsys-rep"))], capture_output=True)
    words = [sys.executable, "-m", "nvtx_kernels", "rank", "--per-step", "--format", "json", str(report)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return {"reason": (done.stderr.strip().splitlines() or [""])[-1][:120]}
    answer = json.loads(done.stdout)
    work_ns = [float(row["busy_ns"]) for row in answer["steps"] if row.get("busy_ns")]
    return {
        **(answer["report"]["recording"] or {"reason": "no step has a time"}),
        "work_ns": statistics.median(work_ns) if work_ns else 0.0,
        "busy": {row["phase"]: row["verdict"] for row in answer["busy"]},
    }


def row_of(name: str, case: str, found: Measured, one: Mapping[str, Any]) -> str:
    """Return the line of a Markdown table for one report."""
    alone, before = found.alone, found.before.get(case, 0.0)
    one = {"reason": found.failures[case]} if case in found.failures else one
    median = statistics.median(alone) if alone else 0.0
    by_itself = f"{median:.2f} ({min(alone):.2f} to {max(alone):.2f})" if alone else "–"
    step, works = ((one.get(key) or 0) / 1e6 for key in ("unrecorded_step_ns", "work_ns"))
    shares = f"{min(1, works / step):.0%}" if step and works else ""
    shares += f" / {min(1, works / median):.0%}" if shares and median else ""
    at_most = "≤ " if one.get("is_upper_limit") else ""
    bounds = f"{at_most}{step:.2f}" if step else "–"
    if step:
        bounds += f" ({one['unrecorded_low_ns'] / 1e6:.2f} to {one['unrecorded_high_ns'] / 1e6:.2f})"
    here = f"{before:.2f}, {step / before:.2f}" if step and before else ""
    is_told = "told" if one.get("trusted") else f"not told: {one.get('reason')}"
    verdicts = "; ".join(f"{phase} {verdict}" for phase, verdict in one.get("busy", {}).items())
    return (
        f"| {name} | {case} | {by_itself} | {(one.get('step_ns') or 0) / 1e6:.2f} | {bounds} "
        f"| {f'{step / median:.2f}' if step and median else ''} "
        f"| {here} | {shares} | {is_told} | {verdicts} |"
    )


HEAD = (
    "| program | recorder | alone, ms | recorded | without recording | ÷ alone | here, ÷ | busy / alone |"
    " | verdicts |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=ALL, default=USUAL, help="%(default)s")
    parser.add_argument("--kinds", action="store_true", help=f"run {', '.join(KINDS)}")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="%(default)s")
    parser.add_argument("--runs", type=int, default=5, help="processes alone (%(default)s)")
    parser.add_argument("--folder", type=Path, help="keep the reports here")
    parser.add_argument("--output", type=Path, help="write the table here, too")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(*options.work)
        return 0
    wanted = [case for case in options.cases if case != "nsys" or shutil.which("nsys")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(exist_ok=True, parents=True)
        found = {}
        for name in KINDS if options.kinds else options.programs:
            began = time.monotonic()
            found[name] = measured(name, cases_of(name, wanted), options.runs, folder)
            each = ", ".join(f"{ms:.2f}" for ms in found[name].alone)
            sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s; alone {each} ms\n")
        recorded = [(name, case) for name in found for case in cases_of(name, wanted)]
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
            answers = pool.map(lambda one: told(report_of(folder, *one), one[1]), recorded)
            rows = [
                row_of(name, case, found[name], one) for (name, case), one in zip(recorded, answers, strict=True)
            ]
    lines = [f"{device_name()}, PyTorch {torch.__version__}, {options.runs} runs alone.", "", *HEAD, *rows]
    publish(lines, options.output)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
