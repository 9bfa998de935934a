import json
import os
import signal
import sys
from pathlib import Path

import torch

folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])  # 1
stop: list[int] = []  # 2
signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))  # 3
total = int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
done = 0  # 4
if resume := os.environ.get("ORCHESTRATOR_RESUME_FROM"):  # 5
    done, weights, moments = torch.load(f"{resume}/state.pt")  # 6
    model.load_state_dict(weights)  # 7
    optimizer.load_state_dict(moments)  # 8
for step in range(done + 1, total + 1):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))  # data: a function of the step
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0 and (progress := os.environ.get("ORCHESTRATOR_PROGRESS")):  # a
        with Path(progress).open("a") as file:  # b
            file.write(json.dumps({"step": step, "metrics": {"loss": loss.item()}}) + "\n")  # c
    if stop or step % 500 == 0 or step == total:  # 9
        building = folder / f".tmp-step-{step}"  # 10
        building.mkdir(parents=True, exist_ok=True)  # 11
        torch.save((step, model.state_dict(), optimizer.state_dict()), building / "state.pt")  # 12
        building.rename(folder / f"step-{step}")  # 13
    if stop and step < total:  # 14
        sys.exit(75)  # 15
