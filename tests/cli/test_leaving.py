"""What is uploaded with a job, which secrets are passed on, and what sessions see of their controller.

The user sees the list before anything is uploaded. Secrets are only passed to platforms that the config
allows. A session of `process` finds no secret of the controller in its environment or in /proc.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from tests.cli.calls import CONFIG, Caller

ROOT = Path(__file__).resolve().parents[2]
PLANTED = f"s3same-open-the-controller-{uuid.uuid4().hex[:8]}"  # another suite may run beside this one
# Looks at everything that a session may see of other processes, up to and including the controller.
SPY = f"""
import os, pathlib, sys
def seen(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
planted = {PLANTED!r}.encode()
found = [name for name, value in os.environ.items() if value.encode() == planted]
found += [str(p) for p in pathlib.Path("/proc").glob("[0-9]*/environ") if planted in seen(p)]
found += [str(p) for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if planted in seen(p)]
found += [os.readlink(f"/proc/self/fd/{{n}}") for n in os.listdir("/proc/self/fd") if int(n) > 3
          and os.path.exists(f"/proc/self/fd/{{n}}") and "/home/" in os.readlink(f"/proc/self/fd/{{n}}")]
print("FOUND", found, flush=True)
exec(open("train.py").read())
"""


def spec(user: Caller, *lines: str) -> str:
    job = user.job()
    with (user.folder / job).open("a") as stream:
        stream.write("".join(f"{line}\n" for line in lines))
    return job


def test_what_leaves_is_listed_with_sizes_before_it_does(user: Caller) -> None:
    (user.folder / "data").mkdir()
    (user.folder / "data" / "corpus.txt").write_text("x" * 5000)
    (user.folder / "requirements.txt").write_text("numpy\n")
    job = spec(
        user, "inputs: [{name: corpus, from: data}]", "requirements: requirements.txt", "env: {A: '12'}",
        "secrets: [WANDB_API_KEY]",
    )  # fmt: skip
    rows = [line.split() for line in user("submit", job, "--dry-run").out.splitlines()]
    assert ["input", "corpus", "1", "5.0", "kB", "corpus.txt", "5.0", "kB"] in rows
    assert ["requirements", "requirements.txt", "1", "6", "B"] in rows
    assert ["env", "A", "2", "B", "shown", "by", "`show`"] in rows
    assert any(row[:3] == ["source", "source", "2"] for row in rows)
    assert any(row[:2] == ["secret", "WANDB_API_KEY"] for row in rows)
    assert ["may", "go", "to", "here"] in rows
    leaves = user("plan", job, "--json").json["leaves"]
    assert leaves["secrets"] == leaves["secrets_not_set"] == ["WANDB_API_KEY"]
    assert "not set here" in user("plan", job).out
    assert user("plan", job, "--json", WANDB_API_KEY="abcd").json["leaves"]["secrets_not_set"] == []
    assert leaves["platforms"] == ["here"]
    assert {part["kind"]: part["bytes"] for part in leaves["parts"]}["input"] == 5000


def test_the_source_is_listed_with_what_stays_here_and_by_which_rule(user: Caller) -> None:
    source = user.folder / "source"
    for name in (".venv/lib/big.so", "wandb/x", "weights.bin", "old.log"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x" * (7000 if name == "weights.bin" else 1))
    (source / ".gitignore").write_text("*.log\n")
    (source / "latest").symlink_to("weights.bin")
    job = user.job()
    answer = user("submit", job, "--dry-run")
    assert answer.out.index("weights.bin  7.0 kB") < answer.out.index(".gitignore")
    assert "latest → weights.bin" in answer.out
    rows = [re.split("  +", line) for line in answer.out.splitlines()]
    assert any(row[0] == ".venv/" and row[-1] == "by default: a Python environment" for row in rows)
    assert any(row[0] == "old.log" and row[-1] == ".gitignore: *.log" for row in rows)
    given = user("submit", job, "--dry-run", "--json").json["leaves"]["source"]
    assert given["files"][0] == {"path": "weights.bin", "bytes": 7000}
    assert given["links"] == [{"path": "latest", "target": "weights.bin"}]
    assert {path: each["rule"] for each in given["left_out"] for path in each["paths"]} == {
        ".venv/": "by default: a Python environment", "wandb/": "by default: what Weights & Biases writes",
        "old.log": ".gitignore: *.log",
    }  # fmt: skip
    (user.folder / job).write_text((user.folder / job).read_text().replace("train.py", ".venv/train.py"))
    (source / ".venv" / "train.py").write_text("")
    assert "`!.venv/` into .orchestratorignore" in user("submit", job, "--dry-run").err


def test_who_gets_what_opens_the_home_store_is_listed(user: Caller) -> None:
    job = user.job()
    assert "credential" not in user("plan", job).out
    config = user.home / "config.yaml"
    given = yaml.safe_load(config.read_text())
    given["platforms"]["here"]["uplink"] = True
    config.write_text(yaml.safe_dump(given))
    assert "credential" not in user("plan", job).out, "a folder needs none"
    away = {
        "type": "s3",
        "preset": "aws",
        "region": "x",
        "bucket": "b",
        "access_key": "env:A",
        "secret_key": "env:B",
    }
    config.write_text(yaml.safe_dump(given | {"stores": {"away": away}, "home_store": "away"}))
    row = next(line for line in user("plan", job).out.splitlines() if line.startswith("credential"))
    assert row.split(maxsplit=5)[1:] == [
        "of",
        "the",
        "home",
        "store",
        "only to here, to ship checkpoints (`uplink: true`)",
    ]
    assert json.loads(user("plan", job, "--json").out)["leaves"]["opens_store"] == ["here"]


def test_what_looks_like_a_credential_leaves_with_no_part_of_a_job(user: Caller) -> None:
    (user.folder / "data").mkdir()
    (user.folder / "data" / ".env").write_text(f"KEY={PLANTED}\n")
    (user.folder / "requirements.txt").write_text(f"--index-url https://me:{PLANTED}@example.org/simple\n")
    for line, told in (
        ("inputs: [{name: corpus, from: data}]", "`allow: [.env]`"),
        ("requirements: requirements.txt", "requirements.txt:1: a login in an address"),
        (
            f"env: {{PIP_INDEX_URL: 'https://me:{PLANTED}@example.org'}}",
            "env.PIP_INDEX_URL: looks like a secret",
        ),
        ("secrets: [ORCHESTRATOR_DATABASE]", "names with ORCHESTRATOR_ are the orchestrator's own"),
    ):
        answer = user("submit", spec(user, line), code=2)
        assert told in answer.err
        assert PLANTED not in answer.out + answer.err
    job = user.folder / user.job()
    job.write_text(job.read_text().replace("train.py", f"train.py --api-key={PLANTED}-1"))
    assert "command: a word looks like a secret" in user("submit", str(job), "--dry-run", code=2).err
    assert user("ps", "--all", "--json").json == {"runs": []}


def test_a_job_has_only_the_secrets_that_the_config_lets_it_have(user: Caller) -> None:
    values = {"AWS_SECRET_ACCESS_KEY": PLANTED, "WANDB_API_KEY": PLANTED, "MINE": PLANTED}
    stranger = spec(user, "secrets: [AWS_SECRET_ACCESS_KEY]")
    told = user("submit", stranger, code=2, **values).err
    assert "looks like your own login" in told
    assert "secrets: {allow: [AWS_SECRET_ACCESS_KEY]}" in told
    assert PLANTED not in told
    user.config(f"{CONFIG}secrets: {{allow: [WANDB_*]}}\n")
    told = user("submit", spec(user, "secrets: [WANDB_API_KEY, MINE]"), code=2, **values).err
    assert "the secret MINE is not in `secrets.allow`" in told
    assert "secrets: {allow: [WANDB_*, MINE]}" in told
    user.config(f"{CONFIG}secrets: {{allow: ['a b']}}\n")
    assert "secrets.allow[0]" in user("doctor", code=2).out


def test_a_databases_password_is_in_no_answer(user: Caller) -> None:
    unencoded, unreachable = f"me:p@{PLANTED}@127.0.0.1:1", f"me:{PLANTED}@127.0.0.1:1"
    for words, login, code in (("doctor --json", unencoded, 2), ("ps", unencoded, 2), ("up", unreachable, 4)):
        answer = user(*words.split(), code=code, ORCHESTRATOR_DATABASE=f"postgresql://{login}/x")
        assert PLANTED not in answer.out + answer.err


# --- The platform process --------------------------------------------------------------------------------


def test_a_session_finds_no_credential_of_the_controller(user: Caller) -> None:
    (user.folder / "source" / "spy.py").write_text(SPY)
    controller = user.start("up", KAGGLE_KEY=PLANTED, AWS_SECRET_ACCESS_KEY=PLANTED, CONDA_TOKEN=PLANTED)
    assert controller.stdout is not None
    assert "has taken over" in controller.stdout.readline()
    job = user.folder / user.job(total=5)
    job.write_text(job.read_text().replace("train.py", "spy.py"))
    run = user.submitted(str(job))
    user.wait_for_phase(run, "done")
    assert "FOUND []" in user("logs", run).out


def test_what_a_job_lists_it_gets_from_a_controller_that_hides_it(user: Caller) -> None:
    (user.folder / "source" / "spy.py").write_text(
        f"import os\nassert os.environ['MINE'] == {PLANTED!r}\nexec(open('train.py').read())\n"
    )
    job = user.folder / spec(user, "secrets: [MINE]")
    job.write_text(job.read_text().replace("train.py", "spy.py").replace("total: 40", "total: 5"))
    run = str(user("submit", str(job), "--json", MINE=PLANTED).json["run"])
    user.wait_for_phase(run, "done")
    assert PLANTED not in user("logs", run).out


# Shows what a second process of the same user sees of a first. If we are root, both become nobody, because
# root sees everything. Dropping root makes a process unreadable, so the child makes itself readable again
# first.
LOOK = """
import ctypes, os, subprocess, sys
from orchestrator.cli import shield
def born(work):
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        work()
        os._exit(0)
    return pid
def live():
    if sys.argv[1] == "up":
        shield.up()
        assert os.environ["KEY"] == os.popen("echo $KEY").read().strip()
    os.write(ready, b"x")
    os.read(wait, 1)
def look():
    for name in ("environ", "mem", "maps"):
        try:
            print(name, os.environ["KEY"].encode() in open(f"/proc/{first}/{name}", "rb").read(1), flush=True)
        except OSError as error:
            print(name, type(error).__name__, flush=True)
        if name == "environ" and sys.argv[1] == "shown":
            print(os.environ["KEY"].encode() in open(f"/proc/{first}/environ", "rb").read(), flush=True)
(heard, ready), (wait, end) = os.pipe(), os.pipe()
first = born(live)
os.close(ready)
assert os.read(heard, 1), "it has failed"
os.waitpid(born(look), 0)
if os.geteuid() == 0:
    print("root", os.environ["KEY"].encode() in open(f"/proc/{first}/environ", "rb").read(), flush=True)
os.write(end, b"x")
os.waitpid(first, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's /proc")
def test_another_process_of_the_same_user_reads_neither_environment_nor_memory() -> None:
    def said(mode: str) -> list[str]:
        command, variables = [sys.executable, "-c", LOOK, mode], {**os.environ, "KEY": PLANTED}
        done = subprocess.run(
            command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240
        )
        return done.stdout.splitlines()

    assert "True" in said("shown"), "the test can see it"
    seen = said("up")
    assert seen[:3] == ["environ PermissionError", "mem PermissionError", "maps PermissionError"]
    assert seen[3:] in ([], ["root False"])
