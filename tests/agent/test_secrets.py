"""A real session whose command leaks its secrets: nothing that leaves the session contains them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from orchestrator.core.order import Outcome
from tests.agent.sessions import PATIENCE, session
from tests.leaks import Leaks

TOKEN = "hf_AbCdEf0123456789-of+nobody"
LINES = [base64.b64encode(bytes([line] * 48)).decode() for line in range(9)]
KEY = "\n".join(["-----BEGIN PRIVATE KEY-----", *LINES, "c2hvcnQ=", "-----END PRIVATE KEY-----", ""])


def test_no_secret_leaves_the_session_in_any_writing(tmp_path: Path) -> None:
    given = {"TOKEN": TOKEN, "KEY": KEY}
    with session(tmp_path, "leak.py", values=given, secrets=("TOKEN", "KEY")) as stay:
        result = stay.live()
        assert result.outcome is Outcome.CRASHED
        assert result.message == "exit code 1: no access with ***, nor with ***"
        assert result.tail.splitlines()[-1] == "no access with ***, nor with ***"
        log = stay.log()
        for line in LINES[0], "c2hvcnQ=":
            assert f"   > {line}" not in log
        assert log.count("   > ***") == len(LINES) + 1
        assert "-----BEGIN PRIVATE KEY-----" in log, "the kind of the key may be shown"
        [manifest] = stay.manifests()
        assert (manifest.metrics["***"], manifest.metrics["score"]) == (1.0, 3.0)
        status = stay.status()
        assert status is not None
        assert any("which is neither a file nor a folder" in warning for warning in status.warnings)
        progress = (tmp_path / "outbox" / "progress.jsonl").read_text().splitlines()
        assert json.loads(progress[0]) == {"step": 1, "note": "***", "metrics": {"***": 1.0, "loss": 0.5}}
        assert status.step == 1
        told = _telling()
        for path in (each for each in (tmp_path / "outbox").rglob("*") if each.is_file()):
            if path.parent.name != "blobs":  # a checkpoint's files are the script's own
                assert not {text for text in told if text in path.read_bytes()}, path.name


def test_secrets_are_gone_from_the_disk_even_if_nothing_else_can_be_read(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", values={"TOKEN": TOKEN}, secrets=("TOKEN",)) as stay:
        for name, text in (("order.json", "no order"), ("uplink.pyz", ""), ("store.json", f'"{TOKEN}"')):
            (tmp_path / name).write_text(text)
        leaks = Leaks({"token": TOKEN})
        assert [leak.where for leak in leaks.in_folder(tmp_path)] == ["secrets.json", "store.json"]
        assert stay.live().message.startswith("order.json cannot be read")
        assert leaks.in_folder(tmp_path) == []


def _telling() -> set[bytes]:
    """Pieces of the secrets and of their encodings, each long enough that it cannot occur by chance."""
    found = set()
    for secret in (TOKEN, *LINES):
        raw = secret.encode()
        found |= {raw, raw[:12], raw[-12:], raw.hex().encode()}
        found |= {base64.b64encode(b"x" * n + raw)[4:16] for n in range(3)}
    whole = base64.b64encode(KEY.encode())
    inside = len("-----BEGIN PRIVATE KEY-----\n") * 4 // 3 + 4
    return found | {whole[at : at + 16] for at in range(inside, len(whole) - inside - 16)}


def test_a_bug_of_the_agent_tells_no_secret_on_standard_error(tmp_path: Path) -> None:
    """The agent's own output, which a platform keeps as the log of a container or kernel."""
    given = {"TOKEN": "hunter2\0hunter2"}
    with session(tmp_path, "train.py", values=given, secrets=("TOKEN",)) as stay:
        agent = stay.start()
        output, _ = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 0
        assert "hunter2" not in output
        for path in (each for each in (tmp_path / "outbox").rglob("*") if each.is_file()):
            assert b"hunter2" not in path.read_bytes()
