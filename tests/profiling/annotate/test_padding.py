"""How much of the batches is padding that no sample needs: columns at an end that hold one number in all rows."""

import pytest
import torch
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling.annotate import annotate_modules, padding
from nvtx_kernels.profiling.recorder import record
from torch import nn

from nvtx_kernels import profile

ROWS, POSITIONS, WORDS, PAD, IGNORED = 4, 64, 50, 3, -100
WARMUP, STEPS = 2, 3


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS)

    def forward(self, input_ids, attention_mask=None, labels=None, **_others):
        return self.head(self.embedding(input_ids))


def tokens(positions=POSITIONS):
    return torch.randint(4, WORDS, (ROWS, positions))


def padded(*lengths, pad=PAD, left=False):
    """Return tokens of such lengths, padded to the fixed number of positions."""
    ids = tokens()
    for row, length in zip(ids, lengths, strict=True):
        if left:
            row[: POSITIONS - length] = pad
        else:
            row[length:] = pad
    return ids


def of_ids(ids):
    return {"input_ids": ids}


def with_mask(ids):
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "token_type_ids": torch.zeros_like(ids)}


def with_labels(ids):
    return {**with_mask(ids), "labels": torch.where(ids == PAD, IGNORED, ids)}


def of_prompts(ids):
    """Return a batch in which all of a sample is padded, as its labels are, but for few positions at the end."""
    labels = torch.where(torch.arange(POSITIONS) < POSITIONS - 2, IGNORED, ids)
    return {"input_ids": ids, "labels": labels}


ONE_SHORT = padded(20, 10, 15, 5)
CASES = {
    "tokens": (of_ids(ONE_SHORT), 20),
    "tokens and a mask": (with_mask(ONE_SHORT), 20),
    "tokens, a mask and labels": (with_labels(ONE_SHORT), 20),
    "padding at the begin": (with_labels(padded(30, 7, 9, 2, left=True)), 30),
    "padding of zeros": (of_ids(padded(20, 10, 15, 5, pad=0)), 20),
    "the longest sample fills the batch": (with_labels(padded(POSITIONS, 10, 15, 5)), None),
    "no padding": (with_mask(tokens()), None),
    "labels of the last positions alone": (of_prompts(tokens()), None),
    "a mask without tokens": ({"input_ids": torch.ones(ROWS, POSITIONS).tril().long()}, None),
    "few positions": (of_ids(padded(20, 10, 15, 5)[:, :30]), None),
    "one number all over": (of_ids(torch.full((ROWS, POSITIONS), PAD)), None),
    "numbers of 4 bytes": (of_ids(ONE_SHORT.int()), 20),
    "numbers of 1 byte": (of_ids(ONE_SHORT.byte()), None),
    "pictures": (of_ids(ONE_SHORT[:, :, None].repeat(1, 1, 2)), None),
}


def used(*arguments):
    padding.listen()
    for given in arguments:
        padding.hear(((), given))
    return padding.padding().get("used_positions")


@pytest.mark.parametrize("case", CASES)
def test_positions_at_an_end_that_all_rows_pad_are_not_used(case):
    arguments, expected = CASES[case]
    assert used(arguments) == expected


def test_it_is_a_mean_of_calls():
    assert used(of_ids(ONE_SHORT), of_ids(tokens())) == (20 + POSITIONS) / 2


def test_arguments_by_position_and_in_containers_are_looked_into():
    for arguments in ((ONE_SHORT,), ([ONE_SHORT, None],), ({"text": {"ids": ONE_SHORT}},)):
        padding.listen()
        padding.hear((arguments, {}))
        assert padding.padding() == {"positions": POSITIONS, "used_positions": 20}


def test_batches_are_held_while_it_listens_alone():
    padding.hear(((ONE_SHORT,), {}))
    assert padding.padding() == {}


class Subclass(torch.Tensor):
    pass


def test_tensors_of_a_class_of_their_own_are_let_alone():
    assert used(of_ids(ONE_SHORT.as_subclass(Subclass))) is None


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(**with_labels(ONE_SHORT)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_run_has_it(tmp_path):
    model = Tagger()
    with profile(model, path=tmp_path / "report.sqlite", warmup=WARMUP, steps=STEPS):
        train(model, WARMUP + STEPS + 1)
    run = read(tmp_path / "report.sqlite").provenance.run
    assert (run["positions"], run["used_positions"]) == (POSITIONS, 20)


def test_a_plain_recording_of_annotated_models_has_it(tmp_path):
    model = Tagger()
    with (
        annotate_modules(model),
        record(tmp_path / "report.sqlite", warmup=1, steps=STEPS, quiet=True),
    ):
        train(model, STEPS + 2)
    assert read(tmp_path / "report.sqlite").provenance.run["used_positions"] == 20
