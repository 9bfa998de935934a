"""One job, three places, one result, by real commands on local services: Kaggle until its quota is used up,
Colab until its machine vanishes and there is no other, then this machine. `why` tells it in sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.end_to_end.test_kaggle import PREFERRED, account, on
from tests.end_to_end.test_kaggle_uplink import GATES, STEPS, Traveller, is_done
from tests.end_to_end.test_uplink import Home, home
from tests.end_to_end.user import fingerprints, train_in_one_piece
from tests.leaks import Leaks
from tests.stand_ins.colab import LocalColab, local_colab
from tests.stand_ins.kaggle import LocalKaggle, Settings, local_kaggle

__all__ = ["home"]
SECOND = {"name": "otherwise Colab", "prefer": {"platform": "colab"}}
STORY = (
    "on kaggle/T4, from the beginning",
    "the session ran out of quota: the GPU quota was used up while it ran",
    "session s02 on colab/T4, from step",
    "the session was lost: the session is gone from its platform",
    "on here/T4, from step",
    "the week's GPU quota is used up",
    f"completed at step {STEPS}",
)


class Worldly(Traveller):
    """A user with accounts on Kaggle and Colab and a machine at home. The config prefers Colab."""

    def __init__(self, folder: Path, kaggle: LocalKaggle, home: Home, colab: LocalColab) -> None:
        super().__init__(folder, kaggle, home)
        there = {
            "type": "colab", "proxy": colab.url, "ca_file": str(colab.ca), "accelerators": ["T4"],
            "threads": 1, "session_seconds": 600.0, "wall_margin_seconds": 4.0, "slack_seconds": 60.0,
            "visibility_seconds": 3.0, "absence_seconds": 3.0, "poll_seconds": 2.0, "setup_seconds": 1.0,
            "uplink_seconds": 1, "uplink_silence_seconds": 5, "slots": 2,
        }  # fmt: skip
        self.change(lambda config: config | {
            "platforms": {**config["platforms"], "colab": there}, "rules": [SECOND]})  # fmt: skip
        self.login = "platforms/colab/cli/home/.config/colab-cli/token.json"
        (self.home / self.login).parent.mkdir(parents=True)
        (self.home / self.login).write_text(colab.login())


def secrets_of(colab: LocalColab) -> Mapping[str, str]:
    """What opens the account and its machines, at any time until now."""
    access = {f"access {number}": each for number, each in enumerate(colab.account.access)}
    machines = {
        f"machine {number}": token
        for number, token in enumerate(
            token for machine in colab.account.machines.values() for token in machine.tokens
        )
    }
    return {"login": colab.settings.refresh_token, **access, **machines}


def check_while_it_runs(colab: LocalColab, home: Home) -> None:
    """On the machine, what opens the store is in the memory of two processes, and nowhere else."""
    [machine] = colab.account.living()
    leaks = Leaks({**home.secrets, **secrets_of(colab)})
    assert leaks.in_folder(machine.folder) == []
    assert leaks.in_processes(machine.folder) == []


def check_afterwards(user: Worldly, kaggle: LocalKaggle, colab: LocalColab, run: str) -> None:
    """Each credential is in the user's own file for it, and nowhere else."""
    of_store, of_colab = Leaks(user.store.secrets), Leaks(secrets_of(colab))
    assert {leak.where for leak in of_store.in_folder(user.home)} == set(user.store.files)
    assert {leak.where for leak in of_colab.in_folder(user.home)} == {user.login}
    for leaks in (of_store, of_colab):
        assert leaks.in_store(user.store.store(user)) == []
        for words in (("logs", run), ("why", run), ("show", run, "--json"), ("quota", "--json"), ("doctor",)):
            assert leaks.in_text(words[0], user.run(*words)) == []
        for pushed in kaggle.sessions:
            assert leaks.in_text("kernel", json.dumps(pushed.request)) == []
            assert leaks.in_folder(pushed.folder / "working") == []
        for machine in colab.account.machines.values():
            assert leaks.in_folder(machine.folder) == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_one_job_in_three_places_has_one_result(tmp_path: Path, home: Home, colab_python: None) -> None:  # noqa: ARG001
    with (
        local_kaggle(tmp_path / "kaggle", Settings(wall_seconds=600.0)) as kaggle,
        local_colab(tmp_path / "colab") as colab,
    ):
        user = Worldly(tmp_path / "user", kaggle, home, colab)
        try:
            run = user.submit_gated(route={"rules": [PREFERRED]})
            on_kaggle = user.ships(run, 20)
            kaggle.warts.quota_loses_outputs = True
            kaggle.use_up("gpu")  # ends the session, and everything on its machine is gone
            user.wait_for(run, on("colab"), "the move to Colab")
            user.opens(GATES[0])
            on_colab = user.ships(run, GATES[0] + 10)
            assert colab.account.living(), user.run("why", run)
            check_while_it_runs(colab, home)
            [machine] = colab.account.living()
            colab.use(none_left=("T4",))
            colab.vanish(machine.endpoint)
            user.wait_for(run, on("here"), "the move to this machine")
            for gate in GATES[1:]:
                user.opens(gate)
            user.wait_for(run, is_done, "its end")
            user.wait_for_silence()
            user.run("pull", run, "-o", str(tmp_path / "final"))
            places, story = user.places(run), user.run("why", run)
            check_afterwards(user, kaggle, colab, run)
        finally:
            user.close()
        assert [place for place, _ in places][:2] == ["kaggle", "colab"], story
        assert places[-1][0] == "here", story
        assert places[1][1] >= on_kaggle, story
        assert places[-1][1] >= on_colab, story
        assert [words for words in STORY if words not in story] == [], story
        assert account(kaggle).kernels() == account(kaggle).datasets() == ()
        assert colab.account.living() == []
        assert fingerprints(tmp_path / "final") == train_in_one_piece(tmp_path / "whole", "train.py", STEPS)
