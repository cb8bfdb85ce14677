"""Run the model's steps under NVTX ranges, time them, and record them when asked.

nsys profile -t cuda,nvtx python -m profiling.run
python -m profiling.run --record report.sqlite
python -m profiling.run --json run.json
"""

import argparse
import os
import sys
import threading
from collections.abc import Sequence

from nvtx_kernels.analysis.support.arguments import HelpFormatter
from nvtx_kernels.analysis.vocabulary.settings import SETTINGS

from .cli import CommandError, CommandParser, Removed, ended, share
from .study.studies import COMPILE, add_year

DESCRIPTION = "Run forward, backward and optimizer steps of the course's model under NVTX ranges, and time them."
EPILOG = """\
ranges    warmup > step > phases, then measure > step > phases; measure begins with a mark that has the
          configuration. nsys captures only the measured steps with -c cudaProfilerApi, or with
          -c nvtx -p measure@nvtx-kernels
exit      0 done; 1 out of memory, or the report could not be written; 2 wrong usage; 130 or 143 when
          interrupted or terminated (the steps until then are still recorded)
"""
TEXT_OPTIONS = {
    "--size": "tiny, small, medium, large, xl, 2.7B or 10B (default small)",
    "--mode": "forward (no gradients, no loss), forward-backward or train (default)",
    "--dtype": "fp32 (default), tf32, or bf16 and fp16 autocast; no GradScaler",
    "--attention": "reference (default: the course's separate kernels) or sdpa",
    "--optimizer": "reference (default: the course's AdamW, 16 kernels a tensor), forloop, foreach or fused",
    "--device": "cuda, cuda:1, cpu (default: cuda if available)",
}
# The text on the defaults of settings that are numbers.
DEFAULTS = {
    "context_length": " (default 512; 64 on a CPU)",
    "batch_size": " (default 4; 1 on a CPU)",
    "warmup": " (default 5; 1 on a CPU)",
    "steps": " (default 10; 3 on a CPU)",
    "seed": " (default 0)",
}
SWITCHES = {
    "--opaque": "with --compile, open no ranges inside compiled code: the model is one piece",
    "--emit-nvtx": "make every operator a range too, with its sequence number",
    "--no-annotate": "open no ranges at all, to see what they cost",
    "--flops": "count FLOPs and bytes in the last step of warm-up",
}
FILES = {
    "--record": "record the measured steps, without nsys",
    "--memory-snapshot": "PyTorch's memory snapshot of the measured steps, and a table",
    "--json": "write times and state to this file, as a sweep's row",
}
MEMORY = "with --record, record what each range allocates and frees"


class _Help(HelpFormatter):
    """Help texts that show an option whose metavar is empty without a value."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return "" if action.metavar == "" else super()._format_args(action, default_metavar)


def parser(prog: str = "python -m profiling.run") -> argparse.ArgumentParser:
    """Return the options of the command; `study.settings` checks choices and numbers."""
    options = CommandParser(prog, None, DESCRIPTION, EPILOG, formatter_class=_Help)
    add_settings(options)
    options.add_argument(
        "--compile",
        nargs="?",
        const=True,
        default=None,
        type=COMPILE.get,
        choices=COMPILE.values(),
        metavar="reduce-overhead",
        help="torch.compile the model; its code has the model's ranges, and ranges for what it fused",
    )
    for name, text in SWITCHES.items():
        options.add_argument(name, action="store_true", help=text)
    for name, text in FILES.items():
        options.add_argument(name, metavar="FILE", help=text)
    options.add_argument("--memory", nargs="?", const=True, default=False, metavar="", help=MEMORY)
    options.add_argument("--record-memory", nargs=0, action=Removed, use="--record FILE --memory")
    options.add_argument("--memory-fraction", type=share, metavar="F", help="share of the device's memory to use")
    # A sweep reads the row, and lets no process outlive it.
    options.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--die-with-parent", action="store_true", help=argparse.SUPPRESS)
    return options


def add_settings(options: argparse.ArgumentParser) -> None:
    """Add the options that choose a run's model and how often it steps, in their group."""
    group = options.add_argument_group("settings of the model")
    for name, text in TEXT_OPTIONS.items():
        group.add_argument(name, help=text)
    add_year(group, "--preset", "--model-preset")
    for name, setting in SETTINGS.items():
        if setting.least is not None:
            text = setting.help.replace("sizes' own", "size's own") + DEFAULTS.get(name, "")
            group.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.run") -> int:
    """Run the command and return its exit status."""
    command = parser(prog)
    options = vars(command.parse_args(arguments))
    if options["memory"] not in (True, False):
        command.error(f"--memory takes no file; use: --memory-snapshot {options['memory']}")
    if options["die_with_parent"]:
        threading.Thread(target=_die_with_parent, daemon=True).start()
    # Annotation reads these when it is imported.
    if options["no_annotate"]:
        os.environ["NVTX_KERNELS_OFF"] = "1"
    if options["opaque"]:
        os.environ["NVTX_KERNELS_OPAQUE"] = "1"
    if options["json"] is not None:
        # PyTorch would warn that it does not know the size of what was allocated before a phase's memory is read.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def work() -> int:
        # PyTorch takes seconds to import.
        from .recorder.trace_file import TraceFileError
        from .study import one_run
        from .study.workload import NoMemoryError

        try:
            one_run.run(options)
        except BrokenPipeError:
            raise
        except (NoMemoryError, TraceFileError, OSError) as error:
            raise CommandError(str(error)) from error
        return 0

    return ended(command, work)


def _die_with_parent() -> None:
    # A sweep that is killed closes the pipe; its measurement must not run in parallel with the next one.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
