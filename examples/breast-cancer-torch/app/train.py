"""A small network in PyTorch on a site's own patients.

The site's rows are in the file that the variable DATA names; the site sets it, not the job.
"""

import argparse
import os

import polder_client as polder
import torch
from features import load

STEPS, RATE, PENALTY = 8, 0.05, 4e-3


def network():
    return torch.nn.Sequential(torch.nn.Linear(30, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--data", default=os.environ.get("DATA"))
    options = options.parse_args()

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    context = polder.init("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.tensor(part, dtype=torch.float32, device=device) for part in load(options.data))
    print(f"{len(y)} patients at {context.site}, on {device}")
    net = network().to(device)
    loss_of = torch.nn.BCEWithLogitsLoss()
    while polder.is_running():
        model = polder.receive()
        if not model.params:
            polder.send(polder.Model(net.state_dict(), weight=len(y)))
            continue
        net.load_state_dict(model.params)
        with torch.no_grad():
            out = net(x).squeeze(1)
            metrics = {
                "accuracy": ((out > 0) == (y > 0.5)).float().mean().item(),
                "loss": loss_of(out, y).item(),
            }
        print(f"round {model.round} of {model.total_rounds}: {metrics}")
        optimiser = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=PENALTY)
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss_of(net(x).squeeze(1), y).backward()
            optimiser.step()
        polder.send(polder.Model(net.state_dict(), metrics, weight=len(y)))


if __name__ == "__main__":
    main()
