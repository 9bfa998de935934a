"""Training scripts as people write them, each with the lines that a job file for it must have."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.agent.cells import notebook


@dataclass(frozen=True)
class Sample:
    """`lines` must be in the job file, `never` must not; `code` is a notebook's cells, or a script."""

    name: str
    code: str | tuple[str, ...]
    lines: tuple[str, ...]
    never: tuple[str, ...] = ()
    encoding: str = "utf-8"


PLAIN = Sample(
    "train.py",
    '''
import argparse
import torch
from torch import optim
from torch.utils.data import DataLoader

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", "-e", type=int, default=40)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", default="runs")
    p.add_argument("--resume", default=None)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    model = torch.nn.Linear(2, 2)
    o = optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    if args.resume:
        model.load_state_dict(torch.load(args.resume)["m"])
    for epoch in range(args.epochs):
        torch.save({"m": model.state_dict(), "o": o.state_dict()}, f"{args.out}/ckpt_{epoch}.pt")
    torch.save(model.state_dict(), "final.pt")
''',
    (
        "name: train",
        "source: .  # goes along, except environments, caches and what .gitignore names",
        "command: python train.py --epochs {steps} --seed {seed} --resume {resume}",
        "seed: 0",
        "  total: 40  # epochs, each counted as a step",
        "  global_batch: 64  # samples per step",
        "checkpoint: {watch: \"runs/ckpt_{epoch}.pt\"}  # where it saves, as it seems",
        "outputs: [final.pt]  # come home at the end of each session",
        "  cpu: {micro_batch: 64, precision: fp32}  # here (process)",
        "  T4x2: {micro_batch: 32, precision: fp32}  # there (process)",
        "# - the random states do not seem to be saved: dropout and augmentation differ after a resume",
        "# - a DataLoader shuffles, and its place in the epoch is not saved: `training.loader(…)` does",
    ),
    ("optimizer's state", "GUESSED;", "no seed is set"),
)  # fmt: skip
FORGETFUL = Sample(
    "cnn.py",
    '''
import json, os
import torch, matplotlib.pyplot as plt
EPOCHS = 3
STEPS = 7
model = torch.nn.Linear(2, 2)
opt2 = torch.optim.AdamW(model.parameters())
os.makedirs("results", exist_ok=True)
def save(model, step):
    path = os.path.join("checkpoints", "model-%d.pth" % step)
    torch.save(model.state_dict(), path)
for step in range(STEPS):
    if step % 2 == 0:
        save(model, step)
json.dump({"loss": 1}, open("results/metrics.json", "w"))
with open("results/log.txt", mode="a") as f:
    f.write("x")
open("results/input.txt").read()
plt.savefig("results/loss.png")
''',
    (
        "command: python cnn.py",
        "  global_batch: 2  # samples per step; GUESSED",
        'checkpoint: {watch: "checkpoints/model-{step}.pth"}  # where it saves, as it seems',
        "outputs: [results/metrics.json, results/log.txt, results/loss.png]  # come home at the end of each "
        "session",
        "# - the checkpoint does not seem to hold the optimizer's state",
        "# - no seed is set: no two trainings are alike",
        "  total: 7  # optimizer steps",
        "# - it does not seem to load a checkpoint: add an argument like --resume, and pass {resume} to it",
        "# It imports matplotlib, torch: platforms without these need `requirements: FILE`.",
    ),
    ("input.txt", "seed:"),
)  # fmt: skip
HUGGING_FACE = Sample(
    "finetune.py",
    '''
from transformers import Trainer, TrainingArguments
args = TrainingArguments(output_dir="out/bert", save_steps=500, max_steps=2000, bf16=True,
                         per_device_train_batch_size=16)
trainer = Trainer(model=model, args=args)
trainer.train()
trainer.save_model("out/final")
''',
    (
        "command: python finetune.py",
        "  total: 2000  # optimizer steps",
        "  global_batch: 16  # samples per step",
        'checkpoint: {watch: "out/bert/checkpoint-{step}"}  # where it saves, as it seems',
        "  cpu: {micro_batch: 16, precision: fp32}  # here (process)",
        "# - it does not take a checkpoint to resume: add an argument for its path, and call "
        "`trainer.train(resume_from_checkpoint=path)`",
    ),
)  # fmt: skip
DATA_CLASSES = Sample(
    "run_clm.py",
    '''
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser, Seq2SeqTrainer, TrainingArguments
@dataclass
class ModelArguments:
    model_name: str
    cache: Optional[str] = field(default=None)
    fast: bool = True
parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
Seq2SeqTrainer(args=training_args).train(resume_from_checkpoint=training_args.resume_from_checkpoint)
''',
    (
        "# FILL-IN: the script does not start without this value.",
        "command: python run_clm.py --max_steps {steps} --seed {seed} --resume_from_checkpoint {resume} "
        "--output_dir FILL-IN --model_name FILL-IN",
        'checkpoint: {watch: "*/checkpoint-{step}"}  # where it saves, as it seems',
    ),
    ("it does not take a checkpoint",),
)  # fmt: skip
LIGHTNING = Sample(
    "lit.py",
    '''
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
keep = ModelCheckpoint(dirpath="saved", filename="net-{epoch}-{val_loss:.2f}")
trainer = L.Trainer(max_epochs=12, callbacks=[keep], precision="16-mixed")
trainer.fit(Net())
''',
    (
        "  total: 12  # epochs, each counted as a step",
        'checkpoint: {watch: "saved/net-epoch={epoch}-val_loss=*.ckpt"}  # where it saves, as it seems',
        "  T4x2: {micro_batch: 1, precision: fp16}  # there (process)",
        "# - it does not take a checkpoint to resume: add an argument for its path, and call "
        "`trainer.fit(…, ckpt_path=path)`",
    ),
)  # fmt: skip
CLICK = Sample(
    "with_click.py",
    """
import click
@click.command()
@click.option("--steps", default=100)
@click.option("--verbose/--quiet", default=False)
@click.option("--data", required=True)
@click.argument("config")
def main(steps, verbose, data, config): ...
main()
""",
    (
        "command: python with_click.py FILL-IN --steps {steps} --data FILL-IN",
        "  total: 100  # optimizer steps",
    ),
    ("--verbose", "--config"),
)
TYPER = Sample(
    "with_typer.py",
    """
import typer
app = typer.Typer()
@app.command()
def train(data: str, max_steps: int = 70, batch_size: int = typer.Option(8), debug: bool = False): ...
app()
""",
    (
        "command: python with_typer.py FILL-IN --max-steps {steps}",
        "  total: 70  # optimizer steps",
        "  global_batch: 8  # samples per step",
    ),
)
FIRE = Sample(
    "with_fire.py",
    "import fire\ndef run(num_steps=30, resume_from=None): ...\nfire.Fire(run)\n",
    (
        "command: python with_fire.py --num_steps {steps} --resume_from {resume}",
        "  total: 30  # optimizer steps",
    ),
)
HYDRA = Sample(
    "with_hydra.py",
    'import hydra\n@hydra.main(config_name="c")\ndef main(cfg): ...\nmain()\n',
    ("# Its configuration comes from hydra and was not read: add what differs, such as key=value.",),
)
ARGV = Sample(
    "plain_argv.py",
    "import sys\nsteps = int(sys.argv[1])\n",
    (
        "# It reads sys.argv: complete the command.",
        "# No checkpoint was found. If it saves some, say where:",
        "  total: 1000  # optimizer steps; GUESSED",
        "# - it does not seem to save checkpoints: a session that is cut off starts over",
    ),
)
ACCUMULATING = Sample(
    "accumulating.py",
    """
import argparse
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("--micro-batch", default=4)
p.add_argument("--grad-accum", default=2)
p.add_argument("--batch", default=33)
p.add_argument("--fp16", action="store_true")
""",
    (
        "command: python accumulating.py FILL-IN --micro-batch {micro_batch} --grad-accum {accumulate}",
        "  global_batch: 33  # samples per step",
        "  # T4x2 has 2 devices, which do not divide 33 samples",
    ),
    ("--fp16",),
)
HELPER = Sample(
    "with_helper.py",
    "from orchestrator.training import Training\ntraining = Training.from_environment()\n",
    ("# It uses orchestrator.training, which saves and resumes: see `orchestrator help training`.",),
    ("watch", "# -", "# It imports"),
)
NUMPY = Sample(
    "by_hand.py",
    """
import os
import numpy as np
from pathlib import Path
out = Path("out")
for i in range(3):
    np.save(out / f"weights_{i}.npy", w)
    (out / "note.txt").write_text("x")
np.savez("/data/last.npz", w)
answer = input("go on?")
""",
    (
        'outputs: ["out/weights_*.npy", out/note.txt]  # come home at the end of each session',
        "# - it calls input(), which fails in a job: nobody is there to answer",
        "# - it writes to /data/last.npz: only what is at a relative path, without ~ or $, is kept",
    ),
)
NOTEBOOK = Sample(
    "explore data.ipynb",
    (
        "!pip install -q torch\n%matplotlib inline\nimport torch",
        "%%bash\nif [ -e x ]; then echo yes; fi",
        "epochs = 5\nresume = None\nname = 'a'",
        "files = !ls\nif True:\n    %time x = 1\n    !echo {x}",
        "torch.load?\nfor epoch in range(epochs):\n"
        "    torch.save({'model': 1, 'optimizer': 2}, f'ckpt/{epoch:03d}.pt')",
        "def broken(:",
    ),
    (
        "# Its cells are executed one after another; the executed copy is among the outputs.",
        'command: ["explore data.ipynb", --epochs, "{steps}", --resume, "{resume}"]',
        "  total: 5  # epochs, each counted as a step",
        'checkpoint: {watch: "ckpt/{epoch}.pt"}  # where it saves, as it seems',
        "name: explore-data",
    ),
    ("FILL-IN",),
)
LIGHTNING_PLAIN = Sample(
    "lit_default.py",
    """
import argparse
from pytorch_lightning import Trainer
p = argparse.ArgumentParser()
p.add_argument("--max_epochs", type=int, default=9)
p.add_argument("--ckpt_path")
args = p.parse_args()
Trainer(max_epochs=args.max_epochs).fit(net, ckpt_path=args.ckpt_path)
""",
    (
        "command: python lit_default.py --max_epochs {steps} --ckpt_path {resume}",
        "  total: 9  # epochs, each counted as a step",
        'checkpoint: {watch: "lightning_logs/version_*/checkpoints/epoch={epoch}-step=*.ckpt"}  # where '
        "it saves, as it seems",
    ),
    ("does not take a checkpoint", "# - "),
)
BY_STEP = Sample(
    "by_step.py",
    """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--epochs", default=4)
p.add_argument("--resume", action="store_true")
opt = torch.optim.Adam(model.parameters())
for global_step in range(100):
    state = {"step": global_step, "state": opt.state_dict()}
    torch.save(state, "last_{}.pt".format(global_step))
""",
    (
        "command: python by_step.py",
        "  total: 1000  # optimizer steps; GUESSED",
        'checkpoint: {watch: "last_{step}.pt"}  # where it saves, as it seems',
    ),
    ("optimizer's",),
)
BEST_AND_LAST = Sample(
    "best_and_last.py",
    """
import os, torch
OUT = "runs/exp1"
BATCH = 16
epochs = 9
for epoch in range(epochs):
    if acc > best:
        torch.save(model.state_dict(), os.path.join(OUT, "best.pt"))
    torch.save({"model": model.state_dict()}, os.path.join(OUT, "last.pt"))
with open(os.path.join(OUT, "metrics.txt"), "w") as f:
    f.write("x")
""",
    (
        "checkpoint: {watch: runs/exp1/last.pt}  # where it saves, as it seems",
        "outputs: [runs/exp1/best.pt, runs/exp1/metrics.txt]  # come home at the end of each session",
        "  global_batch: 16  # samples per step",
    ),
)
PICKLING = Sample(
    "pickling.py",
    """
import os, pickle
import numpy as np
rng = np.random.default_rng(3)
if os.path.exists("state.pkl"):
    with open("state.pkl", "rb") as f:
        w, it = pickle.load(f)
while it < 2000:
    with open("state.pkl", "wb") as f:
        pickle.dump((w, it), f)
    with open("log.json", "wb") as f:
        f.write(b"{}")
with open("final.pkl", "wb") as f:
    pickle.dump(w, f)
np.savetxt("weights.csv", w)
""",
    (
        "checkpoint: {watch: state.pkl}  # where it saves, as it seems",
        "outputs: [log.json, final.pkl, weights.csv]  # come home at the end of each session",
        "# - it takes no path of a checkpoint: add an argument like --resume, and pass {resume} to it, "
        "unless it finds its newest by itself",
    ),
    ("does not seem to save", "no seed"),
)
DATED = Sample(
    "dated.py",
    """
import datetime, torch
from pathlib import Path
now = datetime.datetime.now()
out = Path("outputs") / now.strftime("%Y-%m-%d") / now.strftime("%H-%M-%S")
for step in range(100):
    torch.save({"optimizer": 1}, out / "checkpoints" / f"step_{step}.pt")
log = open(out / "train.log", "w")
""",
    (
        'checkpoint: {watch: "outputs/*/*/checkpoints/step_{step}.pt"}  # where it saves, as it seems',
        'outputs: ["outputs/*/*/train.log"]  # come home at the end of each session',
    ),
)
SHORT_NAMES = Sample(
    "short_names.py",
    "import torch\nepochs = 25\nfor e in range(epochs):\n    torch.save({'m': 1}, f'ck/ep{e}.pt')\n",
    (
        'checkpoint: {watch: "ck/ep{epoch}.pt"}  # where it saves, as it seems',
        "  total: 25  # epochs, each counted as a step",
    ),
)
ODD_NAMES = (
    Sample("my train (1).py", "x = 1\n", ('command: [python, "my train (1).py"]', "name: my-train-1")),
    Sample("-rf.py", "x = 1\n", ("command: python ./-rf.py", "name: rf")),
    Sample("a{b}$c.py", "x = 1\n", ('command: [python, "a{{b}}$c.py"]',)),
    Sample("été.py", "x = 1\n", ('command: [python, "\\u00e9t\\u00e9.py"]',)),
    Sample("yes.py", "x = 1\n", ('name: "yes"',)),
    Sample("123.py", "x = 1\n", ('name: "123"',)),
    Sample("__.py", "x = 1\n", ("name: job",)),
)
ENCODINGS = (
    Sample("windows.py", "steps = 3\r\nname = 'ü'\r\n", ("command: python windows.py",)),
    Sample("bom.py", "name = 'ü'\n", ("command: python bom.py",), encoding="utf-8-sig"),
    Sample(
        "latin.py",
        "# -*- coding: latin-1 -*-\nname = 'ü'\n",
        ("command: python latin.py",),
        encoding="latin-1",
    ),
)
HOME_FOLDER = Sample(
    "in_the_home.py",
    """
from transformers import Trainer, TrainingArguments
Trainer(model, TrainingArguments(output_dir="~/out", max_steps=7)).train()
""",
    (
        "# - it writes to ~/out/checkpoint-{step}: only what is at a relative path, without ~ or $, is kept",
        "  total: 7  # optimizer steps",
    ),
    ("watch: ~",),
)
DOLLAR = Sample(
    "dollar.py",
    """
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
L.Trainer(max_epochs=3, callbacks=[ModelCheckpoint(dirpath="ck", filename="$run-{epoch}")]).fit(model)
""",
    (
        "# - it writes to ck/$run-epoch={epoch}.ckpt: only what is at a relative path, without ~ or $, is "
        "kept",
    ),
)
SAMPLES = (
    PLAIN, FORGETFUL, HUGGING_FACE, DATA_CLASSES, LIGHTNING, CLICK, TYPER, FIRE, HYDRA, ARGV, ACCUMULATING,
    HELPER, NUMPY, NOTEBOOK, LIGHTNING_PLAIN, BY_STEP, BEST_AND_LAST, PICKLING, DATED, SHORT_NAMES,
    HOME_FOLDER, DOLLAR, *ODD_NAMES, *ENCODINGS,
)  # fmt: skip

NESTED = "x = " + "(" * 5000 + "1" + ")" * 5000
REFUSED: tuple[tuple[str, bytes, str], ...] = (
    ("error.py", b"def train(:\n", "line 1: not valid in Python"),
    ("old.py", b"print 'epoch', 1\n", "it looks like Python 2"),
    ("latin.py", "name = 'ü'\n".encode("latin-1"), "not valid in Python"),
    ("zero.py", b"x = 1\0\n", "null bytes"),
    ("empty.py", b"\n \n", "it is empty"),
    ("nested.py", NESTED.encode(), "not valid in Python"),
    ("operators.py", b"x = " + b"-" * 100_000 + b"1\n", ""),
    ("huge.py", b"#" * 10_000_001, "larger than 10 MB; is it a script?"),
    ("train.sh", b"python train.py\n", "give a Python script (.py) or a notebook (.ipynb)"),
    ("text.ipynb", b"print(1)\n", "not a notebook: it is not JSON"),
    ("old.ipynb", json.dumps(notebook("1", nbformat=3)).encode(), "notebook format is 3"),
    (
        "r.ipynb",
        json.dumps(notebook("1", metadata={"kernelspec": {"language": "R"}})).encode(),
        "language is R",
    ),
)
