"""The documentation's site under test: words that people type find the section that answers them, in a browser."""

import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING, Shown, chromium

ROOT = Path(__file__).parents[2]
#: What people type, and the section that comes first.
WORDS = {
    "OOM": "troubleshooting/#cuda-out-of-memory-oom",
    "out of memory": "troubleshooting/#cuda-out-of-memory-oom",
    "DataLoader": "troubleshooting/#the-dataloader-is-slow",
    "GPU utilization low": "troubleshooting/#training-is-slow-gpu-utilization-is-low",
    "no kernels": "troubleshooting/#no-kernels",
    "SLURM": "troubleshooting/#slurm",
    "Colab": "troubleshooting/#google-colab-kaggle-jupyter",
    "Kaggle": "troubleshooting/#google-colab-kaggle-jupyter",
    "Docker": "troubleshooting/#docker-and-kubernetes",
    "permission denied ERR_NVGPUCTRPERM": "troubleshooting/#permission-denied-err_nvgpuctrperm",
    "torch.compile": "compiled/",
    "DDP": "troubleshooting/#several-ranks-ddp-fsdp-torchrun",
    "FSDP": "troubleshooting/#several-ranks-ddp-fsdp-torchrun",
    "MFU": "efficiency/",
    "NVTX": "annotation/",
    "nsys": "recording/#with-nsys-which-flags",
    "backward": "troubleshooting/#backward-is-0-or-almost",
    "flash attention": "known_changes/#flash-attention-scaled_dot_product_attention",
    "mixed precision": "known_changes/#tf32-bf16-and-mixed-precision-autocast",
    "bf16": "known_changes/#tf32-bf16-and-mixed-precision-autocast",
    "TF32": "known_changes/#tf32-bf16-and-mixed-precision-autocast",
    "pin_memory": "known_changes/#pin_memory-and-non_blocking",
    "num_workers": "known_changes/#num_workers-batches-made-in-the-background",
    ".item()": "known_changes/#item-cpu-and-print-in-the-loop",
    "empty_cache": "known_changes/#empty_cache-and-gccollect",
    "gradient accumulation": "known_changes/#gradient-accumulation-and-no_sync-of-ddp",
    "checkpointing": "known_changes/#activation-checkpointing-gradient-checkpointing",
    "LightningCallback": "trainers/#lightnings-trainer",
    "Hugging Face Trainer": "trainers/#hugging-face-trainer",
    "steps": "account/",
    "slow": "troubleshooting/",
}
TYPE = """
    document.querySelector(".md-search-result__list").replaceChildren();
    const box = document.querySelector(".md-search__input");
    document.querySelector("#__search").checked = true;
    box.focus();
    box.value = arguments[0];
    box.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
"""
#: The addresses of the first page that is found, and of its first section.
FIRST = """
    const links = [...document.querySelectorAll(".md-search-result__item:first-child .md-search-result__link")];
    return links.slice(0, 2).map((link) => decodeURIComponent(link.pathname.slice(1) + link.hash));
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed: make docs installs it")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(["make", "-s", "typed"], cwd=ROOT, check=True)
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def home(site):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    with chromium(webdriver) as driver:
        yield Shown(driver, f"http://127.0.0.1:{server.server_port}/", "return document.readyState == 'complete'")
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("typed", "wanted"), WORDS.items(), ids=WORDS)
def test_words_of_users_find_their_section_first(typed, wanted, home):
    home.do(TYPE, typed)
    home.until(FIRST.replace("return links", "return links.length && links"))
    assert wanted in home.do(FIRST)


def test_regions_that_scroll_are_reached_by_keys_and_the_search_has_a_name(home):
    mute = "return document.querySelectorAll('.md-content pre > code:not([tabindex=\"0\"])').length"
    assert home.do(mute) == 0
    assert home.do("return document.querySelector('[role=dialog]').getAttribute('aria-label')") == "Search"
