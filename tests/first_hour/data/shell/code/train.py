import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=300)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--resume", metavar="FILE")
args = parser.parse_args()

data = np.load("data.npz")
x, y = data["x_train"], data["y_train"]

rng = np.random.default_rng(1)
params = {
    "w1": rng.normal(0, 2, (2, args.hidden)),
    "b1": rng.normal(0, 1, args.hidden),
    "w2": rng.normal(0, 0.1, (args.hidden, args.hidden)),
    "b2": np.zeros(args.hidden),
    "w3": np.zeros(args.hidden),
    "b3": np.zeros(()),
}
epoch = 0
if args.resume:
    saved = dict(np.load(args.resume))
    epoch = int(saved.pop("epoch"))
    params = saved
    print(f"resuming after epoch {epoch}")


def forward(x):
    h1 = np.tanh(x @ params["w1"] + params["b1"])
    h2 = np.tanh(h1 @ params["w2"] + params["b2"])
    return h1, h2, 1 / (1 + np.exp(-(h2 @ params["w3"] + params["b3"])))


while epoch < args.epochs:
    epoch += 1
    order = np.random.default_rng(epoch).permutation(len(x))
    for batch in np.split(order, 100):
        h1, h2, p = forward(x[batch])
        d3 = (p - y[batch]) / len(batch)
        d2 = np.outer(d3, params["w3"]) * (1 - h2**2)
        d1 = d2 @ params["w2"].T * (1 - h1**2)
        params["w3"] = params["w3"] - args.lr * h2.T @ d3
        params["b3"] = params["b3"] - args.lr * d3.sum()
        params["w2"] = params["w2"] - args.lr * h1.T @ d2
        params["b2"] = params["b2"] - args.lr * d2.sum(0)
        params["w1"] = params["w1"] - args.lr * x[batch].T @ d1
        params["b1"] = params["b1"] - args.lr * d1.sum(0)
    accuracy = ((forward(data["x_test"])[2] > 0.5) == data["y_test"]).mean()
    print(f"epoch {epoch}: test accuracy {accuracy:.3f}")
    np.savez("last.npz", epoch=epoch, **params)
