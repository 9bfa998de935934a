import csv
import os

import numpy as np

DATA = "data"
CHECKPOINT = "checkpoints/last.npz"

with open(os.path.join(DATA, "houses.csv")) as f:
    rows = list(csv.DictReader(f))
columns = ["area", "rooms", "age", "distance"]
x = np.array([[float(row[column]) for column in columns] for row in rows])
y = np.array([float(row["price"]) for row in rows])
x = (x - x.mean(axis=0)) / x.std(axis=0)
mean, std = y.mean(), y.std()
y = (y - mean) / std
print(f"{len(rows)} houses")

rng = np.random.default_rng(0)
w1, w2, step = rng.normal(size=(4, 100)), np.zeros(100), 0
if os.path.exists(CHECKPOINT):
    with np.load(CHECKPOINT) as saved:
        w1, w2, step = saved["w1"], saved["w2"], int(saved["step"])
    print(f"continuing at step {step}")

os.makedirs("checkpoints", exist_ok=True)
while step < 30000:
    step += 1
    batch = np.random.default_rng(step).integers(0, len(x), 32)
    hidden = np.tanh(x[batch] @ w1)
    error = hidden @ w2 - y[batch]
    w1 = w1 - 0.01 * x[batch].T @ (np.outer(error, w2) * (1 - hidden**2)) / 32
    w2 = w2 - 0.01 * hidden.T @ error / 32
    if step % 500 == 0:
        off = np.abs((np.tanh(x @ w1) @ w2 - y) * std).mean()
        print(f"step {step}: off by {off:.0f} on average")
        np.savez(CHECKPOINT, w1=w1, w2=w2, step=step)

with open("predictions.csv", "w") as f:
    writer = csv.writer(f)
    writer.writerow(["price", "predicted"])
    writer.writerows(zip(y * std + mean, np.tanh(x @ w1) @ w2 * std + mean))
