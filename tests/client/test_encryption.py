"""What a config may say of encryption, and what a user notices of it: pull, checkpoints, doctor, submit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client import Came, Run
from orchestrator.client.checkup import Finding, findings
from orchestrator.client.home import Home
from orchestrator.core import credentials
from orchestrator.engine.depositing import deposit
from orchestrator.errors import CorruptCheckpoint, NoIdentity, SpecError
from tests.cli.calls import Caller
from tests.cli.conftest import user
from tests.client.homes import run_after
from tests.client.test_checkpoints import published
from tests.conformance.age_keys import ME, RECOVERY, STRANGER
from tests.core.runs import NOW, running
from tests.simulation.clock import VirtualClock

__all__ = ["user"]  # a fixture

CONFIG = """\
platforms: {{here: {{type: process}}}}
stores:
  home: {{type: folder, path: store{encrypt}}}
"""
KEYS = f", encrypt: {{recipients: [{ME.public}, {RECOVERY.public}]"
WITH = KEYS + ", identity: file:age-identity.txt}"
WITHOUT = KEYS + "}"


def configure(home: Path, encrypt: str, identity: str = ME.text) -> None:
    (home / "config.yaml").write_text(CONFIG.format(encrypt=encrypt))
    (home / "age-identity.txt").write_text(identity)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = run_after(tmp_path, *running())
    configure(tmp_path, WITH)
    return made


def found(home: Path) -> Finding:
    there = findings(Home(home), VirtualClock(NOW), ["home"])
    return next(finding for finding in there if finding.what == "store home")


# --- What a user notices ----------------------------------------------------------------------------------


def test_a_checkpoint_is_listed_verified_and_pulled(run: Run, tmp_path: Path) -> None:
    manifest = published(run, 10)
    for path in (tmp_path / "store").rglob("*"):
        assert path.is_dir() or path.name.endswith(".age")
        assert path.is_dir() or b"state 10" not in path.read_bytes()
    (listed,) = run.checkpoints(verify=True)
    assert (listed.name, listed.trouble) == (manifest.name, "")
    pulled = run.pull(tmp_path / "pulled")
    assert (pulled.folder / "state").read_bytes() == b"state 10"
    assert pulled.authenticated


def test_the_other_recipient_alone_gets_it_back(run: Run, tmp_path: Path) -> None:
    """On the day that the first key is lost."""
    published(run, 10)
    configure(tmp_path, WITH, RECOVERY.text)
    assert (run.pull(tmp_path / "pulled").folder / "state").read_bytes() == b"state 10"


NO_ENCRYPT = "the store 'home' has no `encrypt` in the config: put it back"


def elsewhere(run: Run, folder: Path, encrypt: str, identity: str = ME.text) -> Client:
    """Another machine, whose config names the same store."""
    (folder / "elsewhere").mkdir(mode=0o700)
    configure(folder / "elsewhere", encrypt, identity)
    (folder / "elsewhere" / "store").symlink_to(folder / "store")
    return Client(folder / "elsewhere", clock=run.client.clock)


def told(run: Run) -> None:
    """The controller of the run has told its store."""
    published(run, 10)
    deposit(run.client.wired().store("home"), "home", run.record(), run.client.home.folders)


@pytest.mark.parametrize(
    ("encrypt", "identity", "said", "deposited"),
    [
        ("", ME.text, NO_ENCRYPT, True),
        ("", ME.text, NO_ENCRYPT, False),
        (WITH, STRANGER.text, "belongs to none of the recipients", True),
    ],
    ids=["no encrypt", "no encrypt and no deposit", "wrong"],
)
def test_an_encrypted_store_does_not_look_empty_to_another_machine(
    run: Run, tmp_path: Path, encrypt: str, identity: str, said: str, deposited: bool
) -> None:
    told(run)
    for path in (tmp_path / "store").glob("runs/*/deposit/*") if not deposited else ():
        path.unlink()
    client = elsewhere(run, tmp_path, encrypt, identity)
    [listed] = client.stores.runs("home")
    assert (listed.run, listed.encrypted, listed.step, listed.checkpoints_count) == (run.name, True, 10, 1)
    assert said in listed.troubles[0]
    with pytest.raises(NoIdentity, match="is encrypted"):
        client.stores.run(run.name).pull(tmp_path / "pulled")
    with pytest.raises(NoIdentity, match="is encrypted"):
        client.stores.run(run.name).checkpoints()
    [found] = client.stores.adopt("home")
    assert found.came is Came.ENCRYPTED
    assert said in found.notes[0]
    assert client.runs(all=True) == ()


def test_a_plain_store_is_read_as_it_is_with_encrypt_in_the_config(run: Run, tmp_path: Path) -> None:
    configure(tmp_path, "")
    told(Run(Client(tmp_path, clock=run.client.clock), run.name))
    client = elsewhere(run, tmp_path, WITH)
    [listed] = client.stores.runs("home")
    assert (listed.encrypted, listed.troubles, listed.step) == (False, (), 10)
    assert client.stores.adopt("home")[0].came is Came.ADOPTED
    assert client.run(run.name).pull(tmp_path / "pulled").step == 10
    sealed = [path for path in (tmp_path / "store").rglob("deposit/*") if path.suffix == ".age"]
    assert sealed, "what is written from now on is encrypted"


def test_a_command_about_an_encrypted_store_says_what_to_add(user: Caller) -> None:
    deposit = user.home / "store" / "runs" / "tiny-abcdefgh" / "deposit"
    deposit.mkdir(parents=True)
    (deposit / f"0000-0000000001-{'a' * 64}.json.age").write_bytes(b"age-encryption.org/v1")
    user.config(CONFIG.format(encrypt=""))
    for words in (("ps", "--store", "home"), ("adopt", "home")):
        assert NO_ENCRYPT in user(*words, code=3).err


@pytest.mark.parametrize(
    ("encrypt", "identity", "said"),
    [
        (WITH, STRANGER.text, "belongs to none of the recipients"),
        (WITHOUT, ME.text, "put `identity: file:PATH` beside its `recipients`"),
        (WITH, "", "age-identity.txt is empty"),
        ("", ME.text, "the store 'home' has no `encrypt` in the config"),
    ],
    ids=["wrong", "none", "empty", "no encrypt"],
)
def test_without_the_key_every_command_says_what_is_missing(
    run: Run, tmp_path: Path, encrypt: str, identity: str, said: str
) -> None:
    published(run, 10)
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    configure(tmp_path, encrypt, identity)
    asks: list[Callable[[], object]] = [run.checkpoints, lambda: run.pull(tmp_path / "pulled")]
    for ask in asks:
        with pytest.raises(NoIdentity, match=said):
            ask()
    assert not (tmp_path / "pulled").exists()
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


def test_a_damaged_object_is_not_taken_for_a_missing_key(run: Run, tmp_path: Path) -> None:
    published(run, 10)
    (path,) = (tmp_path / "store").rglob("manifest.json.age")
    path.write_bytes(path.read_bytes()[:-1])
    (listed,) = run.checkpoints()
    assert "damaged or cut off" in listed.trouble
    with pytest.raises(CorruptCheckpoint):
        run.pull(tmp_path / "pulled")


def test_doctor_tries_the_key(tmp_path: Path) -> None:
    configure(tmp_path, WITH)
    assert found(tmp_path).state.value == "ok"
    configure(tmp_path, WITHOUT)
    assert found(tmp_path).state.value == "warning"
    assert "nothing in it can be resumed or pulled" in found(tmp_path).text
    for identity, said in ((STRANGER.text, "none of the recipients"), ("x", "no X25519 identity")):
        configure(tmp_path, WITH, identity)
        assert found(tmp_path).state.value == "missing"
        assert said in found(tmp_path).text
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_submit_warns_that_nothing_could_be_resumed(user: Caller) -> None:
    text = (user.home / "config.yaml").read_text()
    store = CONFIG.format(encrypt=WITHOUT).partition("\n")[2]
    (user.home / "config.yaml").write_text(text + store)
    answer = user("submit", user.job())
    assert "'home', but the store has no identity here" in answer.err
    assert "nothing in it can be resumed or pulled" in answer.err


def test_a_mistake_in_the_store_is_found_before_a_run_is_recorded(user: Caller) -> None:
    text = (user.home / "config.yaml").read_text()
    store = CONFIG.format(encrypt=", encrypt: {recipients: []}").partition("\n")[2]
    (user.home / "config.yaml").write_text(text + store)
    assert "encrypt.recipients is not a list of 1 to 4" in user("submit", user.job(), code=2).err
    assert user("ps", "--all", "--json").json["runs"] == []


# --- What a config may say --------------------------------------------------------------------------------

SECRET = str(ME.identity)


MISTAKES = [
    (", encript: {recipients: [age1x]}", "unknown option 'encript'; did you mean 'encrypt'?"),
    (", encrypt: ", "encrypt is not a mapping"),
    (", encrypt: true", "encrypt is not a mapping"),
    (", encrypt: {}", "encrypt.recipients is not a list of 1 to 4"),
    (", encrypt: {recipients: []}", "encrypt.recipients is not a list of 1 to 4"),
    (f", encrypt: {{recipients: {ME.public}}}", "encrypt.recipients is not a list"),
    (f", encrypt: {{recipients: [{', '.join([ME.public] * 5)}]}}", "is not a list of 1 to 4"),
    (f", encrypt: {{recipient: [{ME.public}]}}", "'recipient'; did you mean 'recipients'?"),
    (f", encrypt: {{recipients: [{ME.public[:-1]}]}}", "recipients.0: "),
    (", encrypt: {recipients: [7]}", "recipients.0: not text"),
    (f", encrypt: {{recipients: [{SECRET}]}}", "recipients.0: this is a secret key"),
    (", encrypt: {recipients: [ssh-ed25519 AAAAC3Nz]}", "SSH keys are not accepted"),
    (", encrypt: {recipients: [age1pq1qqqq]}", "post-quantum keys are not accepted"),
    (WITH.replace("file:age-identity.txt", SECRET), "identity: looks like a secret; refer to it"),
    (WITH.replace("file:age-identity.txt", "age-identity.txt"), "identity is not a reference"),
    (WITH.replace("file:age-identity.txt", "'file:'"), "identity is not a reference"),
    (WITH.replace("file:age-identity.txt", "null"), "identity: given nothing"),
]


@pytest.mark.parametrize(("given", "said"), MISTAKES, ids=map(str, range(len(MISTAKES))))
def test_a_mistake_is_named_with_its_line_and_repeats_no_secret(
    tmp_path: Path, given: str, said: str
) -> None:
    configure(tmp_path, given)
    with pytest.raises(SpecError) as caught:
        Client(tmp_path).wired().stores()
    assert said in str(caught.value)
    assert "config.yaml:3: " in str(caught.value)
    assert SECRET[20:40] not in f"{caught.value!r} {caught.value}"


def test_the_identity_may_be_in_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(run, 10)
    configure(tmp_path, WITH.replace("file:age-identity.txt", "env:MY_AGE_KEY"), "")
    monkeypatch.setenv("MY_AGE_KEY", SECRET)
    assert (run.pull(tmp_path / "pulled").folder / "state").read_bytes() == b"state 10"
    assert "your own login" in (Client(tmp_path).wired().config.secret_refusal("MY_AGE_KEY") or "")


def test_an_identity_file_leaves_with_no_job() -> None:
    assert credentials.in_content(ME.text.encode()) is not None
    assert credentials.in_content(f"recipients: [{ME.public}]".encode()) is None
