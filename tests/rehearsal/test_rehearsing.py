"""Rehearsals of real trainings: each fault is told apart, with what to do about it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.client import Client
from orchestrator.errors import InputError, SpecError
from orchestrator.files import draft_folder
from orchestrator.rehearsal.comparing import Lost
from orchestrator.rehearsal.judging import ADVICE, Exactness, Rehearsed
from tests.cli.calls import Caller, caller
from tests.waiting import PATIENCE, wait_until

HERE = Path(__file__).parent
SAVED = "saved/{step}.json"
CONFIG = "platforms: {here: {type: process, threads: 1}}\n"


def job(
    odd: str, *, script: str = "plain.py", watch: str = SAVED, more: str = "", steps: str = "{steps}"
) -> str:
    return f"""
name: demo
source: .
command: python {script} {steps} "{odd}" {more} --resume {{resume}}
work: {{total: 500, global_batch: 8}}
checkpoint: {{watch: "{watch}"}}
profiles: {{default: {{micro_batch: 8, precision: fp32}}}}
"""


@pytest.fixture
def client(tmp_path: Path) -> Client:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(CONFIG)
    return Client(home)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    with caller(tmp_path) as found:
        found.config(CONFIG)
        yield found


def rehearsed(
    client: Client, folder: Path, text: str, steps: int | None = 30, patience: float = PATIENCE
) -> Rehearsed:
    return client.jobs.rehearse(written(folder / "job", text), steps=steps, patience=patience)


def written(source: Path, text: str) -> Path:
    source.mkdir(exist_ok=True)
    for name in ("plain.py", "torn.py", "train.py"):
        (source / name).write_bytes((HERE / name).read_bytes())
    (source / "job.yaml").write_text(text)
    return source / "job.yaml"


def whats(done: Rehearsed) -> list[str]:
    return [each.what for each in done.findings]


# --- With torch, as a command ----------------------------------------------------------------------------


def test_an_exact_one_is_bitwise_and_leaves_nothing(user: Caller) -> None:
    (user.folder / "tmp").mkdir()
    path = written(user.folder / "job", job("nothing", script="train.py", watch="saved/{step}.pt"))
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    told = user("rehearse", str(path), "--steps", "30", "--json", TMPDIR=str(user.folder / "tmp")).json
    assert (told["grade"], told["exact"], told["compared_at"], told["findings"]) == ("bitwise", True, 30, [])
    names = [leg["name"] for leg in told["legs"]]
    assert names[:3] == ["whole", "stopped", "killed"]
    assert "SIGKILL" in told["legs"][2]["how"]
    assert all(leg["steps_watched"] for leg in told["legs"][:3])
    assert list((user.folder / "tmp").glob("orchestrator-*")) == []
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before
    assert list(user.home.iterdir()) == [user.home / "config.yaml"], "neither a ledger nor a controller"


@pytest.mark.parametrize(
    ("forgets", "what", "text", "lost"),
    [
        pytest.param(
            "the random state",
            "random lost",
            "the random numbers went another way: torch",
            Lost.RANDOM,
            marks=pytest.mark.soak,
        ),
        (
            "the data order",
            "data lost",
            "the resumed training saw other samples: the epoch began again",
            Lost.DATA,
        ),
    ],
)
def test_what_is_forgotten_is_named_with_its_remedy(
    user: Caller, forgets: str, what: str, text: str, lost: Lost
) -> None:
    path = written(user.folder / "job", job(forgets, script="train.py", watch="saved/{step}.pt"))
    answer = user("rehearse", str(path), "--steps", "30", code=1)
    [line] = [each for each in answer.out.splitlines() if each.startswith(what)] or [answer.out]
    assert f"{text}; {ADVICE[lost]}" in line
    assert "not exact: " in answer.out
    others = ("random lost", "data lost", "optimizer lost", "weights lost", "state lost", "starts over")
    assert [each for each in others if each in answer.out] == [what]
    assert "30 steps without interruption" in answer.err


# --- Without torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "grade", "what", "text"),
    [
        ("nothing", Exactness.BITWISE, None, ""),
        pytest.param("ignores SIGTERM", Exactness.BITWISE, None, "", marks=pytest.mark.soak),
        ("forgets to load", Exactness.NOT_EXACT, "starts over", "began from the start"),
        ("forgets a part", Exactness.NOT_EXACT, "differs", ": momentum (by up to "),
        pytest.param(
            "fails to load",
            Exactness.NOT_EXACT,
            "crash",
            "ValueError: mismatched keys: 'value'",
            marks=pytest.mark.soak,
        ),
        ("has no seed", Exactness.UNKNOWN, "varies", ": momentum (by up to "),
        pytest.param(
            "notes the time", Exactness.UNKNOWN, "varies", ": saved_at (by up to ", marks=pytest.mark.soak
        ),
        ("never saves", Exactness.NOT_RESUMABLE, "no checkpoint", "completed; not resumable"),
        pytest.param(
            "saves late",
            Exactness.UNKNOWN,
            "saves once",
            "a session that ends earlier loses all",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_each_oddity_is_told_apart(
    client: Client, tmp_path: Path, odd: str, grade: Exactness, what: str | None, text: str
) -> None:
    done = rehearsed(client, tmp_path, job(odd))
    assert done.grade is grade, done.findings
    assert all((each.text + each.advice).count("help any-script") < 2 for each in done.findings)
    assert whats(done) == ([] if what is None else [what])
    assert text in "".join(each.text for each in done.findings)


@pytest.mark.soak
def test_a_file_without_a_step_is_compared_at_the_end(client: Client, tmp_path: Path) -> None:
    """Nothing in it tells a training that began anew from one that resumed, but what it opened does."""
    for odd, grade, found in (
        ("nothing", Exactness.BITWISE, []),
        ("hurries to its end", Exactness.BITWISE, []),  # nothing is left for the last leg
        ("forgets to load", Exactness.UNKNOWN, ["not seen"]),
    ):
        text = job(odd, watch="last.pt", more="--to last.pt --archive")
        done = rehearsed(client, tmp_path, text)
        assert done.grade is grade, done.findings
        assert whats(done) == found


def test_a_command_without_steps_is_rehearsed_until_it_has_saved(client: Client, tmp_path: Path) -> None:
    done = rehearsed(client, tmp_path, job("nothing", steps="100000"), steps=None)
    assert (done.grade, done.findings) == (Exactness.BITWISE, ())
    assert done.steps is not None
    assert done.steps < 500


def test_one_that_saves_elsewhere_is_told_the_line_to_add(client: Client, tmp_path: Path) -> None:
    done = rehearsed(
        client, tmp_path, job("nothing", watch="elsewhere/{step}.pt", more="--to saved/ckpt_{{step}}.pt")
    )
    assert (done.grade, whats(done)) == (Exactness.NOT_RESUMABLE, ["no checkpoint"])
    assert 'watch: "saved/ckpt_{step}.pt"' in done.findings[0].text


def test_one_that_saves_too_seldom_is_stopped(client: Client, tmp_path: Path) -> None:
    done = rehearsed(client, tmp_path, job("saves late", steps="100000"), steps=None, patience=2.0)
    assert (done.grade, whats(done)) == (Exactness.NOT_RESUMABLE, ["no checkpoint"])
    assert "it saved none within 2 s, and was stopped" in done.findings[0].text
    assert "--patience" in done.findings[0].advice


def test_torn_files_are_named(client: Client, tmp_path: Path) -> None:
    text = job("", script="torn.py").replace('""  --resume {resume}', "")
    text = text.replace(f'checkpoint: {{watch: "{SAVED}"}}\n', "")
    done = rehearsed(client, tmp_path, text, steps=4)
    assert done.grade is Exactness.NOT_EXACT
    assert "model.pt" in next(each.text for each in done.findings if each.what == "torn files")


def test_what_cannot_be_rehearsed_is_told(client: Client, tmp_path: Path) -> None:
    text = job("nothing")
    with pytest.raises(InputError, match="--steps 501: the job has 500 steps"):
        rehearsed(client, tmp_path, text, steps=501)
    with pytest.raises(InputError, match="--patience 0: it must be more than 0 seconds"):
        rehearsed(client, tmp_path, text, patience=0.0)
    with pytest.raises(InputError, match="has no profile for cpu"):
        rehearsed(client, tmp_path, text.replace("default:", "T4:"))
    with pytest.raises(SpecError, match="unknown key"):
        rehearsed(client, tmp_path, text + "nonsense: 1\n")
    written(tmp_path / "job", text)
    with pytest.raises(InputError, match="only on this machine: here, process, docker"):
        client.jobs.rehearse(tmp_path / "job" / "job.yaml", platform="kaggle")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_leaves_nothing_behind(user: Caller, number: signal.Signals) -> None:
    """Not even a training that does not listen."""
    (user.folder / "tmp").mkdir()
    path = written(user.folder / "job", job("ignores SIGTERM", steps="100000"))
    child = user.start("rehearse", str(path), "--patience", "600", TMPDIR=str(user.folder / "tmp"))
    wait_until(lambda: list((user.folder / "tmp").glob("*/platforms/*/*/work/*/saved/*.json")), "a save")
    child.send_signal(number)
    _, told = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, told
    assert "Traceback" not in told
    assert list((user.folder / "tmp").iterdir()) == []
    assert running_below(user.folder / "tmp") == []


def test_the_next_one_removes_what_a_killed_one_left(user: Caller) -> None:
    """Its training, too, which runs on. The folder of one that still runs stays."""
    place = user.folder / "tmp"
    place.mkdir()
    path = written(user.folder / "job", job("never saves", steps="100000"))
    killed = user.start("rehearse", str(path), "--patience", "600", TMPDIR=str(place))
    wait_until(lambda: running_below(place), "a training")
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    assert running_below(place)
    with draft_folder(place, prefix="orchestrator-rehearsal-") as alive:
        path = written(user.folder / "short", job("never saves", steps="1"))
        done = user("rehearse", str(path), "--steps", "1", code=1, TMPDIR=str(place))
        assert "not resumable" in done.out
        assert list(place.iterdir()) == [alive]
    assert running_below(place) == []


def running_below(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in str((process / "cwd").readlink()):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
