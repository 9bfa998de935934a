"""Which ridge penalty is best? Ten-fold cross-validation on a made-up data set."""
import csv
import os
import pickle

import numpy as np

rng = np.random.default_rng(3)
x = rng.normal(size=(2000, 120))
y = x[:, :20].sum(axis=1) + rng.normal(0, 8, 2000)
folds = np.array_split(rng.permutation(2000), 10)


def fit(x, y, penalty):
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)


results = []
for penalty in np.logspace(-2, 4, 200):
    errors = []
    for fold in folds:
        train = np.setdiff1d(np.arange(2000), fold)
        weights = fit(x[train], y[train], penalty)
        errors.append(np.mean((x[fold] @ weights - y[fold]) ** 2))
    results.append((penalty, np.mean(errors), np.std(errors)))
    print("penalty %.4g: error %.3f" % results[-1][:2])

os.makedirs("results", exist_ok=True)
with open("results/metrics.csv", "w") as f:
    writer = csv.writer(f)
    writer.writerow(["penalty", "error", "std"])
    writer.writerows(results)
best = min(results, key=lambda row: row[1])[0]
with open("results/model.pkl", "wb") as f:
    pickle.dump({"penalty": best, "weights": fit(x, y, best)}, f)
print("best penalty:", best)
