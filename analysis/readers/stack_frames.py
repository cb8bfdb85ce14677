"""Which Python frames of a trace become ranges: calls of modules, updates of an optimizer, and functions.

A trace recorded with `with_stack=True` has an event for each call of a Python function (`train.py(12): main`), of
a built-in (`<built-in method relu …>`) and of a module (`nn.Module: Linear_0`). Functions become ranges only on
request (`--by function`). The profiler strips the folders of `sys.path` from file names, so a folder
`transformers/` can be the library's or the program's own.
"""

from __future__ import annotations

import re
from typing import Literal

#: Kineto's category of frames.
FRAME = "python_function"
MODULE = "nn.Module: "
NO_FRAME, MODULE_CALL, FUNCTION_CALL, UPDATE = range(4)

#: Which functions become ranges: none, those of the program and of libraries, or the program's own.
Functions = Literal["", "all", "own"]

# Modules of the standard library that run programs or that programs run in.
STANDARD_LIBRARY = """
    _bootlocale _collections_abc _weakrefset abc argparse ast asyncio base64 bisect bz2 cProfile codecs
    collections concurrent contextlib copy copyreg csv ctypes dataclasses datetime decimal difflib dis email
    encodings enum fnmatch fractions functools gc genericpath getpass glob gzip hashlib heapq hmac html http
    importlib inspect io ipaddress json keyword linecache locale logging lzma mimetypes multiprocessing ntpath
    numbers opcode operator os pathlib pdb pickle pkgutil platform posixpath pprint queue random re reprlib
    runpy secrets select selectors shelve shlex shutil signal socket socketserver sre_compile sre_parse ssl stat
    string struct subprocess sysconfig tarfile tempfile textwrap threading timeit token tokenize traceback types
    typing unittest urllib uuid warnings weakref xml zipfile zipimport zoneinfo
""".split()  # noqa: SIM905
# Their folders; those of libraries that people install and train with, which are not the program's own.
LIBRARIES = """
    accelerate aiter apex bitsandbytes composer datasets deepspeed diffusers einops fairseq fastai fire
    flash_attn fsspec huggingface_hub hydra ignite IPython ipykernel jax keras lightning lightning_fabric
    liger_kernel megatron mmengine monai numpy omegaconf open_clip optuna pandas peft PIL pydantic
    pytorch_lightning ray requests safetensors scipy sentence_transformers sglang sklearn tensorboard tensorflow
    timm tokenizers tornado torch_geometric torchao torchaudio torchmetrics torchtitan torchtune torchvision
    tqdm transformers transformer_engine triton trl vllm wandb xformers zmq
""".split()  # noqa: SIM905

_INSTALLED = r"(?:site|dist)-packages/"
#: Frames that are no functions of the program's or of a library's, by the beginning of their names.
SKIPPED = (
    r"<(?!ipython-input)",  # <built-in …>, <frozen …>, <string>, <eval_with_key>; but not a notebook's cell
    MODULE,
    rf"(?:.*/{_INSTALLED})?torch/",
    r".*/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)",
    rf"(?:{'|'.join(STANDARD_LIBRARY)})(?:\.py\(|/)",
)
#: Frames that are not the program's own, besides.
OF_LIBRARIES = (rf".*{_INSTALLED}", rf"(?:{'|'.join(LIBRARIES)})(?:\.py\(|/)")

_SKIPPED = re.compile("|".join(SKIPPED))
_OF_LIBRARIES = re.compile("|".join(OF_LIBRARIES))
_UPDATE = re.compile(r"(?:.*/)?torch/optim/(?!lr_scheduler|swa_utils|optimizer)(\w+)\.py\(\d+\): step")


def kind_of(frame: str, functions: Functions = "") -> int:
    """Return the kind of a frame: a module's call, an update, a function's call, or NO_FRAME.

    >>> [kind_of(name, "all") for name in ("nn.Module: Linear_0", "train.py(7): main", "torch/jit.py(1): f")]
    [1, 2, 0]
    """
    if frame.startswith(MODULE):
        return MODULE_CALL
    if _UPDATE.fullmatch(frame):
        return UPDATE
    if not functions or _SKIPPED.match(frame) or (functions == "own" and _OF_LIBRARIES.match(frame)):
        return NO_FRAME
    return FUNCTION_CALL


def range_name(frame: str) -> str:
    """Return the name of a frame's range.

    >>> range_name("nn.Module: Linear_0"), range_name("torch/optim/adamw.py(220): step")
    ('Linear_0', 'Optimizer.step#adamw.step')
    """
    update = _UPDATE.fullmatch(frame)
    if update:
        return f"Optimizer.step#{update[1]}.step"
    return frame.removeprefix(MODULE)
