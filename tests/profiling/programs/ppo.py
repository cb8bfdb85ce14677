"""PPO: rollouts without gradients, then several epochs of updates on them."""

import torch
from torch import nn


class Policy(nn.Module):
    """A body with two heads: what to do, and what that is worth."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.action, self.value = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, states):
        hidden = self.body(states)
        return torch.distributions.Categorical(logits=self.action(hidden)), self.value(hidden).squeeze(-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for _ in range(2):
        policy.eval()
        states, actions, chances, worth = [torch.zeros(4, 4)], [], [], []
        with torch.no_grad():
            for _ in range(6):
                choices, values = policy(states[-1])
                actions.append(choices.sample())
                chances.append(choices.log_prob(actions[-1]))
                worth.append(values)
                states.append(states[-1] + torch.randn(4, 4))
        policy.train()
        rows, before = torch.cat(states[:-1]), torch.cat(chances)
        for _ in range(3):
            choices, values = policy(rows)
            ratio = (choices.log_prob(torch.cat(actions)) - before).exp()
            gain = rows.sum(dim=1) - torch.cat(worth)
            clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            loss = (values - rows.sum(dim=1)).square().mean() - clipped.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
