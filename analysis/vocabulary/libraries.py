"""Whose files and frames are not the program's own: the standard library's, and those of other libraries."""

from __future__ import annotations

import re

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
# Folders of libraries that people install and train with.
LIBRARIES = """
    accelerate aiter apex bitsandbytes composer datasets deepspeed diffusers einops fairseq fastai fire
    flash_attn fsspec huggingface_hub hydra ignite IPython ipykernel jax keras lightning lightning_fabric
    liger_kernel megatron mmengine monai numpy omegaconf open_clip optuna pandas peft PIL pydantic
    pytorch_lightning ray requests safetensors scipy sentence_transformers sglang sklearn tensorboard tensorflow
    timm tokenizers tornado torch_geometric torchao torchaudio torchmetrics torchtitan torchtune torchvision
    tqdm transformers transformer_engine triton trl vllm wandb xformers zmq
""".split()  # noqa: SIM905

INSTALLED = r"(?:site|dist)-packages/"
#: The begin of a library's file, or of a frame in it.
OF_LIBRARIES = re.compile(rf".*{INSTALLED}|(?:torch|{'|'.join(LIBRARIES)})(?:\.py\b|/)")


def is_of_library(file: str) -> bool:
    """Return whether a file, or a frame, is a library's, which people do not change."""
    return OF_LIBRARIES.match(file) is not None
