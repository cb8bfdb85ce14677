"""Write docs/names.md: the names of ranges that open a phase or a step, as the tables have them."""

from __future__ import annotations

from pathlib import Path

from nvtx_kernels.analysis.vocabulary.range_names import PHASE_NAMES, STEP_NAMES, WARM_UP_NAMES

PAGE = Path(__file__).parents[1] / "docs" / "names.md"
INTRODUCTION = """\
---
search:
  boost: 0.3
---

# Names of phases and steps

Ranges with these names are phases or steps. For your own names, use `--phase-names forward='fit *',backward=bp`
and `--step 'minibatch *'`.

The whole name of a range is compared, without its NVTX domain and the marks around it (`## forward ##`), and
regardless of case. The nearest range around a kernel that matches decides; forward below backward is backward. A
name marked *part* gives the work inside it that phase, but does not begin the phase: a loss next to the forward,
FSDP's gathering, clipping.

Each line is a row of `analysis/vocabulary/range_names.py`, with a name that it matches, and a similar one that it
does not match.

A forward of a serving engine is *prefill* if its step computes prompts, *decode* if it computes the next token
of each request, and forward if it does both. A forward range inside such a step has the step's phase. If the
names of steps count requests and tokens, a note gives the kernel time of each, and `view steps` lists them with
tokens per second.
"""
MODULES = """\

## Modules of serving engines

The names of these ranges are a dict as text, such as `{'Module': 'model.layers.0.mlp', 'Inputs': [[8, 4096]]}`.
Tables show the module's path below the module around it (`model > layers.0 > mlp`), without the shapes. The range
that vLLM pushes after each call, with the shapes of the outputs, is `mlp (outputs)`.

| written by | with |
|---|---|
| vLLM, vllm/utils/nvtx_pytorch_hooks.py | `--enable-layerwise-nvtx-tracing` |
| SGLang, python/sglang/srt/utils/nvtx_pytorch_hooks.py | `--enable-layerwise-nvtx-marker` |
| TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/layerwise_nvtx_marker.py | `enable_layerwise_nvtx_marker` |

## Training libraries

Accelerate (July 2026) and torchtitan (August 2026) open no ranges of their own; PyTorch's are in their reports
(`ProfilerStep#3`, FSDP2's). Megatron-Core, and NeMo with it, names ranges by the function that opens them: these
are parts of a model, and open no phase.
"""


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            INTRODUCTION,
            "| phase or step | matches | does not match | written by |",
            "|---|---|---|---|",
            *(
                f"| {name.means}{' (part)' * name.part} | `{name.example}` | `{name.near_miss}` | {name.source} |"
                for name in (*PHASE_NAMES, *STEP_NAMES, *WARM_UP_NAMES)
            ),
            MODULES,
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
