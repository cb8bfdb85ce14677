"""Hugging Face's Trainer: a small GPT-2, gradients of two batches, and an evaluation after each step."""

import tempfile

import torch
import transformers


class Texts(torch.utils.data.Dataset):
    """Rows of numbers as tokens, to be repeated."""

    def __len__(self):
        return 12

    def __getitem__(self, place):
        tokens = torch.arange(8) + place
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 64, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=3,
            use_cpu=True,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        transformers.Trainer(model, arguments, train_dataset=Texts(), eval_dataset=Texts()).train()
