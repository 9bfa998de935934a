"""`backup` while runs train, and `restore` elsewhere after the first home is gone."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import signal
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.tick import job
from orchestrator import Client
from orchestrator.cli import running
from orchestrator.core.event import Cancelled, Noted, Submitted
from orchestrator.errors import BackendError, InputError
from orchestrator.ledger import Ledger
from tests.cli.calls import UNLIMITED, Caller
from tests.waiting import wait_until

SHARED = """
stores:
  shared: {{type: folder, path: {store}}}
"""


@pytest.mark.soak
def test_what_was_backed_up_under_load_finishes_elsewhere(user: Caller, tmp_path: Path) -> None:
    config = UNLIMITED + SHARED.format(store=tmp_path / "shared")
    user.config(config.replace("here: {", "here: {slots: 2, "))
    controller = user.start("up")
    wait_until(user.owner, "a controller")
    totals = (300, 320)
    runs = [user.submitted(user.job(f"{n}.yaml", total=total, gate=100)) for n, total in enumerate(totals)]
    running = [wait_until(lambda run=run: step_of(user, run), "a checkpoint") for run in runs]  # type: ignore[misc]
    queued = user.submitted(user.job("2.yaml", total=20))
    assert "the following arguments are required: FILE" in user("backup", code=2).err
    made = user("backup", str(tmp_path), "--json").json
    assert (made["runs"], made["notes"]) == (3, [])
    user.open_gate(200)
    for run, step in zip(runs, running, strict=True):  # the old timeline goes on after the backup
        wait_until(lambda run=run, step=step: step_of(user, run) > step, "a newer checkpoint")  # type: ignore[misc]
    newer = [step_of(user, run) for run in runs]
    controller.send_signal(signal.SIGKILL)
    wait_until(lambda: user.owner() is None, "the first controller to be gone")
    assert [user.record(run).phase.final for run in runs] == [False, False]

    user.open_gate(max(totals))
    there = Caller(user.folder, tmp_path / "new")
    assert "nothing was restored" in there("restore", made["path"]).out
    assert not (there.home / "ledger.sqlite").exists()
    done = there("restore", made["path"], "--yes", "--json").json
    steps = {each["run"]: each["step"] for each in done["revived"]}
    assert all(steps[run] >= step for run, step in zip(runs, newer, strict=True)), "from where the store is"
    assert "already has a ledger" in there("restore", made["path"], "--yes", code=2).err
    there("up", "--until-idle")
    for run, total in (*zip(runs, totals, strict=True), (queued, 20)):
        assert there.phase(run) == "done"
        pulled = tmp_path / f"pulled-{run}"
        there("pull", run, "-o", str(pulled))
        assert (pulled / "state.json").read_text() == f'{{"step": {total}}}'
        names = [each["order"]["session"] for each in there("show", run, "--json").json["sessions"]]
        assert len(set(names)) == len(names)
    assert not user.record(runs[0]).phase.final, "the first home was not touched"


def step_of(user: Caller, run: str) -> int:
    return max((each.ref.step for each in user.record(run).accepted), default=0)


def home_with_runs(folder: Path, url: str | None = None) -> Client:
    client = Client(folder)
    with Ledger.open(url or f"sqlite:///{folder / 'ledger.sqlite'}") as ledger:
        for number in range(3):
            record = ledger.submit(Submitted(f"a-run-{number:08d}", job(number), float(number)))
            record = ledger.append(record, [Noted(5.0, "naïve \u2603")], due_at=1e12, inputs={"x": 0.1})
            ledger.append(record, [Cancelled(6.0)], due_at=None)
        ledger.take_over("earlier", now=7.0).release()
    return client


def dump(url: str) -> list[object]:
    with Ledger.open(url) as ledger:
        runs = [each.run for each in ledger.summaries()]
        return [ledger.history(run) for run in runs] + [ledger.record(run) for run in runs]


def test_sqlite_and_postgresql_restore_each_other(tmp_path: Path, postgresql: object) -> None:
    """A backup is also the way from one database to the other."""
    first = home_with_runs(tmp_path / "one")
    before = dump(f"sqlite:///{tmp_path / 'one' / 'ledger.sqlite'}")
    made = first.backups.write(tmp_path / "a.tar.gz")
    url = postgresql.new_schema("restored")  # type: ignore[attr-defined]
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "url").write_text(url)
    (tmp_path / "two" / "config.yaml").write_text("database: file:url\n")
    second = Client(tmp_path / "two")
    second.backups.restore(made.path)
    assert dump(url) == before
    with Ledger.open(url) as ledger:
        assert ledger.take_over("next", now=8.0).fence > 1_000
    with pytest.raises(InputError, match="already has runs"):
        second.backups.restore(made.path)
    third = Client(tmp_path / "three")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "config.yaml").write_text("timezone: UTC\n")
    third.backups.restore(second.backups.write(tmp_path / "b.tar.gz").path)
    assert dump(f"sqlite:///{tmp_path / 'three' / 'ledger.sqlite'}") == before


def test_a_backup_of_older_tables_is_upgraded(tmp_path: Path) -> None:
    made = home_with_runs(tmp_path / "one").backups.write(tmp_path / "a.tar.gz")

    def older(name: str, data: bytes) -> bytes | None:
        if name.split("/")[-1] in ("schedules.jsonl", "fires.jsonl", "notifications.jsonl"):
            return None
        if name.endswith("controller.jsonl"):
            [row] = map(json.loads, data.splitlines())
            del row["alike"], row["identity"]  # which 0003 added
            return json.dumps(row).encode()
        return data.replace(b'"revision": "0003"', b'"revision": "0002"') if name == "manifest.json" else data

    rewritten(made.path, older)
    Client(tmp_path / "two").backups.restore(made.path)
    assert len(Client(tmp_path / "two").runs(all=True)) == 3


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], **more: bytes) -> None:
    """The same backup with other contents, whose manifest fits again."""
    with tarfile.open(path) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    changed = {name: data for name, each in found.items() if (data := change(name, each)) is not None}
    changed |= {name.replace("__", "/"): data for name, data in more.items()}
    manifest = json.loads(changed.pop("manifest.json"))
    manifest["files"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in changed.items()
    }
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {**changed, "manifest.json": json.dumps(manifest).encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_a_damaged_or_strange_backup_restores_nothing(tmp_path: Path) -> None:
    made = home_with_runs(tmp_path / "one").backups.write(tmp_path / "a.tar.gz")
    whole = made.path.read_bytes()
    target = Client(tmp_path / "two")
    raw = bytearray(gzip.decompress(whole))
    raw[raw.index(b"a-run-0000")] ^= 1
    for data, error in (
        (whole[: len(whole) // 2], BackendError),
        (gzip.compress(bytes(raw)), BackendError),
        (b"not a backup", BackendError),
        (b"", BackendError),
    ):
        made.path.write_bytes(data)
        with pytest.raises(error, match=r"damaged|incomplete"):
            target.backups.restore(made.path)
    made.path.write_bytes(whole)
    rewritten(made.path, lambda _name, data: data.replace(b'"revision": "0003"', b'"revision": "9999"'))
    with pytest.raises(InputError, match="newer version"):
        target.backups.restore(made.path)
    evil = tmp_path / "evil.tar.gz"
    with tarfile.open(evil, "w:gz") as tar:
        link = tarfile.TarInfo("config.yaml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(InputError, match="no plain file"):
        target.backups.restore(evil)
    with pytest.raises(InputError, match="no file"):
        target.backups.restore(tmp_path / "absent.tar.gz")
    assert not (tmp_path / "two" / "ledger.sqlite").exists()


def test_a_backup_takes_the_place_of_an_earlier_one_only_and_says_which(tmp_path: Path) -> None:
    client, target = home_with_runs(tmp_path / "one"), tmp_path / "a.tar.gz"
    first = client.backups.write(target)
    assert first.replaced is None
    with tarfile.open(target) as tar:
        stream = tar.extractfile("manifest.json")
        assert stream is not None
        manifest = json.loads(stream.read())
    found = client.backups.write(target).replaced
    assert found is not None
    assert (found.at, found.runs, found.files) == (manifest["at"], first.runs, first.files)
    whole = target.read_bytes()
    target.write_bytes(whole[: len(whole) // 2])
    found = client.backups.write(target).replaced
    assert found is not None
    assert (found.at, found.runs) == (None, None), "damaged"
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("thesis.tex"))
    for data in (b"a thesis", b"", gzip.compress(b"a thesis"), other.getvalue()):
        target.write_bytes(data)
        with pytest.raises(InputError, match="is not a backup: give another name"):
            client.backups.write(target)
        assert target.read_bytes() == data
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.tar.gz", "one"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("mnt", "there is no folder {0}/mnt, and a backup's name ends with .tar.gz: create the folder, or"),
        ("mnt/", "there is no folder {0}/mnt: create it first"),
        ("mnt.tar.gz/", "there is no folder {0}/mnt.tar.gz: create it first"),
        ("/proc/x.tar.gz", "/proc/x.tar.gz cannot be created (No such file or directory): name a file or"),
    ],
)
def test_a_target_that_is_no_folder_and_no_name_of_a_backup_is_refused(
    tmp_path: Path, target: str, words: str
) -> None:
    """It would become a file that each night's backup overwrites."""
    client = home_with_runs(tmp_path / "one")
    with pytest.raises(InputError, match=re.escape(words.format(tmp_path))):
        client.backups.write(os.path.join(tmp_path, target))  # noqa: PTH118 - a Path has no slash at its end
    assert [each.name for each in tmp_path.iterdir()] == ["one"]
    (tmp_path / "mnt").mkdir()
    for each in ("mnt", "mnt/"):
        made = client.backups.write(f"{tmp_path}/{each}")
        assert made.path.parent == tmp_path / "mnt"


def test_what_was_replaced_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home_with_runs(tmp_path / "one")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "one"))
    for said in ("verified", "replaced the backup of 20"):
        assert running.run(("backup", str(tmp_path / "a.tar.gz"))) == 0
        assert said in capsys.readouterr().out


def test_what_the_backup_left_out_is_said_before_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = home_with_runs(tmp_path / "one")
    (tmp_path / "one" / "store").mkdir()
    made = client.backups.write(tmp_path / "a.tar.gz")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "two"))
    assert running.run(("restore", str(made.path))) == 0
    said = capsys.readouterr()
    assert "nothing was restored" in said.out
    assert "--checkpoints includes them" in said.err


def test_a_member_that_leads_outside_is_refused(tmp_path: Path) -> None:
    made = home_with_runs(tmp_path / "one").backups.write(tmp_path / "a.tar.gz")

    rewritten(made.path, lambda _name, data: data, **{"tables__..__..__outside": b"x"})
    with pytest.raises(InputError, match="no backup has"):
        Client(tmp_path / "two").backups.restore(made.path)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b'"at": ', b'"at": "soon", "was": ', "at missing or wrong"),
        (b'"runs": 3', b'"runs": null', "runs missing or wrong"),
        (b'"notes": []', b'"notes": 5', "notes missing or wrong"),
        (b'{"run":"a-run-00000000"', b'{"strange":1,"run":"a-run-00000000"', "different columns"),
        (b'{"run":"a-run-00000001"', b'{"run":', "no row"),
    ],
)
def test_a_backup_that_somebody_rewrote_is_refused_in_words(
    tmp_path: Path, before: bytes, after: bytes, words: str
) -> None:
    """With digests that are right: a program that is not ours wrote it."""
    made = home_with_runs(tmp_path / "one").backups.write(tmp_path / "a.tar.gz", checkpoints=True)
    rewritten(made.path, lambda _name, data: data.replace(before, after, 1))
    with pytest.raises((BackendError, InputError), match=words):
        Client(tmp_path / "two").backups.restore(made.path)
    assert not (tmp_path / "two" / "ledger.sqlite").exists()


def test_a_backup_cannot_write_outside_the_home_by_its_config(tmp_path: Path) -> None:
    made = home_with_runs(tmp_path / "one").backups.write(tmp_path / "a.tar.gz")
    config = f"stores:\n  home: {{type: folder, path: {tmp_path / 'ssh'}}}\n".encode()
    added = {"config.yaml": config, "stores__home__authorized_keys": b"a key"}
    rewritten(made.path, lambda _name, data: data, **added)
    notes = Client(tmp_path / "two").backups.restore(made.path).notes
    assert any("no store home in this home" in note for note in notes)
    assert not (tmp_path / "ssh" / "authorized_keys").exists()


def test_a_home_store_in_the_home_is_told_or_included(tmp_path: Path) -> None:
    client = home_with_runs(tmp_path / "one")
    (tmp_path / "one" / "credentials").mkdir()
    (tmp_path / "one" / "credentials" / "key").write_text("secret")
    blob = tmp_path / "one" / "store" / "runs" / "a-run" / "blobs" / "abc"
    blob.parent.mkdir(parents=True)
    blob.write_text("weights")
    (tmp_path / "one" / "store" / "tables").mkdir()
    (tmp_path / "one" / "store" / "tables" / "strange.jsonl").write_text("none of the ledger's")
    [note] = client.backups.write(tmp_path / "a.tar.gz").notes
    assert "--checkpoints" in note
    whole = client.backups.write(tmp_path / "b.tar.gz", checkpoints=True)
    assert whole.notes == ()
    assert (whole.path.stat().st_mode & 0o077) == 0
    with tarfile.open(whole.path) as tar:
        assert not any("credentials" in name for name in tar.getnames())
    Client(tmp_path / "two").backups.restore(whole.path)
    assert (tmp_path / "two" / blob.relative_to(tmp_path / "one")).read_text() == "weights"


def test_a_home_whose_controller_runs_is_not_restored_elsewhere(tmp_path: Path) -> None:
    client = home_with_runs(tmp_path / "one")
    made = client.backups.write(tmp_path / "a.tar.gz")
    with (
        client.home.ledger() as ledger,
        ledger.take_over("alive", now=9.0),
        pytest.raises(InputError, match="in use by a controller"),
    ):
        look = Client(tmp_path / "two").backups.restore(made.path, dry_run=True)
        assert "down`" in look.refused
        assert look.runs == made.runs
        Client(tmp_path / "two").backups.restore(made.path)
    assert Client(tmp_path / "two").backups.restore(made.path, dry_run=True).refused == ""
    Client(tmp_path / "two").backups.restore(made.path)
    assert "already has a ledger" in client.backups.restore(made.path, dry_run=True).refused


def test_a_backup_waits_for_no_writer_and_delays_none(tmp_path: Path) -> None:
    client = home_with_runs(tmp_path / "one")
    writer = sqlite3.connect(tmp_path / "one" / "ledger.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM events")
    made = client.backups.write(tmp_path / "a.tar.gz")
    writer.execute("COMMIT")
    writer.close()
    Client(tmp_path / "two").backups.restore(made.path)
    assert len(Client(tmp_path / "two").run("a-run-00000001").history()) == 3
