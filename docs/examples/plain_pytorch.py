import os
import signal
import sys
from pathlib import Path

import torch

given, total, signals = os.environ, int(sys.argv[1]), []
signal.signal(signal.SIGTERM, lambda *_: signals.append("stop"))
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
start, request, answered = 0, Path(given.get("ORCHESTRATOR_SAVE_REQUEST", "save-request")), "0"
if resume := given.get("ORCHESTRATOR_RESUME_FROM"):
    start, states = torch.load(Path(resume) / "state.pt")
    _ = [part.load_state_dict(states[name]) for name, part in parts.items()]
for step in range(start + 1, total + 1):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))  # data: a function of the step
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    parts["optimizer"].step(), parts["optimizer"].zero_grad()
    asked = request.read_text().strip() if request.exists() else answered
    if signals or asked != answered or step == total:
        target = Path(given["ORCHESTRATOR_CHECKPOINT_DIR"]) / f"step-{step}"
        (building := target.with_name(f".tmp-{target.name}")).mkdir(parents=True, exist_ok=True)
        torch.save((step, {name: part.state_dict() for name, part in parts.items()}), building / "state.pt")
        building.rename(target)
        answered = asked
    if signals and step < total:
        sys.exit(75)
