"""GPUs of a Docker engine: which session gets which, through dockerd's own `--gpus`, and how `info` is read.

The engine is real; its GPUs are a stand-in for NVIDIA's hook (tests/docker_gpus.py). CDI needs a newer engine
than Debian's, so for CDI only the choice is tested, with info documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.offer import Offer, UntilKind
from orchestrator.core.order import Order
from orchestrator.core.session import ABSENT, Sighting
from orchestrator.errors import QuotaExhausted, Rejected, Transient
from orchestrator.platforms import catalog
from orchestrator.platforms.docker import checking, container, gpus
from orchestrator.platforms.docker.container import Found
from orchestrator.platforms.docker.images import Image
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.platform import Finding, Health, Platform
from orchestrator.platforms.retrying import RetryingPlatform
from orchestrator.session.staging import Materials
from tests.conformance.platform_suite import LONG
from tests.conformance.test_platforms import DockerRig, agent, any_order
from tests.docker_engine import PYTHON_IMAGE, Engine, load_python_image, running
from tests.seen import observed
from tests.waiting import PATIENCE, wait_until

__all__ = ["agent"]

# Prints what it was given and stays; SIGTERM ends it.
AGENT = """
import json, os, pathlib, subprocess, sys, threading
root = pathlib.Path(sys.argv[1])
(root / "outbox").mkdir()
said = subprocess.run(["nvidia-smi", "--query-gpu=index,uuid,name,memory.total",
                       "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
seen = {"visible": os.environ.get("NVIDIA_VISIBLE_DEVICES"), "smi": said}
(root / "outbox" / ".tmp-seen").write_text(json.dumps(seen))
(root / "outbox" / ".tmp-seen").rename(root / "outbox" / "seen.json")
threading.Event().wait(3600)
"""


def pause(seconds: float) -> None:
    Event().wait(seconds)


class Box:
    """Several homes on one engine, each with its own platforms."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.client = engine.client()
        for name, text in (("agent.pyz", AGENT), ("bundle.tar.gz", "")):
            (folder / name).write_text(text)
        self.materials = Materials(folder / "bundle.tar.gz", folder / "agent.pyz")

    def platform(self, name: str = "here", home: str = "home", **options: object) -> Platform:
        given = {"host": self.engine.url, "image": PYTHON_IMAGE, "accelerator": "T4", "gpus": ["0", "1"]}
        made = catalog.build(
            name, "docker", given | options, folder=self.folder / home / name, clock=SystemClock()
        )
        return RetryingPlatform(made, sleep=pause, random=Random())

    def order(self, session: str, accelerator: str = "T4", devices: int = 1, platform: str = "here") -> Order:
        order = any_order(session, 10, 1)
        return replace(order, platform=platform, accelerator=accelerator, devices=devices)

    def gpus(self, session: str) -> tuple[str, ...]:
        [found] = container.listed(self.client, session=session)
        return found.gpus

    def seen(self, session: str) -> Mapping[str, str]:
        """The devices that a running session reports."""
        said = wait_until(
            lambda: container.read(self.client, session, "outbox/seen.json", 1 << 16), "what it sees"
        )
        return dict(json.loads(said))


@pytest.fixture
def box(tmp_path: Path, two_t4: Engine) -> Iterator[Box]:
    box = Box(tmp_path, two_t4)
    yield box
    box.client.close()
    two_t4.remove_containers()


def test_what_is_being_removed_holds_no_gpu() -> None:
    labels = {"orchestrator.gpus": "0"}
    states = ("created", "running", "paused", "restarting", "exited", "removing", "dead")
    holders = [each for each in states if gpus.held([Found("1", "a-s01", each, labels)])]
    assert holders == ["created", "running", "paused", "restarting"]


def the_offer(platform: Platform) -> Offer:
    [offer] = platform.survey()
    return offer


# --- Who gets which ---------------------------------------------------------------------------------------


def test_a_session_sees_the_gpu_that_it_was_given_and_no_other(box: Box) -> None:
    platform = box.platform(gpus=["1"])
    order = box.order("a-s01")
    platform.prepare(order, box.materials)
    platform.launch(order)
    seen = box.seen("a-s01")
    assert seen["visible"] == "1"
    assert seen["smi"] == "0, GPU-1, Tesla T4, 15360\n"


def test_the_use_of_its_own_gpu_is_told(tmp_path: Path, two_t4: Engine, agent: Path) -> None:
    rig = DockerRig(tmp_path, agent, two_t4, PYTHON_IMAGE)
    rig.options |= {"accelerator": "T4", "gpus": ["1"], "grace_seconds": 0.001}
    rig.platform = rig.another_controller()
    rig.start(rig.order("a-s01", total=LONG, accelerator="T4"))

    def use() -> GpuUse | None:
        status = rig.see("a-s01").status
        return None if status is None else status.gpu_use

    try:
        found = wait_until(use, "a sample")
    finally:
        rig.close()
    assert (found.gpus, found.percent, found.watts, found.celsius) == (1, 11.0, 60.0, 50.0)


def test_two_orders_at_once_get_different_gpus_and_a_third_is_told_that_none_is_left(box: Box) -> None:
    for number in range(3):
        homes = [box.platform(home=f"home-{side}") for side in "ab"]
        orders = [box.order(f"{side}{number}-s01") for side in "ab"]
        with ThreadPoolExecutor(2) as pool:
            done = [
                pool.submit(home.prepare, order, box.materials)
                for home, order in zip(homes, orders, strict=True)
            ]
            assert [each.result() for each in done] == [None, None]
        assert {box.gpus(order.session) for order in orders} == {("0",), ("1",)}
        with pytest.raises(QuotaExhausted, match="free among 0, 1: none"):
            box.platform().prepare(box.order("c-s01"), box.materials)
        assert container.listed(box.client, session="c-s01") == ()
        for home, order in zip(homes, orders, strict=True):
            home.discard(order.session)


def test_a_gpu_is_free_again_when_its_session_has_ended(box: Box) -> None:
    platform = box.platform(gpus=["0"])
    first, second = box.order("a-s01"), box.order("b-s01")
    platform.prepare(first, box.materials)
    platform.launch(first)
    with pytest.raises(QuotaExhausted):
        platform.prepare(second, box.materials)
    box.client.api.kill("a-s01")
    wait_until(lambda: observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.ENDED, "its end")
    platform.prepare(second, box.materials)
    assert box.gpus("b-s01") == ("0",), "an ended session no longer holds its GPU"


def test_a_session_on_two_gpus(box: Box) -> None:
    pair = box.platform("pair", accelerator="T4x2")
    order = box.order("a-s01", "T4x2", 2, "pair")
    assert the_offer(pair).slots == 1
    pair.prepare(order, box.materials)
    pair.launch(order)
    assert box.seen("a-s01")["visible"] == "0,1"
    single = the_offer(box.platform("single"))
    assert single.unavailable is not None, "another platform of the home holds them"
    assert single.unavailable.until.kind is UntilKind.TIME
    assert the_offer(pair).unavailable is None, "the engine counts its own sessions"


def test_what_another_home_holds_is_no_slot(box: Box) -> None:
    stranger = box.platform(home="elsewhere")
    stranger.prepare(box.order("a-s01"), box.materials)
    mine = box.platform()
    assert the_offer(mine).slots == 1
    mine.prepare(box.order("b-s01"), box.materials)
    assert box.gpus("b-s01") == ("1",)
    assert the_offer(mine).slots == 1


def test_shared_gpus_are_taken_in_turn(box: Box) -> None:
    platform = box.platform(share_gpus=True, slots=3)
    assert the_offer(platform).slots == 3
    for session in ("a-s01", "b-s01", "c-s01"):
        platform.prepare(box.order(session), box.materials)
    assert [box.gpus(session) for session in ("a-s01", "b-s01", "c-s01")] == [("0",), ("1",), ("0",)]


def both_on_gpu_0(box: Box) -> tuple[Order, Order]:
    """The state after a race: each checked the GPU's holder before the other's container existed."""
    orders = box.order("a-s01"), box.order("b-s01")
    image = Image(str(box.client.images.get(PYTHON_IMAGE).id))
    for order in orders:
        plan = container.Plan(
            order, image, DockerOptions(accelerator="T4", gpus=("0",)), f"home-{order.session}", ("0",)
        )
        container.create(box.client, plan, box.materials)
    return orders


def test_of_two_that_chose_the_same_in_one_moment_one_leaves_whole(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(order: Order) -> str:
        client = box.engine.client()
        try:
            gpus.check_alone(client, DockerOptions(accelerator="T4", gpus=("0",)), order, ("0",))
            return order.session
        except Transient:
            return ""
        finally:
            client.close()

    monkeypatch.setattr(gpus, "_LEAVES_SECONDS", PATIENCE)
    with ThreadPoolExecutor(2) as pool:
        stayed = [session for session in pool.map(check, both_on_gpu_0(box)) if session]
    assert len(stayed) == 1
    assert [each.session for each in container.listed(box.client)] == stayed
    assert [each["Name"].partition(".")[0] for each in box.client.api.volumes()["Volumes"]] == stayed


def test_nobody_keeps_a_gpu_beside_one_who_stays(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_LEAVES_SECONDS", 0.3)
    for order in both_on_gpu_0(box):
        with pytest.raises(Transient, match="taken by"):
            gpus.check_alone(box.client, DockerOptions(accelerator="T4", gpus=("0",)), order, ("0",))
        assert container.listed(box.client, session=order.session) == ()
        box.engine.remove_containers()
        both_on_gpu_0(box)


# --- What goes wrong --------------------------------------------------------------------------------------


def test_ids_that_the_engine_does_not_have(box: Box) -> None:
    platform = box.platform(gpus=["7"])
    offer = the_offer(platform)
    assert offer.unavailable is not None
    assert "7: unknown device" in offer.unavailable.reason
    assert offer.unavailable.until.kind is UntilKind.HUMAN
    assert "nvidia-smi -L" in offer.unavailable.until.commands[0]
    order = box.order("a-s01")
    platform.prepare(order, box.materials)
    with pytest.raises(Rejected, match="unknown device"):
        platform.launch(order)
    platform.discard("a-s01")
    assert observed(platform, ["a-s01"]) == {"a-s01": ABSENT}
    assert container.listed(box.client) == ()
    assert not box.client.api.volumes()["Volumes"]


def test_too_few_ids_for_the_accelerator(box: Box) -> None:
    for named in ([], ["0"], ["0", "0"]):
        offer = the_offer(box.platform(accelerator="T4x2", gpus=named))
        assert offer.unavailable is not None
        assert "gpus: ['0', '1']" in offer.unavailable.until.commands[0]


def test_the_memory_is_what_nvidia_smi_says(box: Box) -> None:
    assert the_offer(box.platform()).memory_gb == pytest.approx(16.1, abs=0.01)
    assert box.client.containers.list(all=True) == []


def test_a_gpu_entry_on_an_engine_without_gpus(
    tmp_path: Path, docker_engine: Engine, python_image: str
) -> None:
    box = Box(tmp_path, docker_engine)
    platform = box.platform(image=python_image)
    offer = the_offer(platform)
    assert offer.unavailable is not None
    assert "neither the nvidia runtime nor CDI" in offer.unavailable.reason
    assert any("nvidia-ctk runtime configure" in each for each in offer.unavailable.until.commands)
    order = box.order("a-s01")
    platform.prepare(order, box.materials)
    with pytest.raises(Rejected, match="doctor"):
        platform.launch(order)
    assert [each.state for each in container.listed(box.client, session="a-s01")] == ["created"]
    platform.discard("a-s01")
    assert container.listed(box.client, session="a-s01") == ()
    box.client.close()


def test_a_runtime_without_its_hook_is_no_gpu(tmp_path: Path) -> None:
    with running("--add-runtime", "nvidia=runc") as engine:
        load_python_image(engine)
        offer = the_offer(Box(tmp_path, engine).platform())
    assert offer.unavailable is not None
    assert "could not select device driver" in offer.unavailable.reason
    assert offer.unavailable.until.commands == gpus.HOW_TO_ADD


# --- The checkup ------------------------------------------------------------------------------------------


def about(findings: tuple[Finding, ...], what: str) -> Finding:
    [found] = [each for each in findings if each.what == what]
    return found


def checkup(platform: Platform) -> tuple[Finding, ...]:
    assert isinstance(platform, RetryingPlatform)
    return platform.checkup()


def test_a_checkup_names_the_gpus_and_who_has_them(box: Box) -> None:
    platform = box.platform()
    platform.prepare(box.order("a-s01"), box.materials)
    found = about(checkup(platform), "gpus")
    assert found.health is Health.OK
    assert found.text == "0 Tesla T4, 16.1 GB, in use by a-s01; 1 Tesla T4, 16.1 GB"
    wrong = about(checkup(box.platform("wrong", accelerator="RTX3050")), "gpus")
    assert (wrong.health, wrong.advice) == (Health.WARNING, "set its accelerator to T4")
    unused = about(checkup(box.platform("cpu", accelerator="cpu", gpus=[])), "gpus")
    assert "accelerator: T4, gpus: ['0']" in unused.advice


def test_a_checkup_of_an_engine_without_gpus(
    tmp_path: Path, docker_engine: Engine, python_image: str
) -> None:
    box = Box(tmp_path, docker_engine)
    findings = checkup(box.platform(image=python_image, accelerator="cpu", gpus=[]))
    engine = about(findings, "engine").text
    assert docker_engine.url in engine
    assert "CPUs" in engine
    assert "GB free in" in about(findings, "disk").text
    assert about(findings, "gpus").health is Health.OK
    assert "nvidia-ctk" in about(findings, "gpus").advice
    assert not (tmp_path / "home").exists(), "looking creates nothing"
    box.client.close()


LIMITED = {"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
UNLIMITED = dict.fromkeys(LIMITED, False)
ROOTLESS = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]}


@pytest.mark.parametrize(
    ("info", "options", "told"),
    [
        (LIMITED, DockerOptions(memory_gb=4, cpus=2), []),
        (UNLIMITED, DockerOptions(), [(Health.WARNING, "pids (4096)")]),
        (UNLIMITED, DockerOptions(memory_gb=4), [(Health.WARNING, "pids (4096), memory_gb (4)")]),
        (UNLIMITED, DockerOptions(cpus=2), [(Health.WARNING, "pids"), (Health.MISSING, "cpus (2)")]),
    ],
)
def test_limits_that_do_not_hold(
    info: dict[str, Any], options: DockerOptions, told: list[tuple[Health, str]]
) -> None:
    found = list(checking.limits(options, info))
    assert [each.health for each in found] == [health for health, _ in told]
    assert all(text in each.text for each, (_, text) in zip(found, told, strict=True))
    assert all("Delegate=" in each.advice for each in checking.limits(options, info | ROOTLESS))


# --- What an engine's info means: no engine of ours knows CDI -----------------------------------------------

NVIDIA = {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}}
RUNC = {"runc": {"path": "runc"}}
DEVICES = [{"Source": "cdi", "ID": f"nvidia.com/gpu={each}"} for each in ("0", "1", "GPU-8a1b", "all")]
FOLDERS = ["/etc/cdi", "/var/run/cdi"]


@pytest.mark.parametrize(
    ("info", "gives", "cdi"),
    [
        ({"ServerVersion": "20.10.24+dfsg1", "Runtimes": RUNC}, False, False),
        ({"ServerVersion": "20.10.24", "Runtimes": NVIDIA}, True, False),
        ({"ServerVersion": "29.0.1", "Runtimes": NVIDIA, "DiscoveredDevices": DEVICES}, True, False),
        ({"ServerVersion": "28.3.0", "Runtimes": RUNC, "DiscoveredDevices": DEVICES}, True, True),
        # From 28.2 on, an engine without devices omits the list although it looks for them.
        ({"ServerVersion": "28.3.0", "Runtimes": RUNC, "CDISpecDirs": FOLDERS}, False, False),
        ({"ServerVersion": "28.3.0", "Runtimes": RUNC, "CDISpecDirs": FOLDERS,
          "DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}]}, False, False),
        ({"ServerVersion": "27.5.1", "Runtimes": RUNC, "CDISpecDirs": FOLDERS}, True, True),
        ({"ServerVersion": "27.5.1", "Runtimes": RUNC, "CDISpecDirs": []}, False, False),
        ({"ServerVersion": "dev", "Runtimes": None, "DiscoveredDevices": None}, False, False),
    ],
)  # fmt: skip
def test_how_an_engine_gives_gpus(info: dict[str, Any], gives: bool, cdi: bool) -> None:
    assert (gpus.lack(info) is None) == gives
    assert gpus.by_cdi(info) == cdi


def test_cdi_ids_and_the_request_for_them() -> None:
    assert gpus.cdi_ids({"DiscoveredDevices": DEVICES}) == ("0", "1", "GPU-8a1b")
    request = container.gpu_request(("0", "1"), cdi=True)
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=0", "nvidia.com/gpu=1"])


@pytest.mark.parametrize(
    ("refusal", "way"),
    [
        ("nvidia-container-cli: device error: 7: unknown device", "nvidia-smi -L"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "NVIDIA driver"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7", "nvidia-ctk cdi generate"),
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "nvidia-container-toolkit"),
    ],
)
def test_every_refusal_has_a_way_out(refusal: str, way: str) -> None:
    assert way in " ".join(gpus.way_out(refusal))
