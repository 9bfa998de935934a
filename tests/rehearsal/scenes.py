"""Trainings for the witness, which may forget one thing: `scenes.py KIND TRACE FILE [FORGETS]`.

Without FORGETS it trains from the start, and saves into FILE in the middle. With it, it resumes from FILE.
"""

import copy
import random
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.rehearsal import witness

STEPS, SAVED_AT, BATCHES = 14, 6, 4
kind, trace, file, *rest = sys.argv[1:]
forgets = rest[0] if rest else None
witness.watch(Path(trace))


def net() -> torch.nn.Module:
    layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 8)]
    return torch.nn.Sequential(*layers)


def save(step: int, parts: dict[str, Any]) -> None:
    if step == SAVED_AT and forgets is None:
        torch.save(parts, file)


def load() -> dict[str, Any]:
    return {} if forgets is None else dict(torch.load(file, weights_only=False))


def everything() -> None:
    """All that a training may have beside its weights. It validates after it has saved."""
    torch.manual_seed(0)
    random.seed(0)
    rng, order = numpy.random.default_rng(0), torch.Generator().manual_seed(0)
    model = net()
    trained = torch.compile(model, backend="eager", fullgraph=True) if kind == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    average = copy.deepcopy(model)
    data = TensorDataset(torch.randn(8 * BATCHES, 8, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, 8, shuffle=True, generator=order)
    saved = load()
    parts: dict[str, Any] = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "average": average,
    }  # fmt: skip
    step, began = saved.get("step", 0), order.get_state()
    for name, part in parts.items():
        if saved and forgets != name:
            part.load_state_dict(saved[name])
    if saved and forgets != "order":
        order.set_state(saved["order"])
    skip = step % BATCHES if forgets != "place" else 0
    restored = False
    while step < STEPS:
        began = order.get_state()
        for number, (batch,) in enumerate(loader):
            if number < skip:
                continue
            if saved and not restored:
                restore(saved, rng)
                restored = True
            noisy = batch + float(rng.normal()) * 0.01 + random.random() * 0.01
            torch.nn.MSELoss()(trained(noisy), batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(weight, 0.1)
            step += 1
            save(step, {
                "step": step, "order": began, **{name: part.state_dict() for name, part in parts.items()},
                "torch": torch.get_rng_state(), "rng": rng.bit_generator.state, "python": random.getstate(),
            })  # fmt: skip
            if step == SAVED_AT:
                validate(model, data)
            if step == STEPS:
                return
        skip = 0


def validate(model: torch.nn.Module, data: TensorDataset) -> None:
    """A loader without a generator of its own draws a seed from torch's."""
    generator = None if kind == "validates" else torch.Generator()
    model.eval()
    with torch.no_grad():
        for (batch,) in DataLoader(data, 8, generator=generator):
            model(batch)
    model.train()


def restore(saved: dict[str, Any], rng: Any) -> None:
    if forgets != "torch":
        torch.set_rng_state(saved["torch"])
    if forgets != "rng":
        rng.bit_generator.state = saved["rng"]
    if forgets != "python":
        random.setstate(saved["python"])


def adversaries() -> None:
    """Two models with an optimizer each, and gradients that are accumulated."""
    torch.manual_seed(0)
    maker, judge = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(judge.parameters(), 1e-2), torch.optim.Adam(maker.parameters(), 1e-2)]
    saved = load()
    parts: dict[str, Any] = {"maker": maker, "judge": judge, "first": optimizers[0], "second": optimizers[1]}
    for name, part in parts.items():
        if saved and forgets != name:
            part.load_state_dict(saved[name])
    for step in range(saved.get("step", 0) + 1, STEPS + 1):
        drawn = torch.Generator().manual_seed(step)
        for _ in range(2):
            (judge(maker(torch.randn(8, 4, generator=drawn)).detach()) - 1).square().mean().backward()
        optimizers[0].step()
        judge(maker(torch.randn(8, 4, generator=drawn))).mean().backward()
        optimizers[1].step()
        for each in optimizers:
            each.zero_grad()
        save(step, {"step": step, **{name: part.state_dict() for name, part in parts.items()}})


def with_closure() -> None:
    """An optimizer that calls the training several times a step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    saved = load()
    if saved:
        model.load_state_dict(saved["model"])
        if forgets != "optimizer":
            optimizer.load_state_dict(saved["optimizer"])
    for step in range(saved.get("step", 0) + 1, STEPS + 1):
        batch = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))

        def loss(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            found: torch.Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            found.backward()  # type: ignore[no-untyped-call]
            return found

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        save(step, {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})


{"adversaries": adversaries, "closure": with_closure}.get(kind, everything)()
