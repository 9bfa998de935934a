import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.training import Training  # 1

steps, workers = int(sys.argv[1]), int(sys.argv[2])
training = Training.from_environment()  # 2
torch.manual_seed(0)
data = TensorDataset(torch.randn(600, 16))
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
loader = training.loader(loader, seed=0)  # 3
state = {"model": model, "optimizer": optimizer, "loader": loader}  # 4
for step in training.steps(steps, state, every=50):  # 5
    for _ in range(4):  # gradient accumulation
        (x,) = next(loader)
        loss = (model(x) - x).square().mean()
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
