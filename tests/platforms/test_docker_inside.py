"""What a session's container looks like from inside, and what the engine shows of it to others."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.core import wire
from orchestrator.errors import Rejected
from orchestrator.session.staging import Shipping
from orchestrator.stores.portable import Portable
from orchestrator.uplink import archive
from tests.conformance.test_platforms import agent
from tests.platforms.docker_box import LONG, Box, box

__all__ = ["agent", "box"]

SECRET = "a-key-that-nobody-may-see"  # no credential


def status_of(box: Box, pid: str) -> dict[str, str]:
    lines = box.inside("cat", f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_inside_it_is_nobody_and_alone(box: Box) -> None:
    box.run()
    status = status_of(box, "1")
    assert status["Uid"].split() == ["1000"] * 4
    assert [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")] == [0, 0, 0, 0]
    assert status["NoNewPrivs"] == "1"
    assert re.findall(r"^\s*(\w+):", box.inside("cat", "/proc/net/dev"), re.MULTILINE) == ["lo"]


def test_with_internet_it_has_the_network_that_the_config_names(box: Box) -> None:
    box.use(network="host")
    box.run(internet=True)
    host = box.client.api.inspect_container("a-s01")["HostConfig"]
    assert host["NetworkMode"] == "host"
    assert box.inside("cat", "/proc/net/dev").count(":") == Path("/proc/net/dev").read_text().count(":")


def test_its_limits_are_those_of_the_config(box: Box) -> None:
    box.use(memory_gb=0.5, cpus=1.5, pids=77, shm_gb=0.125)
    box.run()
    cgroup = "/sys/fs/cgroup"
    unified = "memory.max" in box.inside("ls", cgroup)
    files = ("memory.max", "pids.max", "cpu.max") if unified else (
        "memory/memory.limit_in_bytes", "pids/pids.max", "cpu/cpu.cfs_quota_us")  # fmt: skip
    memory, pids, cpu = (box.inside("cat", f"{cgroup}/{file}").split()[0] for file in files)
    assert (memory, pids, cpu) == (str(512 << 20), "77", "150000")
    shm = box.inside("sh", "-c", "grep ' /dev/shm ' /proc/mounts")
    assert "size=131072k" in shm


def test_a_bound_on_what_a_container_writes_is_taken_or_refused(box: Box) -> None:
    """Most storage drivers cannot enforce it. Then the session is refused and leaves nothing behind."""
    box.use(image_disk_gb=1.5)
    try:
        box.platform.prepare(box.order("a-s01"), box.materials())
        kept = box.client.api.inspect_container("a-s01")["HostConfig"]["StorageOpt"]
        refused = ""
    except Rejected as error:
        kept, refused = {}, str(error)
    assert kept == {"size": "1.5G"} or ("remove `image_disk_gb`" in refused and box.left() == ([], []))


def test_secrets_are_in_no_place_that_the_engine_shows(box: Box) -> None:
    order = box.order("a-s01", command=LONG, secrets=("TOKEN",))
    box.platform.prepare(order, box.materials_of(secrets={"TOKEN": "s3cret-value"}))
    box.platform.launch(order)
    box.until(lambda: box.see("a-s01").status is not None)
    box.saved()
    shown = box.docker("inspect", "a-s01") + box.docker("volume", "inspect", *box.left()[1])
    shown += box.docker("logs", "a-s01") + box.inside("cat", "/proc/1/environ", "/proc/1/cmdline")
    assert "s3cret-value" not in shown
    assert "no such file" in box.inside("cat", "/orchestrator/session/secrets.json").lower()
    environs = box.inside("sh", "-c", "cat /proc/[0-9]*/environ")
    assert "s3cret-value" in environs  # the training's own


def test_what_opens_the_store_is_in_no_place_that_the_engine_keeps(box: Box, tmp_path: Path) -> None:
    """Before the start it is in the session's volume alone. Afterwards it is in no file at all, and no image
    made of the container has it."""
    program, opens = tmp_path / "uplink.pyz", Portable("s3", {}, {"secret_key": SECRET}, ("s3",))
    program.write_bytes(archive.content())
    box.use(network="host")
    order = box.order("a-s01", command=LONG, internet=True)
    box.platform.prepare(order, box.materials_of(shipping=Shipping(program, wire.encode(opens))))
    changed = box.docker("diff", "a-s01").splitlines()
    assert all("/orchestrator/" not in line for line in changed), changed
    box.platform.launch(order)
    box.until(lambda: box.see("a-s01").status is not None)
    box.saved()
    shown = box.docker("inspect", "a-s01") + box.docker("volume", "inspect", *box.left()[1])
    shown += box.docker("logs", "a-s01")
    shown += box.inside("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline")
    assert "agent.pyz" in shown
    assert SECRET not in shown
    assert box.inside("grep", "-rlFs", SECRET, "/orchestrator", "/tmp") == ""
    box.docker("commit", "a-s01", "tests/committed")
    copy = box.client.api.create_container("tests/committed", entrypoint=["true"])["Id"]
    assert SECRET.encode() not in b"".join(box.client.api.export(copy))
    box.client.api.remove_container(copy)
    box.client.images.remove("tests/committed")


def test_a_removed_session_takes_what_opens_the_store_with_it(box: Box, tmp_path: Path) -> None:
    """Also if it was never started, so that no agent has deleted it."""
    program = tmp_path / "uplink.pyz"
    program.write_bytes(b"")
    order = box.order("a-s01", internet=True)
    shipping = Shipping(program, SECRET.encode())
    box.use(network="host").prepare(order, box.materials_of(shipping=shipping))
    assert box.left()[0] == ["a-s01"]
    box.platform.discard("a-s01")
    assert box.left() == ([], [])
