"""The settings of a run of the course's model, one line each: what they are called, and what they may be.

Options, the marks of recordings, headings, tables and the names of reports are made of these.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting: a whole number of `least` or more, or one of `choices`, or any text.

    Columns have it as `header`, a report's heading as `heading`, and the name of a report as `short` where it is
    not the default; "" if they do not. `help` says what it is, where choices do not, and `lists` is the option for
    several, where that is not its name.
    """

    name: str
    header: str
    heading: str = ""
    short: str = ""
    least: int | None = None
    choices: tuple[Any, ...] = ()
    help: str = ""
    lists: str = ""


# fmt: off
#: The model's dimensions, which its size names all together.
DIMENSIONS = (
    Setting("d_model", "d_model", "", "d{}", 1, help="the model's width, instead of the sizes' own"),
    Setting("d_ff", "d_ff", "", "ff{}", 1, help="the feed-forward's width, instead of the sizes' own"),
    Setting("layers", "layers", "", "l{}", 1, help="layers, instead of the sizes' own"),
    Setting("heads", "heads", "", "h{}", 1, help="attention heads, instead of the sizes' own"),
    Setting("vocab_size", "vocabulary", "", "v{}", 1, help="tokens in the vocabulary, instead of the sizes' own"),
)
SIZES = ("tiny", "small", "medium", "large", "xl", "2.7B", "10B")
#: What decides the work of a step.
WORK = (
    Setting("size", "size", "{}", choices=SIZES, lists="--sizes"),
    *DIMENSIONS,
    Setting("context_length", "context", "context {}", "", 1, help="tokens in a sequence", lists="--contexts"),
    Setting("batch_size", "batch", "batch {}", "b{}", 1, help="sequences in a batch", lists="--batch-sizes"),
    Setting("mode", "mode", "{}", choices=("forward", "forward-backward", "train"), lists="--modes"),
    Setting("dtype", "dtype", "{}", choices=("fp32", "tf32", "bf16", "fp16"), lists="--dtypes"),
    Setting("attention", "attention", "{} attention", "{}", choices=("reference", "sdpa")),
    Setting("compile", "compile", "", "{}", None, (False, True, "reduce-overhead"), "on, off, reduce-overhead"),
    Setting("optimizer", "optimizer", "{} optimizer", "{}", None, ("reference", "forloop", "foreach", "fused")),
)
#: How it is measured.
MEASURING = (
    Setting("seed", "seed", "", "seed{}", 0, help="of weights and tokens"),
    Setting("warmup", "warm-up", "", "w{}", 0, help="steps before measuring"),
    Setting("steps", "steps", "", "n{}", 1, help="measured steps"),
)
# fmt: on
DEVICE = Setting("device", "device", help="cuda, cuda:1, cpu")
SETTINGS = {setting.name: setting for setting in (*WORK, *MEASURING, DEVICE)}
CHOICES = {name: setting.choices for name, setting in SETTINGS.items() if setting.choices}


def in_order(*first: str) -> list[Setting]:
    """Return all settings, some of them first."""
    return [SETTINGS[name] for name in dict.fromkeys((*first, *SETTINGS))]
