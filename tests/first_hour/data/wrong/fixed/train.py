import os
import sys

import numpy as np

EPOCHS = int(sys.argv[1])

rng = np.random.default_rng(0)
x = rng.normal(size=(20000, 40))
y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=20000)
x_train, y_train, x_val, y_val = x[:16000], y[:16000], x[16000:], y[16000:]

w1 = rng.normal(size=(40, 64)) * 0.2
w2 = rng.normal(size=64) * 0.1
first, lr = 1, 0.02
if len(sys.argv) > 2:
    state = np.load(sys.argv[2])
    w1, w2, lr, first = state["w1"], state["w2"], float(state["lr"]), int(state["epoch"]) + 1

os.makedirs("checkpoints", exist_ok=True)
for epoch in range(first, EPOCHS + 1):
    shuffled = np.random.default_rng(epoch).permutation(16000)
    for i in range(0, 16000, 50):
        batch = shuffled[i : i + 50]
        h = np.maximum(x_train[batch] @ w1, 0)
        error = h @ w2 - y_train[batch]
        grad_h = np.outer(error, w2) * (h > 0)
        w2 = w2 - lr * h.T @ error / 50
        w1 = w1 - lr * x_train[batch].T @ grad_h / 50
    val_loss = np.mean((np.maximum(x_val @ w1, 0) @ w2 - y_val) ** 2)
    print(f"epoch {epoch} val_loss {val_loss:.4f}")
    if epoch % 30 == 0:
        lr = lr / 2
        print(f"val_loss is {val_loss:.4f}, learning rate halved to {lr}")
    np.savez(f"checkpoints/epoch_{epoch}.npz", w1=w1, w2=w2, lr=lr, epoch=epoch)
