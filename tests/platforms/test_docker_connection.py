"""Ways to reach an engine, and their faults: sockets, tcp with mutual TLS, docker's variables, contexts."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from docker.errors import APIError

from orchestrator.clock import SystemClock
from orchestrator.core.order import Outcome
from orchestrator.errors import AccessDenied, InputError, Rejected, Transient
from orchestrator.platforms import catalog
from orchestrator.platforms.docker.connection import Connection
from orchestrator.platforms.docker.options import DockerOptions
from tests.conformance.test_platforms import agent
from tests.docker_engine import MISSING, PYTHON_IMAGE, Engine, installed, load_python_image, running
from tests.platforms.docker_box import Box

__all__ = ["agent"]
VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT", "DOCKER_CONFIG")
# The SDK leaves the socket of a failed connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No docker settings of the developer's."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def sockets_collected() -> Iterator[None]:
    """Collects while the filter above is still active."""
    yield
    gc.collect()


def survey(**options: object) -> None:
    folder = Path("/nonexistent")
    catalog.build("here", "docker", options, folder=folder, clock=SystemClock()).survey()


# --- An engine on tcp -------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def authority(folder: Path) -> None:
    """ca.pem, and the files that docker's documentation calls server-cert.pem, server-key.pem, cert.pem,
    key.pem."""
    folder.mkdir()
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test-ca",
            "-keyout", "ca-key.pem", "-out", "ca.pem", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    for prefix, usage in (("server-", "serverAuth"), ("", "clientAuth")):
        key, request, extensions = f"{prefix}key.pem", f"{prefix}request.pem", f"{prefix}extensions"
        openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={usage}", "-keyout", key,
                "-out", request)  # fmt: skip
        (folder / extensions).write_text(
            f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\nauthorityKeyIdentifier=keyid\n"
        )
        openssl(folder, "x509", "-req", "-in", request, "-CA", "ca.pem", "-CAkey", "ca-key.pem",
                "-CAcreateserial", "-days", "2", "-extfile", extensions,
                "-out", f"{prefix}cert.pem")  # fmt: skip


@contextmanager
def on_tcp(*flags: str) -> Iterator[tuple[Engine, str]]:
    if not installed():
        pytest.skip(MISSING)
    host = f"tcp://127.0.0.1:{free_port()}"
    with running("--host", host, *flags) as engine:
        load_python_image(engine)
        yield engine, host


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "ours"
    authority(folder)
    return folder


@pytest.fixture(scope="module")
def secured(certificates: Path) -> Iterator[tuple[Engine, str]]:
    """An engine that only accepts clients with a certificate that its authority has signed."""
    given = {"tlscacert": "ca.pem", "tlscert": "server-cert.pem", "tlskey": "server-key.pem"}
    with on_tcp("--tlsverify", *(f"--{name}={certificates / file}" for name, file in given.items())) as found:
        yield found


def tls(folder: Path) -> dict[str, str]:
    return {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}


def live(tmp_path: Path, agent: Path, engine: Engine, **options: object) -> None:
    """A whole session over this connection: prepare, launch, observe, collect, discard."""
    box = Box(tmp_path / "rig", agent, engine, PYTHON_IMAGE)
    del box.options["host"]
    box.use(**options)
    order = box.order("a-s01")
    box.start(order)
    result = box.until_ended("a-s01").result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED
    assert box.collect("a-s01").manifests[-1].ref.step == order.steps_total
    box.platform.discard("a-s01")
    assert box.left() == ([], [])
    box.client.close()


@pytest.fixture
def rig_folder(tmp_path: Path) -> Path:
    (tmp_path / "rig").mkdir()
    return tmp_path


def test_a_life_over_tls(
    rig_folder: Path, agent: Path, secured: tuple[Engine, str], certificates: Path
) -> None:
    engine, host = secured
    live(rig_folder, agent, engine, host=host, tls=tls(certificates))


def test_the_webs_authorities_do_not_take_the_engines_place(
    secured: tuple[Engine, str], certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(certificates / "server-cert.pem"))
    survey(host=secured[1], tls=tls(certificates))
    assert place(host=secured[1]) == secured[1]


def test_a_life_by_dockers_variables(
    rig_folder: Path, agent: Path, secured: tuple[Engine, str], certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    engine, host = secured
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    live(rig_folder, agent, engine)


def make_context(folder: Path, name: str, host: str, certificates: Path) -> None:
    """Made with docker's own command line, or without it as the files that it would write."""
    if shutil.which("docker") is not None:
        given = ",".join(f"{key}={value}" for key, value in tls(certificates).items())
        words = ["context", "create", name, "--docker", f"host={host},{given}"]
        subprocess.run(["docker", "--config", str(folder), *words], check=True, capture_output=True)
        return
    key = hashlib.sha256(name.encode()).hexdigest()
    meta, secret = folder / "contexts/meta" / key, folder / "contexts/tls" / key / "docker"
    meta.mkdir(parents=True)
    secret.mkdir(parents=True)
    endpoint = {"Host": host, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(
        json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}})
    )
    for path in tls(certificates).values():
        shutil.copy(path, secret)


def test_a_life_by_a_context(
    rig_folder: Path, agent: Path, secured: tuple[Engine, str], certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    engine, host = secured
    settings = rig_folder / "settings"
    make_context(settings, "gpu-box", host, certificates)
    monkeypatch.setenv("DOCKER_CONFIG", str(settings))
    live(rig_folder, agent, engine, context="gpu-box")


def test_the_current_context_and_its_variable_are_docker_s(
    tmp_path: Path, secured: tuple[Engine, str], certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_context(tmp_path / ".docker", "gpu-box", secured[1], certificates)
    assert place() == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_CONTEXT", "gpu-box")
    assert place() == secured[1]
    survey()
    monkeypatch.delenv("DOCKER_CONTEXT")
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"currentContext": "gpu-box"}))
    assert place() == secured[1]
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")  # wins, as with docker itself
    assert place() == "unix:///elsewhere.sock"
    assert place(context="default") == "unix:///var/run/docker.sock"


def place(**options: object) -> str:
    return Connection("here", DockerOptions.model_validate(options)).place


# --- Faults -----------------------------------------------------------------------------------------------


def test_a_certificate_of_another_authority_is_denied(
    tmp_path: Path, secured: tuple[Engine, str], certificates: Path
) -> None:
    authority(tmp_path / "others")
    with pytest.raises(
        AccessDenied,
        match=r"TLS with tcp://127\S+ failed: certificate verify failed: [^(]*; check that `ca`",
    ):
        survey(host=secured[1], tls=tls(tmp_path / "others"))
    mixed = tls(tmp_path / "others") | {"ca": str(certificates / "ca.pem")}
    with pytest.raises(AccessDenied, match="TLS with"):
        survey(host=secured[1], tls=mixed)


def test_plain_tcp_works_where_the_engine_speaks_it(
    rig_folder: Path, agent: Path, certificates: Path
) -> None:
    with on_tcp() as (engine, host):
        live(rig_folder, agent, engine, host=host)
        with pytest.raises(AccessDenied, match="the port is its TLS port"):
            survey(host=host, tls=tls(certificates))


def test_plain_words_to_a_tls_port_are_answered_with_why(secured: tuple[Engine, str]) -> None:
    with pytest.raises(AccessDenied, match="set `tls`"):
        survey(host=secured[1])


def test_an_unknown_context_names_the_known_ones(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_context(tmp_path / "settings", "gpu-box", "tcp://127.0.0.1:1", certificates)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "settings"))
    with pytest.raises(InputError, match="unknown docker context 'gpubox'; valid: default, gpu-box"):
        survey(context="gpubox")


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path}/ca\.pem.*no such file"):
        survey(host="tcp://127.0.0.1:1", tls={name: f"~/{name}.pem" for name in ("ca", "cert", "key")})
    with pytest.raises(InputError, match=r"ca\.pem.*no such file"):
        survey(host="tcp://127.0.0.1:1", tls=tls(tmp_path))


def test_an_engine_that_is_not_there_is_transient(tmp_path: Path) -> None:
    with pytest.raises(Transient, match=r"unix:///.*does not answer: No such file"):
        survey(host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(Transient, match=r"does not answer: Connection refused$"):
        survey(host=f"tcp://127.0.0.1:{free_port()}")


def test_no_right_to_use_the_socket_is_said(docker_engine: Engine) -> None:
    mode = docker_engine.folder.stat().st_mode
    docker_engine.folder.chmod(0o755)  # so that the socket refuses
    os.seteuid(65534)
    try:
        with pytest.raises(AccessDenied, match="usermod -aG docker"):
            survey(host=docker_engine.url)
    finally:
        os.seteuid(0)
        docker_engine.folder.chmod(mode)


def test_a_bound_that_the_engines_storage_cannot_keep_is_rejected_with_the_way_out() -> None:
    """With the engine's own message, which comes with HTTP 500."""
    reply = requests.Response()
    reply.status_code = 500
    words = "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"
    connection = Connection("here", DockerOptions(host="unix:///x"))
    with pytest.raises(Rejected, match="remove `image_disk_gb`"), connection.told("prepare"):
        raise APIError("500 Server Error", response=reply, explanation=words)


def test_engines_over_ssh_come_later() -> None:
    with pytest.raises(InputError, match="ssh -nNT -L"):
        survey(host="ssh://somebody@gpu-box")


@pytest.mark.parametrize(
    "host", ["", "nonsense", "/var/run/docker.sock", "tcp://gpu-box", "unix://", "fd://"]
)
def test_an_address_that_is_none_is_not_tried_again(host: str) -> None:
    with pytest.raises(
        InputError, match=r"'here'.* is not the address of an engine; valid: unix:///PATH, tcp://"
    ):
        survey(host=host)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="give one of them"):
        survey(host="unix:///x", context="y")
    with pytest.raises(InputError, match="accelerator"):
        survey(gpus=["0"])
    with pytest.raises(InputError, match="tcp://"):
        survey(host="unix:///x", tls={"ca": "a", "cert": "b", "key": "c"})
