"""A running controller outlives every edit of its config."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Client, config, user
from orchestrator.client.config_changes import SETTLED_SECONDS, ConfigChanges
from orchestrator.client.home import Home
from orchestrator.errors import InputError, SpecError
from orchestrator.references import resolve
from tests.client.homes import ledger_of
from tests.simulation.clock import VirtualClock

NOBODY = "~no-such-user"
TYPO = [
    f"stores: {{home: {{type: folder, path: {NOBODY}/x}}}}",
    f"stores: {{home: {{type: drive, folder: abcdef, credentials: 'file:{NOBODY}/x'}}}}",
    f"platforms: {{there: {{type: kaggle, username: me, key_file: {NOBODY}/x}}}}",
    f"platforms: {{there: {{type: colab, adc_file: {NOBODY}/x, auth: adc}}}}",
    "platforms: {there: {type: docker, host: 'tcp://box:1', tls: "
    f"{{ca: {NOBODY}/x, cert: {NOBODY}/x, key: {NOBODY}/x}}}}}}",
    f"database: file:{NOBODY}/x",
]


def edited(home: Path, text: str) -> tuple[bool, str]:
    """Whether a controller takes the edited config, and what it says."""
    told: list[str] = []
    clock = VirtualClock()
    changed = ConfigChanges(Home(home), config.load(home), clock, told.append)
    (home / "config.yaml").write_text(text)
    assert not changed()
    clock.advance(SETTLED_SECONDS)
    return changed(), "\n".join(told)


@pytest.mark.parametrize("text", TYPO)
def test_a_path_of_a_user_who_does_not_exist_is_a_mistake_with_its_line(tmp_path: Path, text: str) -> None:
    taken, told = edited(tmp_path, text)
    assert not taken
    assert "continuing with the old one" in told
    assert f"{tmp_path / 'config.yaml'}:1: " in told
    assert "home folder" in told
    assert "write the whole path" in told
    with pytest.raises(SpecError, match="write the whole path"):
        Client(tmp_path).wired().backends()


def test_an_error_that_nobody_foresaw_leaves_the_old_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Path:
        raise KeyError("HOME")

    monkeypatch.setattr(user, "home", broken)
    taken, told = edited(tmp_path, "stores: {home: {type: folder, path: ~/x}}\n")
    assert not taken
    assert "cannot be used; continuing with the old one" in told
    assert "unexpected error while reading the changed config (KeyError: 'HOME')" in told


class Controlled:
    """A running controller's look at its config, which has settled each time."""

    def __init__(self, home: Path) -> None:
        self.path = home / "config.yaml"
        self.told: list[str] = []
        self._clock = VirtualClock()
        self._changed = ConfigChanges(Home(home), config.load(home), self._clock, self.told.append)

    def takes(self, text: str | None) -> bool:
        """Whether it starts again with this config; None: without one."""
        if text is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text(text)
        return self.looks()

    def looks(self) -> bool:
        assert not self._changed()
        self._clock.advance(SETTLED_SECONDS)
        return self._changed()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is gone: put it back"),
        ("", "has no settings: fill it again"),
        ("# stores:\n", "has no settings: fill it again"),
    ],
)
def test_a_config_that_is_gone_or_empty_never_means_the_defaults(
    tmp_path: Path, text: str | None, words: str
) -> None:
    (tmp_path / "config.yaml").write_text("timezone: Europe/Berlin\n")
    controlled = Controlled(tmp_path)
    assert not controlled.takes(text)
    assert not controlled.looks()
    [told] = controlled.told
    assert "cannot be used; continuing with the old one" in told
    assert f"{tmp_path / 'config.yaml'} {words}" in told
    assert "`orchestrator down`, then `orchestrator up`" in told
    assert controlled.takes("timezone: Europe/Paris\n"), "the next one counts"


def test_the_old_config_that_comes_back_is_no_change(tmp_path: Path) -> None:
    """As after `mv config.yaml x; sleep 7; mv x config.yaml`."""
    path = tmp_path / "config.yaml"
    path.write_text("timezone: Europe/Berlin\n")
    controlled = Controlled(tmp_path)
    path.rename(tmp_path / "x")
    assert not controlled.looks()
    (tmp_path / "x").rename(path)
    assert not controlled.looks()
    assert controlled.told[1:] == ["the config is the old one again"]


def test_a_controller_without_a_config_takes_the_first_one(tmp_path: Path) -> None:
    controlled = Controlled(tmp_path)
    assert not controlled.takes("# nothing yet\n")
    assert not controlled.takes(None)
    assert controlled.told == [], "it has the defaults already"
    assert controlled.takes("timezone: Europe/Berlin\n")


def test_a_home_and_a_reference_of_nobody_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write the whole path"):
        resolve(f"file:{NOBODY}/x", tmp_path)
    with pytest.raises(InputError, match="write the whole path"):
        Client(f"{NOBODY}/x")


def test_a_backup_is_made_with_a_config_that_has_such_a_path(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    ledger_of(tmp_path / "home").close()
    (tmp_path / "home" / "config.yaml").write_text(TYPO[0])
    assert Client(tmp_path / "home").backups.write(tmp_path / "a.tar.gz").files > 0
