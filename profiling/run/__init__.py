"""Run the model's steps under NVTX ranges, time them, and record them when asked.

nsys profile -t cuda,nvtx python -m profiling.run
python -m profiling.run --record report.sqlite
python -m profiling.run --json run.json
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ..cli import add_preset

DESCRIPTION = "Run forward, backward and optimizer steps under NVTX ranges, and print their times."
EPILOG = """\
ranges    warmup > step > phases, then measure > step > phases; measure begins with one mark that holds
          the configuration. nsys captures the measured steps alone with -c cudaProfilerApi, or with
          -c nvtx -p measure@nvtx-kernels
exit      0 done; 1 out of memory, or the report could not be written; 2 wrong usage; 130 or 143 when
          interrupted or terminated (what ran is still recorded)
"""


def parser(prog: str = "python -m profiling.run") -> argparse.ArgumentParser:
    """Return the options that a sweep's runs have too; `profiling.settings` checks choices and numbers."""
    this = argparse.ArgumentParser(
        prog, None, DESCRIPTION, EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, what in TEXT_OPTIONS.items():
        this.add_argument(option, help=what)
    add_preset(this, "--preset", "--model-preset")
    for option, what in NUMBER_OPTIONS.items():
        this.add_argument(option, type=int, metavar="N", help=what)
    for option, what in SWITCHES.items():
        this.add_argument(option, action="store_true", help=what)
    this.add_argument("--flops", action="store_true", help="count FLOPs and bytes in the last step of warm-up")
    this.add_argument("--record", metavar="FILE", help="record the measured steps, without nsys")
    this.add_argument(
        "--record-memory", action="store_true", help="with --record, what each range allocates and frees"
    )
    this.add_argument(
        "--memory", metavar="FILE", help="PyTorch's memory snapshot of the measured steps, and a table"
    )
    return this


TEXT_OPTIONS = {
    "--size": "tiny, small, medium, large, xl, 2.7B or 10B (default small)",
    "--mode": "forward (no gradients, no loss), forward-backward or train (default)",
    "--dtype": "fp32 (default), tf32, or bf16 and fp16 autocast; no GradScaler",
    "--attention": "reference (default: the course's separate kernels) or sdpa",
    "--optimizer": "reference (default: the course's AdamW, 16 kernels a tensor), forloop, foreach or fused",
    "--device": "cuda, cuda:1, cpu (default: cuda if available)",
}
NUMBER_OPTIONS = {
    "--d-model": "the model's width, instead of the size's own",
    "--d-ff": "the feed-forward's width, instead of the size's own",
    "--layers": "layers, instead of the size's own",
    "--heads": "attention heads, instead of the size's own",
    "--vocab-size": "tokens in the vocabulary, instead of the size's own",
    "--context-length": "tokens in a sequence (default 512; 64 on a CPU)",
    "--batch-size": "sequences in a batch (default 4; 1 on a CPU)",
    "--warmup": "steps before measuring (default 5; 1 on a CPU)",
    "--steps": "measured steps (default 10; 3 on a CPU)",
    "--seed": "of weights and tokens (default 0)",
}
SWITCHES = {
    "--compile": "torch.compile the model; its code has the model's ranges, and ranges for what it fused",
    "--opaque": "with --compile, open no ranges inside compiled code: the model is one piece",
    "--emit-nvtx": "make every operator a range too, with its sequence number",
    "--no-annotate": "open no ranges at all, to see what they cost",
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.run") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    this.add_argument("--json", metavar="FILE", help="write times and state to this file, as a sweep's row")
    asked = vars(this.parse_args(arguments))
    switch_off(asked)
    if asked["json"] is not None:
        # PyTorch would warn that it does not know the size of what was allocated before a phase's memory is read.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not (find_spec("torch") and find_spec("nvtx")):
        return _say("this needs PyTorch and nvtx: pip install 'nvtx-kernels[profiling]'", 1)
    # PyTorch takes seconds to import, and annotations are switched off before that.
    from ..recorder.trace_file import TraceFileError
    from ..workload.model_steps import NoMemoryError
    from ..workload.settings import SettingsError

    try:
        _run(asked)
    except SettingsError as error:
        this.error(str(error))
    except (NoMemoryError, TraceFileError, OSError) as error:
        return _say(str(error), 1)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    return 0


def switch_off(asked: Mapping[str, Any]) -> None:
    """Keep annotation from opening what is not wanted; it reads the environment when it is imported."""
    if asked["no_annotate"]:
        os.environ["NVTX_KERNELS_OFF"] = "1"
    if asked["opaque"]:
        os.environ["NVTX_KERNELS_OPAQUE"] = "1"


def _run(asked: Mapping[str, Any]) -> None:
    """Check what is asked for, then run it."""
    from ..recorder.trace_file import check_writable
    from ..show import run
    from ..workload import peaks
    from ..workload.measurement import Capture
    from ..workload.settings import SettingsError, reduced_by_cpu, with_defaults

    capture, settings = (
        Capture(
            asked["record"],
            operators=asked["emit_nvtx"],
            flops=asked["flops"],
            memory=asked["record_memory"],
        ),
        with_defaults(asked),
    )
    capture.check(settings)
    peaks.check(asked["memory"], settings)
    files = [asked[name] for name in ("record", "memory", "json") if asked[name] is not None]
    if len(set(files)) < len(files):
        raise SettingsError("--record, --memory and --json name the same file: give each its own")
    if asked["json"] is not None:
        check_writable(asked["json"])
    to = {"memory_to": asked["memory"], "row_to": asked["json"]}
    run.run(settings, capture, reduced_by_cpu(asked, settings), **to)


def _say(sentence: str, status: int) -> int:
    sys.stderr.write(f"profiling.run: {sentence}\n")
    return status
