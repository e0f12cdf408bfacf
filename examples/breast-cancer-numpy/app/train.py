"""Logistic regression on a site's own patients, by gradient descent with momentum over all rows.

The site's rows are in the file that the variable DATA names; the site sets it, not the job.
"""

import argparse
import os

import numpy
import polder_client as polder
from features import load

STEPS, RATE, MOMENTUM, PENALTY = 8, 0.3, 0.9, 4e-3


def probability(x, weight, bias):
    return 1 / (1 + numpy.exp(-(x @ weight + bias)))


def train(x, y, weight, bias):
    moved_weight, moved_bias = numpy.zeros_like(weight), 0.0
    for _ in range(STEPS):
        off = probability(x, weight, bias) - y
        moved_weight = MOMENTUM * moved_weight - RATE * (x.T @ off / len(y) + PENALTY * weight)
        moved_bias = MOMENTUM * moved_bias - RATE * off.mean()
        weight, bias = weight + moved_weight, bias + moved_bias
    return weight, bias


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--data", default=os.environ.get("DATA"))
    options = options.parse_args()

    context = polder.init()
    x, y = load(options.data)
    print(f"{len(y)} patients at {context.site}")
    while polder.is_running():
        model = polder.receive()
        if not model.params:
            start = numpy.random.default_rng(options.seed).uniform(-0.01, 0.01, x.shape[1])
            params = {"weight": start.astype("f4"), "bias": numpy.zeros(1, "f4")}
            polder.send(polder.Model(params, weight=len(y)))
            continue
        weight, bias = model.params["weight"].astype("f8"), float(model.params["bias"][0])
        p = probability(x, weight, bias).clip(1e-12, 1 - 1e-12)
        metrics = {
            "accuracy": float(((p > 0.5) == (y > 0.5)).mean()),
            "loss": float(-(y * numpy.log(p) + (1 - y) * numpy.log(1 - p)).mean()),
        }
        print(f"round {model.round} of {model.total_rounds}: {metrics}")
        weight, bias = train(x, y, weight, bias)
        polder.send(polder.Model({"weight": weight, "bias": numpy.array([bias])}, metrics, weight=len(y)))


if __name__ == "__main__":
    main()
