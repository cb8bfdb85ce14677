"""Whether the machine does what the settings ask for: the precision of products, and clocks under load."""

import shutil
import subprocess
import time
from functools import partial

import torch

from ..machine import TF32_OVERRIDE, tf32_allowed
from .settings import Settings
from .workload import Workload, run_phases, timed_phase

# nvidia-smi's name of a reading, and ours with its unit.
READINGS = {
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "max_sm_mhz",
    "clocks.mem": "memory_mhz",
    "temperature.gpu": "celsius",
    "power.draw": "watts",
}
LONGEST_READING_S = 10
# 1 + 2**-12 is a float32, and 1 in TF32, whose mantissa has 10 bits.
BEYOND_TF32 = 1 + 2**-12
PROBE_SIZE = 1024


def warnings(settings: Settings) -> list[str]:
    """Return warnings if the precision of FP32 products is not that of the settings."""
    wants_tf32, sentences = settings.dtype == "tf32", []
    if (allowed := tf32_allowed()) != wants_tf32:
        state = "allowed" if allowed else "forbidden"
        sentences.append(f"TF32 is {state} ({TF32_OVERRIDE} or a backend flag)")
    if (is_used := products_use_tf32(settings.device)) != wants_tf32:
        sentences.append(f"this device computes FP32 products in {'TF32' if is_used else 'full FP32'}")
    return [f"{settings.dtype} was asked for, but {sentence}" for sentence in sentences]


def products_use_tf32(device: str) -> bool:
    """Multiply numbers that TF32 cannot hold, and return whether the device rounded them."""
    with torch.inference_mode():
        numbers = torch.full((PROBE_SIZE, PROBE_SIZE), BEYOND_TF32, device=device)
        products = numbers @ torch.eye(PROBE_SIZE, device=device)
        return bool((products != numbers).any())


def clocks_under_load(workload: Workload) -> dict[str, float] | None:
    """Read the GPU's clocks while it runs more steps; None without a GPU or nvidia-smi."""
    settings, smi = workload.settings, shutil.which("nvidia-smi")
    if settings.device_type != "cuda" or smi is None:
        return None
    gpu = torch.cuda.get_device_properties(settings.device)
    query = [f"--id=GPU-{gpu.uuid}", f"--query-gpu={','.join(READINGS)}", "--format=csv,noheader,nounits"]
    with subprocess.Popen([smi, *query], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader:
        deadline = time.monotonic() + LONGEST_READING_S
        while reader.poll() is None and time.monotonic() < deadline:
            run_phases(workload, partial(timed_phase, workload, {}))
        reader.kill()
        return parsed_readings(reader.stdout.read() if reader.stdout else "")


def parsed_readings(text: str) -> dict[str, float] | None:
    """Return the readings of nvidia-smi's line, without those it does not give."""
    values = text.strip().split(", ")
    if len(values) != len(READINGS):
        return None
    pairs = zip(READINGS.values(), values, strict=True)
    return {name: float(value) for name, value in pairs if value.replace(".", "", 1).isdigit()}
