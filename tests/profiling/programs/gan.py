"""A GAN: two models, two optimizers, and two updates a round."""

import torch
from torch import nn


class Generator(nn.Module):
    """Noise into rows."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, noise):
        return self.body(noise)


class Discriminator(nn.Module):
    """Rows into a guess whether they are real."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, rows):
        return self.body(rows)


if __name__ == "__main__":
    torch.manual_seed(0)
    generator, discriminator = Generator(), Discriminator()
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    loss, ones, zeros = nn.BCEWithLogitsLoss(), torch.ones(8, 1), torch.zeros(8, 1)
    for _ in range(5):
        real, fake = torch.randn(8, 16), generator(torch.randn(8, 8))
        of_discriminator.zero_grad()
        (loss(discriminator(real), ones) + loss(discriminator(fake.detach()), zeros)).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        loss(discriminator(fake), ones).backward()
        of_generator.step()
