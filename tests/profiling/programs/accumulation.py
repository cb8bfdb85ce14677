"""Gradient accumulation over four small batches, in bf16, with batches from two worker processes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Rows and the sum of each."""

    def __len__(self):
        return 96

    def __getitem__(self, place):
        row = torch.full((32,), float(place % 7))
        return row, row.sum(dim=0, keepdim=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for place, (rows, sums) in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=2)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(rows).float(), sums) / 4
        loss.backward()
        if place % 4 == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
