"""The callbacks, with the real libraries: `pip install 'nvtx-kernels[transformers,lightning,accelerate]'`."""

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling.training import Profile, integrations
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from nvtx_kernels import analysis
from tests.profiling.making.recordings import range_names

#: Of three steps: how often each phase's range was opened, and how many steps the answers measure.
ACCUMULATED = {"backward": 6, "optimizer": 3, "measured": 2}
pytestmark = pytest.mark.filterwarnings("ignore")


class Texts(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        tokens = torch.arange(8) + index
        return {"input_ids": tokens, "labels": tokens}


def counts(path):
    names = range_names(path)
    opened = {name: names.count(name) for name in ("backward", "optimizer")}
    return {**opened, "measured": analysis.rank(path).report.steps}


def in_forward(path):
    """The ranges in which forward of the measured steps launched work, per step."""
    ranges = analysis.rank(path, per_step=True).ranges
    inside = ranges[(ranges["phase"] == "forward") & ranges["path"].map(lambda names: names[0] == "step")]
    return {" > ".join(names[1:]) for names in inside["path"]}


@pytest.mark.slow
def test_hugging_face(path, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size))
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3,
        use_cpu=True, eval_strategy="steps", eval_steps=1, save_strategy="no", logging_strategy="no", report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    callback = integrations.hugging_face(path, warmup=1)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=[callback]
    )
    trainer.train()
    assert counts(path) == ACCUMULATED
    assert "forward > GPT2LMHeadModel > transformer > h 1 > attn > c_attn" in in_forward(path)


@pytest.mark.slow
def test_lightning(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.head(self.body(batch[0]).relu()), batch[1])

        def validation_step(self, batch, _):
            self.head(self.body(batch[0]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = DataLoader(TensorDataset(torch.randn(12, 8), torch.randint(0, 2, (12,))), batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[integrations.lightning(path, warmup=1)],
    )  # fmt: skip
    trainer.fit(Classifier(), data, data)
    assert counts(path) == {**ACCUMULATED, "optimizer": 6}  # before and after the closure that runs the model
    assert {"forward > body", "forward > head"} <= in_forward(path)


def test_accelerate(path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    data = DataLoader(torch.randn(12, 8), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    with Profile(model, optimizer, path, warmup=1) as profile:
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    assert counts(path) == ACCUMULATED
    assert profile.outcome.steps == "2 steps after 1 of warm-up (steps of AdamW)"


#: Trains a tiny model with a callback that lies alone in the folder, and without nvtx-kernels.
ALONE = """
import sys
sys.modules["nvtx_kernels"] = None  # importing it raises
import torch
from hugging_face_callback import ProfilerCallback
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)

    def forward(self, x):
        calls.append(x)
        if len(calls) == int(sys.argv[1]):
            raise RuntimeError("diverged")
        return {"loss": self.body(x).square().mean()}

calls = []
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6, use_cpu=True,
    save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
)
data = [{"x": torch.randn(4)} for _ in range(24)]
Trainer(Net(), arguments, train_dataset=data, callbacks=[ProfilerCallback(warmup=2, steps=3)]).train()
"""
NAMES = ("hugging_face_callback.py", "lightning_callback.py")
CALLBACKS = [Path(integrations.__file__).with_name(name) for name in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize(("fails_at", "status"), [(0, 0), (10, 1)])  # the tenth call is in the third recorded step
def test_hugging_faces_callback_traces_without_this_package(fails_at, status, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(ALONE)
    (tmp_path / CALLBACKS[0].name).write_bytes(CALLBACKS[0].read_bytes())
    words = [sys.executable, "train.py", str(fails_at)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    ranking = analysis.rank(tmp_path / "out" / "trace.json.gz", per_step=True)
    assert ranking.report.steps == 3
    assert {"forward", "backward", "optimizer"} <= set(ranking.phases["phase"])


@pytest.mark.parametrize("path", CALLBACKS, ids=lambda path: path.stem)
def test_a_callback_imports_nothing_of_ours_when_it_is_loaded(path):
    tree = ast.parse(path.read_text())
    at_load = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.level]
    names = {alias.name for one in tree.body if isinstance(one, ast.Import) for alias in one.names}
    names |= {str(one.module) for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    assert at_load == []
    assert {name for name in names if "nvtx" in name or name.startswith(("analysis", "profiling"))} == set()


def test_an_unknown_profiler_is_refused():
    pytest.importorskip("transformers")
    from nvtx_kernels.profiling.training.hugging_face_callback import ProfilerCallback

    with pytest.raises(ValueError, match="there is no profiler 'nsys': choose from pytorch, nvtx-kernels"):
        ProfilerCallback("nsys")


@pytest.mark.parametrize(("library", "call"), [("transformers", integrations.hugging_face)])
def test_a_library_that_is_not_there_is_named(library, call, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "nvtx_kernels.profiling.training.hugging_face_callback", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'nvtx-kernels\[{library}\]'"):
        call()
