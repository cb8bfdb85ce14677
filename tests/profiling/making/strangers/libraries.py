"""Programs that use the libraries that many models come from."""

import torch
from torch import nn

from .table import program, sgd

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TOKENS = torch.tensor([[1, 5, 9, 3], [2, 4, 8, 7]])
LIBRARY = ("transformers",)


def gpt2():
    import transformers

    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=31))


def llama(**more):
    import transformers

    config = transformers.LlamaConfig(
        **SMALL, vocab_size=32, max_position_embeddings=32, num_key_value_heads=1, bos_token_id=0,
        eos_token_id=31, pad_token_id=30, **more,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def train_on_tokens(model, **arguments):
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        answer = model(**arguments)
        answer.loss.backward()
        optimizer.step()
    return answer.loss


def generate(model, tokens=TOKENS, **how):
    mask = torch.ones_like(tokens)
    return model.eval().generate(tokens, attention_mask=mask, max_new_tokens=4, pad_token_id=30, **how)


@program(needs=LIBRARY)
def gpt2_trained(annotate):
    return train_on_tokens(annotate(gpt2()), input_ids=TOKENS, labels=TOKENS)


@program(needs=LIBRARY)
def gpt2_with_gradient_checkpoints(annotate):
    model = annotate(gpt2())
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return train_on_tokens(model, input_ids=TOKENS, labels=TOKENS, use_cache=False)


@program(needs=LIBRARY)
def gpt2_generates_greedily(annotate):
    return generate(annotate(gpt2()), do_sample=False)


@program(needs=LIBRARY)
def gpt2_searches_with_beams(annotate):
    return generate(annotate(gpt2()), num_beams=3, num_return_sequences=2, early_stopping=True)


@program(needs=LIBRARY)
def gpt2_samples(annotate):
    model = annotate(gpt2())
    return generate(model, do_sample=True, top_p=0.9, temperature=0.7, output_scores=True).tolist()


@program(needs=LIBRARY)
def llama_with_and_without_cache(annotate):
    model = annotate(llama())
    return generate(model, do_sample=False), generate(model, do_sample=False, use_cache=False)


@program(needs=LIBRARY)
def llama_with_attention_that_returns_weights(annotate):
    model = annotate(llama(attn_implementation="eager").eval())
    with torch.no_grad():
        answer = model(TOKENS, output_attentions=True, output_hidden_states=True)
    return answer.logits, answer.attentions, answer.hidden_states


@program(needs=LIBRARY)
def llama_with_a_static_cache(annotate):
    return generate(annotate(llama()), cache_implementation="static", do_sample=False, disable_compile=True)


@program(needs=LIBRARY)
def t5_trained_and_generating(annotate):
    import transformers

    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=32, decoder_start_token_id=0
    )
    model = annotate(transformers.T5ForConditionalGeneration(config))
    return train_on_tokens(model, input_ids=TOKENS, labels=TOKENS), generate(model, num_beams=2)


@program(needs=LIBRARY)
def bert_classifies(annotate):
    import transformers

    config = transformers.BertConfig(**SMALL, vocab_size=32, max_position_embeddings=16, num_labels=3)
    model = annotate(transformers.BertForSequenceClassification(config))
    return train_on_tokens(model, input_ids=TOKENS, labels=torch.tensor([0, 2]))


@program(needs=LIBRARY)
def images_classified(annotate):
    import transformers

    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, num_labels=2)
    model = annotate(transformers.ViTForImageClassification(config))
    return train_on_tokens(model, pixel_values=torch.ones(2, 3, 8, 8), labels=torch.tensor([0, 1]))


@program(needs=("transformers", "peft"))
def adapters_of_low_rank(annotate):
    import peft

    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    model = annotate(peft.get_peft_model(llama(), config))
    loss = train_on_tokens(model, input_ids=TOKENS, labels=TOKENS)
    with model.disable_adapter():
        plain = generate(model, do_sample=False)
    return loss, plain, generate(model.merge_and_unload(), do_sample=False)


@program(needs=("accelerate",))
def accelerated(annotate):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = annotate(nn.Linear(4, 2))
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(torch.ones(2, 4)).square().sum())
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


@program(needs=("lightning",), slow=True)
def lightning_fits(annotate):
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 2)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.body(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model, quiet = annotate(Classifier()), ("logger", "enable_checkpointing", "enable_progress_bar")
    loader = DataLoader(TensorDataset(torch.ones(4, 4), torch.tensor([0, 1, 0, 1])), batch_size=2)
    options = dict.fromkeys((*quiet, "enable_model_summary"), False)
    lightning.Trainer(accelerator="cpu", max_epochs=1, **options).fit(model, loader)
