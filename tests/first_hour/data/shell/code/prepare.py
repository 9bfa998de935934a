"""Writes data.npz: points of two spirals, split into training and test."""
import numpy as np

rng = np.random.default_rng(0)
n = 4000
label = rng.integers(0, 2, n)
angle = rng.uniform(0.5, 9, n)
turn = angle + np.pi * label
points = np.stack([angle * np.cos(turn), angle * np.sin(turn)], axis=1) / 9
points += rng.normal(0, 0.02, points.shape)
np.savez("data.npz", x_train=points[:3200], y_train=label[:3200], x_test=points[3200:], y_test=label[3200:])
print("wrote data.npz")
