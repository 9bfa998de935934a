"""Kaggle sessions with an uplink, by real commands: a machine that dies takes minutes, not hours, and one
home store carries a run over Kaggle and this machine without changing a bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.client import live
from orchestrator.core.durable import is_shipping
from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.home import Folders
from tests.end_to_end.test_kaggle import ACCOUNT, PREFERRED, account, on
from tests.end_to_end.test_uplink import Home, home
from tests.end_to_end.user import User, fingerprints, gated, opens, train_in_one_piece, wait_until
from tests.leaks import Leaks
from tests.stand_ins.kaggle import LocalKaggle, Settings, local_kaggle

__all__ = ["home"]
pytestmark = pytest.mark.timeout(1800)
STEPS, GATES = 120, (40, 60, 80)
JOB = {
    "work": {"total": STEPS, "global_batch": 8},
    "profiles": {"T4": {"micro_batch": 8, "precision": "fp32"}},
    "checkpoint": {"interval": "1s", "keep": {"last": 3}},
}
SHIPS = {"uplink": True, "uplink_seconds": 1, "uplink_silence_seconds": 30, "unshipped_seconds": 1.0,
         "grace_seconds": 30.0, "accelerators": ["T4"], "session_seconds": 600.0}  # fmt: skip


class Traveller(User):
    """A user with a GPU on a local Kaggle, one at home that is used only if Kaggle has none left, and a home
    store that both reach."""

    def __init__(self, folder: Path, kaggle: LocalKaggle, home: Home) -> None:
        super().__init__(folder)
        self.kaggle = kaggle
        self.store = home
        key = folder / "key"
        key.write_text(kaggle.settings.key)
        there = {**ACCOUNT, "endpoint": kaggle.url, "key_file": str(key), **SHIPS}
        home.configure(self, accelerator="T4", uplink_seconds=1, uplink_silence_seconds=2)
        self.change(lambda config: config | {
            "platforms": {**config["platforms"], "kaggle": there}, "rules": [PREFERRED]})  # fmt: skip

    def change(self, to: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.configure(to(yaml.safe_load((self.home / "config.yaml").read_text())))

    def submit_gated(self, **changes: object) -> str:
        """A job that stays at each of GATES until `opens`. `changes` are keys of its spec."""
        return self.submit(**{"command": gated(self, *GATES, pause=0.1), **JOB, **changes})

    def opens(self, step: int) -> None:
        opens(self, step)

    def ships(self, run: str, step: int) -> int:
        """Waits until a checkpoint of this step or a later one is in the store. Returns the newest there."""
        wait_until(lambda: self.store.newest(self, run) >= step, lambda: f"step {step}\n{self.story(run)}")
        return self.store.newest(self, run)

    def hears(self, run: str, session: str) -> None:
        """Waits until the controller has heard from the session that it ships."""
        folders = Folders(self.home)

        def heard() -> bool:
            reading = live.read(folders, run, session)
            return reading is not None and is_shipping(reading.observation.status)

        wait_until(heard, lambda: f"the session's status\n{self.story(run)}")

    def places(self, run: str) -> list[tuple[str, int]]:
        """The platform of each session, and the step at which it began."""
        orders = [stored.event.order for stored in self.history(run) if isinstance(stored.event, Assigned)]
        return [(order.platform, order.resume_step) for order in orders]


def check_while_it_runs(kaggle: LocalKaggle, session: str, home: Home) -> None:
    """The credential is in the mounted dataset, and nowhere else on the machine."""
    leaks, kernel = Leaks(home.secrets), kaggle.kernel(session)
    assert leaks.in_folder(kernel.folder / "input")
    for name in ("working", "src", "tmp"):
        assert leaks.in_folder(kernel.folder / name) == []
    assert leaks.in_processes(kernel.folder) == []


def check_afterwards(user: Traveller, kaggle: LocalKaggle, run: str) -> None:
    """The credential is in the user's own files, and nowhere else: ledger, logs, answers, kernels, store."""
    leaks = Leaks(user.store.secrets)
    own = {leak.where for leak in leaks.in_folder(user.home)}
    assert own, "the scanner finds it where it belongs"
    assert own <= set(user.store.files), own
    assert leaks.in_store(user.store.store(user)) == []
    for words in (
        ("logs", run),
        ("why", run),
        ("show", run, "--json"),
        ("ps", "--all", "--json"),
        ("doctor",),
    ):
        assert leaks.in_text(words[0], user.run(*words)) == []
    for pushed in kaggle.sessions:
        assert leaks.in_text("kernel", json.dumps(pushed.request)) == []
        assert leaks.in_text("log", pushed.machine.log.text()) == []
        assert leaks.in_folder(pushed.folder / "working") == []


def is_done(record: RunRecord) -> bool:
    return record.phase is Phase.DONE


@pytest.mark.parametrize("home", [pytest.param("s3", marks=pytest.mark.soak), "drive"], indirect=True)
def test_one_run_over_kaggle_and_home_changes_no_bit(tmp_path: Path, home: Home) -> None:
    """The machine on Kaggle dies with everything on it, and the quota is used up. At home the run goes on
    from what was shipped. Back on Kaggle it is held in the middle of a session, which loses nothing."""
    with local_kaggle(tmp_path / "kaggle", Settings(wall_seconds=600.0)) as kaggle:
        user = Traveller(tmp_path / "user", kaggle, home)
        try:
            run = user.submit_gated()
            shipped = user.ships(run, 20)
            user.hears(run, f"{run}-s01")  # or its output would be waited for
            kaggle.warts.quota_loses_outputs = True
            kaggle.use_up("gpu")  # ends the session, and everything on its machine is gone
            user.wait_for(run, on("here"), "the failover")
            user.opens(GATES[0])
            user.ships(run, GATES[1])  # so it stays at this step, whenever it is held
            kaggle.use_up("gpu", left_seconds=10_000.0)  # the week is over
            user.run("hold", run)
            user.wait_for(run, lambda record: record.phase is Phase.HELD, "the hold")
            user.opens(GATES[1])
            user.run("down")  # the next controller asks for the quota at once
            user.run("release", run)
            user.ships(run, GATES[2])
            user.hears(run, f"{run}-s03")
            check_while_it_runs(kaggle, f"{run}-s03", home)
            user.run("hold", run)  # no --discard: the session on Kaggle hears it through the store, and saves
            held = user.wait_for(run, lambda record: record.phase is Phase.HELD, "the hold on Kaggle")
            assert max(each.ref.step for each in held.accepted) == GATES[2]
            user.opens(GATES[2])
            user.run("release", run)
            user.wait_for(run, is_done, "its end")
            user.wait_for_silence()
            user.run("pull", run, "-o", str(tmp_path / "final"))
            places = user.places(run)
            check_afterwards(user, kaggle, run)
        finally:
            user.close()
        assert [place for place, _ in places] == ["kaggle", "here", "kaggle", "kaggle"], places
        assert places[1][1] >= shipped, "what was shipped is not trained again"
        assert [step for _, step in places[2:]] == [*GATES[1:]]
        assert account(kaggle).kernels() == account(kaggle).datasets() == ()
        assert fingerprints(tmp_path / "final") == train_in_one_piece(tmp_path / "whole", "train.py", STEPS)
