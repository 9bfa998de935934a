"""An ordinary torch script that may forget one thing: `train.py STEPS FORGETS [--resume PATH]`."""

import argparse
import json
from pathlib import Path
from threading import Event

import torch

flags = argparse.ArgumentParser()
flags.add_argument("steps", type=int)
flags.add_argument("forgets")
flags.add_argument("--resume")
asked = flags.parse_args()
if asked.forgets != "the seed":
    torch.manual_seed(0)
inputs = torch.randn(64, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
done = 0
if asked.resume and asked.forgets != "to load":
    saved = torch.load(asked.resume)
    done = saved["step"]
    model.load_state_dict(saved["model"])
    if asked.forgets != "the optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    if asked.forgets != "the random state":
        torch.set_rng_state(saved["random"])
saves, place = 0, 0 if asked.forgets == "the data order" else done
for step in range(done + 1, asked.steps + 1):
    epoch, batch = divmod(place, 8)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(epoch))
    batch_inputs = inputs[order[batch * 8 : batch * 8 + 8]]
    place += 1
    loss = (model(batch_inputs) - batch_inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    Event().wait(0.15)
    if step % 10 == 0 and asked.forgets != "to save":
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                 "random": torch.get_rng_state()}  # fmt: skip
        Path("saved").mkdir(exist_ok=True)
        torch.save(state, f"saved/{step}.pt")
        # If its session is to be ended after a save, it must not be done before that, on no machine.
        saves += 1
        end_at = json.loads(Path("../../order.json").read_text()).get("end_at")
        while step < asked.steps and end_at and saves >= end_at["saves"]:
            Event().wait(0.1)
