"""The local Colab itself: what it takes, and when its machines vanish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import requests

from tests.stand_ins.colab import LocalColab, Settings, local_colab
from tests.waiting import wait_until

COLAB = "https://colab.research.google.com"


class User:
    """Somebody who speaks the protocol by hand."""

    def __init__(self, colab: LocalColab) -> None:
        self.web = requests.Session()
        self.web.trust_env = False
        self.web.proxies = {"https": colab.url}
        self.web.verify = str(colab.ca)
        self.log_in(colab)

    def log_in(self, colab: LocalColab) -> None:
        form = {"grant_type": "refresh_token", "refresh_token": colab.settings.refresh_token}
        answer = self.web.post("https://oauth2.googleapis.com/token", data=form)
        self.web.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def get(self, path: str) -> requests.Response:
        return self.web.get(f"{COLAB}/tun/m/{path}")


def test_it_is_google_only_for_its_own_clients(tmp_path: Path) -> None:
    with local_colab(tmp_path) as colab:
        user = User(colab)
        assert user.get("assignments").text == ')]}\'\n{"assignments": []}'
        with pytest.raises(requests.exceptions.ProxyError):
            user.web.get("https://pypi.org/")
        assert colab.strangers == ["pypi.org"]
        with pytest.raises(requests.exceptions.SSLError):
            user.web.get(f"{COLAB}/tun/m/assignments", verify=True)
        user.web.headers["Authorization"] = "Bearer other"
        assert user.get("assignments").status_code == 401


def test_a_machine_opens_only_to_its_own_token_while_that_lasts(tmp_path: Path) -> None:
    with local_colab(tmp_path, Settings(proxy_seconds=100.0)) as colab:
        machine, other = colab.account.allocate("a", "T4"), colab.account.allocate("b", "T4")
        token = machine.new_token(100.0)
        url = f"{colab.url}{machine.base}/api/contents/content"
        with requests.Session() as web:
            web.trust_env = False
            assert web.get(url, params={"colab-runtime-proxy-token": token}).status_code == 200
            assert (
                web.get(url, headers={"X-Colab-Runtime-Proxy-Token": other.new_token(100.0)}).status_code
                == 401
            )
            assert (
                web.get(url, headers={"X-Colab-Runtime-Proxy-Token": machine.new_token(0.0)}).status_code
                == 401
            )
            colab.vanish(machine.endpoint)
            assert web.get(url, headers={"X-Colab-Runtime-Proxy-Token": token}).status_code == 404
        assert not machine.running()


def test_machines_vanish_by_age_and_with_the_last_unit(tmp_path: Path) -> None:
    with local_colab(tmp_path, Settings(life_seconds=0.2)) as colab:
        colab.account.allocate("a", "T4")
        wait_until(lambda: not colab.account.living(), "the end of a machine's life")
        colab.use(life_seconds=0.0, balance=1.0, hours_per_second=10.0)
        colab.account.allocate("b", "T4")
        wait_until(lambda: not colab.account.living(), "the end of the units")
        assert colab.account.units()["currentBalance"] == 0.0


def test_an_idle_machine_vanishes(tmp_path: Path) -> None:
    """A busy one does not: tests/platforms/test_colab_cli.py."""
    with local_colab(tmp_path, Settings(idle_seconds=0.5)) as colab:
        colab.account.allocate("a", "T4")
        wait_until(lambda: not colab.account.living(), "the idle machine's end")


def test_by_hand(tmp_path: Path) -> None:
    """`make colab-local`."""
    words = [sys.executable, "-m", "tests.stand_ins.colab", "--folder", str(tmp_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "needs no login" in line)
        assert next(line for line in lines if "docs/colab.md" in line)
        process.terminate()
        assert process.wait() == 0
    assert "type: colab" in (tmp_path / "config.yaml").read_text()
    assert (
        tmp_path / "platforms" / "colab" / "cli" / "home" / ".config" / "colab-cli" / "token.json"
    ).stat().st_mode & 0o777 == 0o600
