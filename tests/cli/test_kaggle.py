"""A user with a Kaggle account: what init writes, what doctor finds, and what the user cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.clock import SystemClock
from orchestrator.platforms import catalog
from orchestrator.session.staging import Materials
from tests.cli.calls import Caller
from tests.conformance.test_platforms import any_order
from tests.stand_ins.kaggle import LocalKaggle, Settings, local_kaggle
from tests.waiting import wait_until

NO_ENGINE = "unix:///tmp/no-engine.sock"
TOKEN = "f00dfeedf00dfeed"
QUICK = ", accelerators: [cpu], threads: 1, poll_seconds: 0.5, report_seconds: 0.5, visibility_seconds: 3"


@pytest.fixture
def kaggle(tmp_path: Path) -> Iterator[LocalKaggle]:
    with local_kaggle(tmp_path / "kaggle", Settings(token=TOKEN)) as made:
        yield made


def keep(user: Caller, name: str, text: str, mode: int = 0o600) -> Path:
    """Writes a file to the user's ~/.kaggle."""
    path = user.folder / ".kaggle" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def keep_key(user: Caller, key: str = Settings().key, mode: int = 0o600) -> Path:
    return keep(user, "kaggle.json", json.dumps({"username": Settings().username, "key": key}), mode)


def with_account(user: Caller, kaggle: LocalKaggle, more: str = "") -> None:
    user.config(f"platforms:\n  kaggle: {{type: kaggle, endpoint: '{kaggle.url}'{more}}}\n")


def states(user: Caller, code: int = 0) -> dict[str, tuple[str, str, str]]:
    """Doctor's findings about the account: state, text and fix of each."""
    findings = user("doctor", "kaggle", "--json", code=code).json["findings"]
    return {each["what"]: (each["state"], each["text"], each["advice"]) for each in findings}


def initialised(user: Caller, token: str = "") -> tuple[str, list[str]]:
    """What init prints about kaggle, and the platforms that it writes."""
    said = user("init", "--force", "--json", DOCKER_HOST=NO_ENGINE, KAGGLE_API_TOKEN=token).json["found"]
    (kaggle,) = (each for each in said if each["what"] == "kaggle")
    written = [
        f"{each.name} {each.type} {dict(each.options) or ''}" for each in config.load(user.home).platforms
    ]
    assert kaggle["used"] is any(each.startswith("kaggle") for each in written)
    return str(kaggle["text"]), [each for each in written if not each.startswith("here process")]


# --- init -------------------------------------------------------------------------------------------------


def test_init_writes_the_account_whose_key_it_finds(user: Caller) -> None:
    keep_key(user)
    assert initialised(user) == ("the key of ada", ["kaggle kaggle "])
    text = user("init", "--force", DOCKER_HOST=NO_ENGINE).out
    assert "kaggle: accelerators of the account, kaggle" in text
    assert Settings().key not in text + (user.home / "config.yaml").read_text()


@pytest.mark.parametrize("variable", [True, False])
def test_init_writes_the_account_whose_token_it_finds(user: Caller, variable: bool) -> None:
    if not variable:
        keep(user, "access_token", f"{TOKEN}\n")
    assert initialised(user, TOKEN if variable else "") == ("an access token", ["kaggle kaggle "])
    assert TOKEN not in (user.home / "config.yaml").read_text()


def test_init_without_an_account_writes_none(user: Caller) -> None:
    text, platforms = initialised(user)
    assert "save a token of kaggle.com/settings → API as ~/.kaggle/access_token" in text
    assert platforms == []


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("kaggle.json", "k1-secret", "is not a Kaggle key file"),
        ("kaggle.json", '{"username": "ada", "key": "k1-secret\\n"}', "copy it again"),
        ("access_token", "two k1-secret", "copy it again"),
        ("credentials.json", "{}", "is a browser login; create a token at kaggle.com/settings"),
    ],
)
def test_init_leaves_out_credentials_that_cannot_be_used(
    user: Caller, name: str, text: str, why: str
) -> None:
    keep(user, name, text)
    said, written = initialised(user)
    assert said.startswith("left out: ")
    assert why in said
    assert "k1-secret" not in said
    assert written == []


def test_init_leaves_out_a_file_that_is_no_text(user: Caller) -> None:
    path = keep(user, "access_token", "")
    path.write_bytes(b"\xff\xfe\x00")
    assert initialised(user) == (f"left out: {path} cannot be read (not text)", [])


@pytest.mark.parametrize("words", [["--version"], ["init", "--force"]])
def test_what_asks_no_account_does_not_load_its_client(user: Caller, words: list[str]) -> None:
    keep_key(user)
    code = f"""
import sys
from orchestrator.cli import main
assert main({words!r}) == 0
print(*(name for name in sys.modules if "." not in name), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=user.environment({"DOCKER_HOST": NO_ENGINE}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stderr.split())
    assert "orchestrator" in loaded
    assert not {"kaggle", "kagglesdk"} & loaded


# --- doctor -----------------------------------------------------------------------------------------------


def test_doctor_says_whose_account_it_is_and_what_it_has_left(user: Caller, kaggle: LocalKaggle) -> None:
    keep_key(user)
    with_account(user, kaggle)
    found = states(user)
    assert found["kaggle: account"] == ("ok", f"ada at {kaggle.url}", "")
    assert found["kaggle: gpu quota"][0] == "ok"
    assert "0.0 of 30.0 hours used, renews 20" in found["kaggle: gpu quota"][1]
    assert "0.0 of 20.0 hours used" in found["kaggle: tpu quota"][1]
    state, offers, _ = found["platform kaggle"]
    assert state == "ok"
    for words in ("T4x2, 2 slots, sessions of 43,200 s", "TPUv5e-8, 1 slot", "cpu, 5 slots", "P100, never"):
        assert words in offers
    assert "kaggle: credentials" not in found
    assert kaggle.pushed == []


def test_doctor_knows_the_account_of_a_token(user: Caller, kaggle: LocalKaggle) -> None:
    keep(user, "access_token", TOKEN)
    with_account(user, kaggle)
    assert states(user)["kaggle: account"] == ("ok", f"ada at {kaggle.url}", "")


def test_doctor_takes_a_key_from_the_file_that_the_config_names(user: Caller, kaggle: LocalKaggle) -> None:
    path = keep(user, "of-ada", f"{kaggle.settings.key}\n", mode=0o644)
    with_account(user, kaggle, f", username: ada, key_file: {path}")
    found = states(user)
    assert found["kaggle: account"][0] == "ok"
    assert found["kaggle: credentials"][0] == "warning"


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff\xfe\x00", "not text")])
def test_doctor_says_which_key_file_cannot_be_read(
    user: Caller, kaggle: LocalKaggle, content: bytes | None, why: str
) -> None:
    path = user.home.parent / "of-ada"
    if content is not None:
        path.write_bytes(content)
    with_account(user, kaggle, f", username: ada, key_file: {path}")
    state, text, _ = states(user, 3)["platform kaggle"]
    assert state == "missing"
    assert f"{path} cannot be read ({why}" in text


def test_doctor_says_who_can_read_the_key(user: Caller, kaggle: LocalKaggle) -> None:
    path = keep_key(user, mode=0o644)
    with_account(user, kaggle)
    state, text, advice = states(user)["kaggle: credentials"]
    assert (state, advice) == ("warning", f"chmod 600 {path}")
    assert str(path) in text
    subprocess.run(advice.split(), check=True)
    assert "kaggle: credentials" not in states(user)


def test_doctor_says_when_a_quota_is_used_up(user: Caller, kaggle: LocalKaggle) -> None:
    keep_key(user)
    with_account(user, kaggle)
    kaggle.use_up("gpu")
    found = states(user)
    assert found["kaggle: gpu quota"][0] == "warning"
    assert "30.0 of 30.0 hours used, renews 20" in found["kaggle: gpu quota"][1]
    assert "T4x2, not now: the week's GPU quota is used up" in found["platform kaggle"][1]
    assert "cpu, 5 slots" in found["platform kaggle"][1]


def test_doctor_says_how_to_get_a_quota(user: Caller, tmp_path: Path) -> None:
    keep_key(user)
    with local_kaggle(tmp_path / "unverified", Settings(tpu_quota_seconds=0.0)) as kaggle:
        with_account(user, kaggle)
        found = states(user)
    assert found["kaggle: tpu quota"] == (
        "warning", "none", "verify your phone (TPU: your identity): kaggle.com/settings → API"
    )  # fmt: skip
    assert "TPUv5e-8, not now: this account has no TPU quota" in found["platform kaggle"][1]
    assert found["kaggle: gpu quota"][0] == "ok"


def test_doctor_without_credentials_says_where_to_get_some(user: Caller, kaggle: LocalKaggle) -> None:
    with_account(user, kaggle)
    state, text, _ = states(user, code=3)["platform kaggle"]
    assert state == "missing"
    assert "create a token at kaggle.com/settings" in text
    assert kaggle.calls == []


def test_doctor_says_what_is_wrong_with_a_key_file(user: Caller, kaggle: LocalKaggle) -> None:
    path = keep(user, "kaggle.json", "k1-secret")
    with_account(user, kaggle)
    text = user("doctor", "kaggle", code=3).out
    assert f"{path} is not a Kaggle key file" in text
    assert "k1-secret" not in text


def test_doctor_says_that_the_credentials_are_refused(user: Caller, kaggle: LocalKaggle) -> None:
    keep_key(user, key="0" * 32)
    with_account(user, kaggle)
    state, text, _ = states(user, code=3)["platform kaggle"]
    assert state == "missing"
    assert "Kaggle refuses the credentials of ada" in text
    assert "make a new token at kaggle.com/settings" in text
    assert "0" * 32 not in text


def test_doctor_says_that_kaggle_does_not_answer(user: Caller, kaggle: LocalKaggle) -> None:
    keep_key(user)
    with_account(user, kaggle)
    kaggle.warts.outage = "refused"
    kaggle.outage()
    state, text, _ = states(user, code=4)["platform kaggle"]
    assert state == "missing"
    assert "connection refused" in text


def test_a_second_account_is_refused_at_its_line(user: Caller, kaggle: LocalKaggle) -> None:
    keep_key(user)
    with_account(user, kaggle)
    path = user.home / "config.yaml"
    path.write_text(f"{path.read_text()}  another: {{type: kaggle, endpoint: '{kaggle.url}'}}\n")
    for words in (("doctor",), ("plan", user.job()), ("submit", "job.yaml")):
        answer = user(*words, code=2)
        text = " ".join((answer.out + answer.err).split())
        assert f"{path}:3: platforms.another: " in text
        assert "Kaggle's terms allow one account per person" in text
    assert kaggle.calls == []


def test_a_wrong_option_is_refused_at_its_line_with_the_valid_ones(user: Caller, kaggle: LocalKaggle) -> None:
    with_account(user, kaggle, ", acelerators: [T4x2]")
    answer = user("plan", user.job(), code=2)
    assert "config.yaml:2: " in answer.err
    assert "did you mean 'accelerators'" in answer.err


# --- What is on the account -------------------------------------------------------------------------------


def test_a_session_that_brings_nothing_before_its_end_is_not_cancelled_unasked(
    user: Caller, kaggle: LocalKaggle
) -> None:
    keep_key(user)
    with_account(user, kaggle, QUICK)
    run = user.submitted(user.job(total=100_000))
    user.wait_for_phase(run, "running")
    for wish in ("cancel", "hold"):
        answer = user(wish, run, code=3)
        assert "kaggle returns nothing before a session ends" in answer.err
        assert f"of work in {run}-s01" in answer.err
        assert "--discard" in answer.err
    assert user.phase(run) == "running"
    assert kaggle.kernel(f"{run}-s01").is_active
    user("cancel", run, "--discard")
    user.wait_for_phase(run, "cancelled")
    wait_until(lambda: user("doctor", "--clean", "--json").json["leftovers"] == [], "nothing to be left")
    with pytest.raises(KeyError):
        kaggle.kernel(f"{run}-s01")


def test_what_was_left_on_the_account_is_told_and_taken_away(
    user: Caller, kaggle: LocalKaggle, tmp_path: Path
) -> None:
    keep_key(user)
    with_account(user, kaggle)
    assert "kaggle: leftovers" not in states(user)
    stage(user, kaggle, "tiny-7f3kq2vd-s01", tmp_path)
    [staged] = kaggle.datasets.names()
    state, _, advice = states(user)["kaggle: leftovers"]
    assert state == "warning"
    assert "doctor --clean" in advice
    assert f"dataset {staged}" in user("doctor", "--clean").out, "without --yes it only lists"
    kept = user("doctor", "--clean", "--yes", "--json").json
    assert "this ledger does not know its run" in kept["kept"][f"kaggle: dataset {staged}"]
    removed = user("doctor", "--clean", "--yes", "--discard", "--json").json["removed"]
    assert removed == [f"kaggle: dataset {staged}"]
    assert "kaggle: leftovers" not in states(user)


def stage(user: Caller, kaggle: LocalKaggle, session: str, folder: Path) -> None:
    """What a controller of this home left there when it was killed before the launch."""
    key = folder / "of-ada"
    key.write_text(kaggle.settings.key)
    platform = catalog.build(
        "kaggle", "kaggle", {"endpoint": kaggle.url, "username": "ada", "key_file": str(key)},
        folder=user.home / "platforms" / "kaggle", clock=SystemClock(),
    )  # fmt: skip
    for name in ("bundle.tar.gz", "agent.pyz"):
        (folder / name).write_bytes(b"x")
    order = any_order(session, 10, 1, run=session.rpartition("-")[0], platform="kaggle")
    platform.prepare(order, Materials(folder / "bundle.tar.gz", folder / "agent.pyz"))
