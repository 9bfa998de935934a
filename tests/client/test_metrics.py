"""The controller's metrics: what a scrape gets, who may ask, and that no tick depends on either."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from orchestrator import Client, config
from orchestrator.client.metrics import families, serving
from orchestrator.client.metrics.families import OTHER, SERIES_MAX, Families, Snapshot, bounded
from orchestrator.client.metrics.measuring import Measuring
from orchestrator.client.metrics.serving import CONNECTIONS_MAX, Server, is_allowed
from orchestrator.config import MetricsConfig
from orchestrator.core.event import Submitted
from orchestrator.core.order import Outcome
from orchestrator.errors import SpecError, Transient
from orchestrator.ledger import Ledger
from orchestrator.ledger.journal import Stored
from tests.core.runs import NOW, RUN, ended, job, running
from tests.simulation.clock import VirtualClock
from tests.waiting import PATIENCE, wait_until

DASHBOARD = Path(__file__).parents[2] / "docs" / "examples" / "grafana.json"
NAMES = frozenset({"localhost", "box.local"})


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served(port: int) -> Iterator[list[str]]:
    warned: list[str] = []
    server = Server(MetricsConfig(port), lambda: b"figures\n", warned.append)
    server.ensure()
    try:
        yield warned
    finally:
        server.close()


def asked(port: int, path: str, host: str | None, method: str = "GET") -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_controller_serves_its_figures(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "config.yaml").write_text(
        f"metrics: {{port: {port}}}\nplatforms: {{here: {{type: process, accelerator: cpu}}}}\n"
    )
    found: list[str] = []

    def stopped() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                found.append(answer.read().decode())
        except OSError:
            return False
        return "orchestrator_last_tick" in found[-1] and "orchestrator_ledger_bytes" in found[-1]

    Client(tmp_path).controller.run(stopped=stopped)
    text = found[-1]
    assert re.search(r"^orchestrator_tick_seconds_count [1-9]", text, re.MULTILINE)
    assert 'orchestrator_errors_total{class="unforeseen"} 0.0' in text
    assert "orchestrator_controller_info{" in text
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))  # it is free again


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        (["127.0.0.1:9464"], True), (["[::1]:9464"], True), (["::1"], True), (["localhost"], True),
        (["LOCALHOST:1"], True), (["box.local:9464"], True), (["10.0.0.7"], True),
        (["evil.example"], False), (["localhost.evil.example"], False), (["127.0.0.1.evil.example"], False),
        ([""], False), ([], False), (["localhost", "evil.example"], False), (["1.2.3"], False),
    ],
)  # fmt: skip
def test_only_a_host_that_no_page_can_forge_is_answered(hosts: list[str], allowed: bool) -> None:
    assert is_allowed(hosts, NAMES) is allowed


def test_requests_are_answered_by_their_host_and_path() -> None:
    port = free_port()
    with served(port) as warned:
        assert asked(port, "/metrics", "localhost") == (200, b"figures\n")
        assert asked(port, "/metrics?x=1", "127.0.0.1", "HEAD") == (200, b"")
        assert asked(port, "/metrics", "evil.example")[0] == 403
        assert asked(port, "/metrics", None)[0] == 403
        assert asked(port, "/", "localhost")[0] == 404
        assert asked(port, "/metrics", "localhost", "DELETE")[0] == 501
    assert warned == []


def test_more_clients_than_there_is_room_for_are_closed_and_the_first_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving._Handler, "timeout", 600.0)  # however slow this machine is
    port = free_port()
    with served(port):
        clients = [
            socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(CONNECTIONS_MAX + 2)
        ]
        assert [each.recv(1) for each in clients[CONNECTIONS_MAX:]] == [b"", b""]
        for each in clients[:CONNECTIONS_MAX]:
            each.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert each.makefile("rb").read().endswith(b"figures\n")
        for each in clients:
            each.close()
        wait_until(lambda: _answers(port), "an answer once they are gone")


def _answers(port: int) -> bool:
    try:
        return asked(port, "/metrics", "localhost")[0] == 200
    except OSError:
        return False


def test_a_port_that_is_taken_is_told_once_and_tried_again() -> None:
    port = free_port()
    warned: list[str] = []
    with served(port):
        late = Server(MetricsConfig(port), lambda: b"late\n", warned.append)
        late.ensure()
        late.ensure()
    assert len(warned) == 1
    assert f"port {port} of 127.0.0.1" in warned[0]
    late.ensure()
    assert asked(port, "/metrics", "localhost") == (200, b"late\n")
    late.close()
    late.ensure()
    assert not _answers(port)


def test_a_machine_without_a_thread_left_serves_later_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever closes it waits for a loop; one that never began ends never."""
    warned: list[str] = []
    port = free_port()
    server = Server(MetricsConfig(port), lambda: b"figures\n", warned.append)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        server.ensure()
        server.ensure()
    assert warned == ["metrics are not served: can't start new thread; tried again every 15 seconds"]
    server.ensure()
    assert asked(port, "/metrics", "localhost") == (200, b"figures\n")
    server.close()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        other = Server(MetricsConfig(port), lambda: b"", warned.append)
        other.ensure()
    closing = threading.Thread(target=other.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


class Away(Ledger):
    """Its server is away at first."""

    answers = False

    def entries(self, run: str) -> Iterator[Stored]:
        if not self.answers:
            raise Transient("the server is away", backend="ledger", operation="read")
        return super().entries(run)


def test_a_session_that_ended_while_the_ledger_was_away_is_charged_later(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"metrics: {{port: {free_port()}}}\n")
    with Away.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        record = ledger.submit(Submitted(RUN, job(), NOW))
        ledger.append(record, [*running(), ended(Outcome.LOST)], due_at=None)
        measured = Measuring(config.load(tmp_path), ledger, VirtualClock(NOW), print, lambda: 0)
        measured.told(ledger.record(RUN), ended(Outcome.LOST))
        with pytest.raises(Transient):
            measured._charge()
        ledger.answers = True
        measured._charge()
        assert {platform for platform, _ in measured._used} == {"here"}


def test_hostile_and_countless_names_stay_within_bounds() -> None:
    values: dict[tuple[str, ...], float] = {(f"p{number}", "cpu"): 1.0 for number in range(10 * SERIES_MAX)}
    found = bounded({("a\n}evil{" + "x" * 999, "cpu"): 5.0, **values})
    assert len(found) <= SERIES_MAX + 1
    assert sum(found.values()) == 5.0 + len(values)
    assert found[OTHER, OTHER] > 1
    assert all(len(label) <= 64 and label.isprintable() for labels in found for label in labels)
    made = Families()
    made.publish("one", Snapshot({"sessions": {('"}\n evil 1', "T4"): 1.0}}))
    assert "# HELP orchestrator_sessions " in made.text().decode()
    assert "\n evil" not in made.text().decode()


def test_every_metric_that_is_served_is_in_the_table() -> None:
    made = Families()
    made.publish("one", Snapshot({each.name: {each.labels: 1.0} for each in families.TABLE}))
    served = set(re.findall(r"^# TYPE (\w+) ", made.text().decode(), re.MULTILINE))
    assert served == {families.PREFIX + each for each in (families.TICK, *(f.name for f in families.TABLE))}


def test_every_metric_of_the_dashboard_exists() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["expr"] for each in dashboard["annotations"]["list"]]
    used = {name for query in queries for name in re.findall(r"orchestrator_\w+", query)}
    known = {families.PREFIX + each.name for each in families.TABLE}
    known |= {f"{families.PREFIX}{families.TICK}_{part}" for part in ("bucket", "sum", "count")}
    assert used <= known
    assert len(used) > 10
    labels = {label for each in families.TABLE for label in each.labels} | {"le"}
    assert {label for query in queries for label in re.findall(r"by \((\w+)\)", query)} <= labels
    assert {label for query in queries for label in re.findall(r"\{(\w+)=", query)} <= labels


@pytest.mark.parametrize(
    "given",
    ["{port: 0}", "{port: 70000}", "{}", "{port: 1, address: box}", "{port: 1, hosts: ['a b']}", "9464"],
)
def test_a_wrong_port_or_address_is_told_with_its_line(given: str) -> None:
    with pytest.raises(SpecError, match="metrics"):
        config.parsed(Path("/nowhere"), f"metrics: {given}\n".encode())


def test_metrics_are_off_and_on_loopback_by_default() -> None:
    assert config.parsed(Path("/nowhere"), b"timezone: UTC\n").metrics is None
    found = config.parsed(Path("/nowhere"), b"metrics: {port: 9464}\n").metrics
    assert found == MetricsConfig(9464, "127.0.0.1", ())
