"""Report what this machine lacks for a good report, and how to fix it.

python -m profiling.doctor
"""

from collections.abc import Iterator, Sequence

from nvtx_kernels.analysis.presenters.output import print_text
from nvtx_kernels.analysis.support.arguments import CommandParser
from nvtx_kernels.analysis.support.findings import Finding, as_json, is_bad, text

from ..cli import ended
from ..tool import how_to_get_nvtx
from .facts import OF_VARIABLE, Facts, look

DESCRIPTION = "Check nsys, driver, permissions and environment; each finding has its fix."
EPILOG = "exit  0 reports can be recorded (warnings included); 1 something must be fixed; 2 wrong usage"

# Major version of the driver's branch, the newest CUDA it runs, and the nsys that came with that CUDA
# (component tables of NVIDIA's CUDA release notes). An older nsys may not decode what that CUDA writes.
NSYS_OF_DRIVER: Sequence[tuple[int, str, tuple[int, int]]] = (
    (580, "13.0", (2025, 3)),
    (575, "12.9", (2025, 1)),
    (570, "12.8", (2024, 6)),
    (560, "12.6", (2024, 4)),
    (555, "12.5", (2024, 2)),
    (550, "12.4", (2023, 4)),
    (545, "12.3", (2023, 3)),
    (535, "12.2", (2023, 2)),
    (530, "12.1", (2023, 1)),
    (520, "11.8", (2022, 4)),
)
# Most that perf_event_paranoid may be for nsys to sample CPUs.
SAMPLING_PARANOID = 2
TO_RECORD = (
    "to record with nsys, use -t cuda,nvtx --sample=none --cpuctxsw=none -c cudaProfilerApi "
    "--capture-range-end=stop, and not the last two if the program captures CUDA graphs in its warm-up"
)
INSTALL_NSYS = "install nsight-systems-cli from NVIDIA's package repository, or the .run file of a newer release"


def findings(facts: Facts) -> list[Finding]:
    """Return the findings, good and bad: on PyTorch, nsys, the system and its settings."""
    return [*_of_pytorch(facts), *_of_nsys(facts), *_of_system(facts)]


def _of_pytorch(facts: Facts) -> Iterator[Finding]:
    if facts.torch is None:
        yield Finding("problem", "torch is not installed", "pip install 'nvtx-kernels[profiling]'")
    else:
        yield Finding("good", f"torch {facts.torch}")
    if facts.nvtx is None:
        yield Finding("warning", "nvtx is not installed: annotation refuses to run under nsys", how_to_get_nvtx())
    else:
        yield Finding("good", f"nvtx {facts.nvtx}")
    if facts.gpus:
        yield Finding("good", f"PyTorch sees {', '.join(facts.gpus)} through CUDA {facts.torch_cuda}")
    elif facts.driver is None:
        fix = "nothing, if this machine has no GPU: `nvtx-kernels record train.py` records CPU operators"
        yield Finding("warning", "there is no NVIDIA driver here, so no GPU to profile", fix)
    elif facts.torch_cuda is None:
        yield Finding("problem", "this PyTorch is built for CPUs only", "install a CUDA build of PyTorch")
    else:
        fix = "check CUDA_VISIBLE_DEVICES and nvidia-smi; in a container, start it with --gpus all"
        yield Finding("problem", f"PyTorch sees no GPU, though driver {facts.driver} is loaded", fix)
    if facts.gpus and not facts.recorder_sees_gpu:
        fix = "install a PyTorch that is built with Kineto and CUPTI; nsys does not need that"
        yield Finding("warning", "torch.profiler cannot see CUDA, so --record would miss the kernels", fix)


def _of_nsys(facts: Facts) -> Iterator[Finding]:
    if facts.nsys is None:
        yield Finding(
            "warning", str(facts.nsys_trouble), f"{INSTALL_NSYS}; `nvtx-kernels record train.py` works without"
        )
    else:
        yield Finding("good", f"nsys {'.'.join(map(str, facts.nsys_version or ()))}: {facts.nsys}")
        if facts.trial_trouble:
            fix = (
                "run `nsys profile -t nvtx python -c pass`; a missing library (libdw, libelf) is a package of its "
                "name"
            )
            yield Finding("problem", f"nsys wrote no report: {facts.trial_trouble}", fix)
        elif facts.trial_trouble == "":
            yield Finding("good", "nsys profiled a small program and wrote its report")
        if not facts.trial_trouble:
            yield Finding("good", TO_RECORD)
    if facts.driver is None or facts.nsys_version is None:
        return
    branch = int(facts.driver.partition(".")[0])
    release_of = next((entry for entry in NSYS_OF_DRIVER if branch >= entry[0]), None)
    if release_of is None:
        yield Finding("warning", f"driver {facts.driver} is older than any known here", "update the driver")
        return
    _, cuda, (year, release) = release_of
    if facts.nsys_version[:2] < (year, release):
        age = f"nsys is older than {year}.{release}, which came with CUDA {cuda} of driver {facts.driver}"
        yield Finding("warning", f"{age}: kernels may be missing or unnamed", INSTALL_NSYS)
    else:
        yield Finding("good", f"nsys is as new as driver {facts.driver} (CUDA {cuda}) needs")


def _of_system(facts: Facts) -> Iterator[Finding]:
    if facts.paranoid is not None and facts.paranoid > SAMPLING_PARANOID and not facts.is_root:
        fix = "sudo sysctl kernel.perf_event_paranoid=2; only the preset backtrace needs it"
        if facts.in_container:
            fix += "; in a container, on the host, and --cap-add=SYS_ADMIN"
        yield Finding("warning", f"CPU sampling is refused (perf_event_paranoid is {facts.paranoid})", fix)
    if facts.counters_for_admins and not facts.is_root:
        fix = "load the driver with NVreg_RestrictProfilingToAdminUsers=0; tracing kernels needs nothing"
        yield Finding("warning", "GPU metrics (--gpu-metrics-devices) require an administrator here", fix)
    if facts.in_container:
        fix = "for those alone, start it with --cap-add=SYS_ADMIN; traces of CUDA and NVTX need nothing"
        yield Finding("warning", "this is a container: CPU sampling and GPU metrics are often refused", fix)
    if facts.in_wsl and facts.wsl_clock_fixed:
        yield Finding("good", "this is WSL, and nsys is set to convert its GPU's timestamps")
    elif facts.in_wsl:
        fix = 'mkdir -p "$(dirname "$(nsys -z)")"; echo CuptiUseRawGpuTimestamps=false >> "$(nsys -z)"'
        yield Finding("problem", "this is WSL: reports have no kernels until its GPU clock is converted", fix)
    for name, value in facts.variables.items():
        effect, fix = OF_VARIABLE[name]
        yield Finding("warning", f"{name}={value} {effect}", fix)


def measured_peaks() -> Iterator[Finding]:
    """Measure the GPU, and keep what it reached for the reports that are made from now on."""
    try:
        import torch

        from ..annotate.counting import keep_peaks
        from .gemm_peaks import measure
    except ImportError:
        return
    if not torch.cuda.is_available():
        fix = "measure on the machine that trains"
        yield Finding("warning", "no peaks were measured: PyTorch sees no GPU", fix)
        return
    gpu, peaks = torch.cuda.get_device_name(), measure()
    rates = ", ".join(f"{kind} {rate:.1f}" for kind, rate in peaks["tflops"].items())
    reached = f"{gpu} reaches {rates} TFLOP/s and {peaks['gigabytes_per_s']:.0f} GB/s"
    try:
        keep_peaks(gpu, peaks)
    except OSError as error:
        fix = "set NVTX_KERNELS_CACHE to a folder of yours"
        yield Finding("warning", f"{reached}, but that is not kept: {error}", fix)
    else:
        yield Finding("good", f"{reached}; reports with counted FLOPs have this from now on")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.doctor") -> int:
    """Run the command and return its exit status."""
    parser = CommandParser(prog, None, DESCRIPTION, EPILOG)
    parser.add_argument("--quick", action="store_true", help="do not let nsys write a small report")
    parser.add_argument("--peaks", action="store_true", help="measure what the GPU reaches, for efficiency")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)

    def work() -> int:
        results = findings(look(trial=not options.quick)) + (list(measured_peaks()) if options.peaks else [])
        print_text(as_json(results) if options.json else text(results))
        return int(is_bad(results))

    return ended(parser, work)
