"""Ranges as serving engines name them: their formatting, by a module's name and the shapes that it is called with.

- vLLM, vllm/utils/nvtx_pytorch_hooks.py (2026): a dict as text for each call of a module, and an empty range with
  the outputs' shapes after it; the root is called as the model's class. vllm/v1/worker/gpu_worker.py: steps.
- SGLang, python/sglang/srt/utils/nvtx_pytorch_hooks.py (2026): the same without the second range; the root is
  `model`. python/sglang/srt/utils/profile_utils.py: `step[MODE bs=… toks=…]`.
- TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/layerwise_nvtx_marker.py (1.0): always with `TrainableParams`; the
  root is called as the architectures of the model's configuration, joined by `|`.
"""

from tests.analysis.making.building import Range, launched

MODULES = {
    "": 0,
    "model": 1,
    "model.layers.0": 2,
    "model.layers.0.self_attn": 3,
    "model.layers.0.self_attn.qkv": 4,
}


def vllm_call(module, inputs=(), outputs=(), parameters=None, static=None):
    """Return vLLM's and SGLang's name of a call."""
    said = {"Module": module}
    said |= {"TrainableParams": parameters} if parameters else {}
    said |= {"Inputs": list(inputs)} if inputs else {}
    said |= {"Outputs": list(outputs)} if outputs else {}
    return str(said | ({"StaticParams": static} if static else {}))


def tensorrt_call(module, inputs=(), parameters=None):
    """Return TensorRT-LLM's name of a call."""
    said = {"Module": module, "TrainableParams": parameters or {}}
    return str(said | ({"Inputs": list(inputs)} if inputs else {}))


def vllm_step(contexts, context_tokens, generations, generated):
    """Return vLLM's name of a step."""
    return f"execute_context_{contexts}({context_tokens})_generation_{generations}({generated})"


def sglang_step(mode, requests, tokens=None):
    """Return SGLang's name of a step."""
    return f"step[{mode} bs={requests}{'' if tokens is None else f' toks={tokens}'}]"


def tensorrt_step(number, contexts, generations):
    """Return TensorRT-LLM's name of a step."""
    return f"[Executor] _forward_step {number}: {contexts} ctx reqs, {generations} gen reqs"


def calls(root, name, begin, rows, outputs=False):
    """Return the ranges of one step's calls of modules, and the moments of their launches, one in each module."""
    ranges, moments = [], []
    for module, depth in MODULES.items():
        whole = f"{root}.{module}" if module else root
        start, end = begin + 2 * depth, begin + 90 - 2 * depth
        ranges.append(Range(name(whole, [[rows, 64]]), start, end))
        moments.append((start + 1, start + 2))
        if outputs:
            ranges.append(Range(vllm_call(whole, outputs=[[rows, 64]]), end, end + 1))
    return ranges, moments


def served(root, name, steps, *, around=None, outputs=False):
    """Return the rows of a report of several steps, each a range's name and the number of rows of its batch."""
    ranges, moments = [], []
    for number, (step, rows) in enumerate(steps):
        begin = 1_000 * number
        ranges.append(Range(step, begin, begin + 200))
        ranges += [Range(around, begin + 4, begin + 190)] if around else []
        inner, at = calls(root, name, begin + 10, rows, outputs)
        ranges += inner
        moments += at
    return {"ranges": ranges, **launched(*moments)}
