"""Runs the local Colab: `python -m tests.stand_ins.colab --folder F --port P`, or `make colab-local`.

It serves in the foreground until Ctrl-C, with machines and units that end after minutes, and writes a config
for the orchestrator and a login. It needs no account and reaches nothing outside this machine. The real
command line runs against it.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from orchestrator.files.drafts import write_whole
from orchestrator.platforms.colab.environment import Environment, make_home
from tests.stand_ins.colab import LocalColab, Settings, local_colab

# The platform's times, in proportion to the short lives here. Its options explain each of them.
_CONFIG = """\
# Written by the local Colab; edit it as you like.
platforms:
  colab: {{type: colab, proxy: "{url}", ca_file: "{ca}", accelerators: [cpu, T4],
    session_seconds: {life:g}, wall_margin_seconds: {margin:g}, slack_seconds: 20, visibility_seconds: 2,
    absence_seconds: 5, poll_seconds: 2, setup_seconds: 5, linger_seconds: 20, grace_seconds: 20}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stand_ins.colab", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder for files, the login and the config"
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--life-seconds", type=float, default=120, help="a machine vanishes at this age")
    parser.add_argument("--units", type=float, default=20, help="compute units; a T4 takes 1.2 an hour")
    parser.add_argument(
        "--faster", type=float, default=60, help="how much faster units are spent than in truth"
    )
    asked = parser.parse_args()
    settings = Settings(
        life_seconds=asked.life_seconds,
        balance=asked.units,
        hours_per_second=asked.faster / 3600,
        idle_seconds=60,
    )
    folder: Path = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with local_colab(folder / "colab", settings, port=asked.port) as colab:
        print(f"Colab on this machine: {colab.url}, until Ctrl-C. Then all its machines are gone.")
        print(f"Machines of at most {asked.life_seconds:g} s, {asked.units:g} compute units")
        print("It needs no login: `orchestrator colab login` would ask at the real Google")
        print(f"\n{_config(folder, colab, asked.life_seconds)}\nin another terminal:")
        print(f"  .venv/bin/orchestrator --home {asked.folder} quota")
        print(f"  .venv/bin/submit --home {asked.folder} jobs/graphmer_demo.yaml --follow --platform colab")
        print("The first of them installs Google's command line, which takes a minute or more and 260 MB;")
        print("a machine's first start installs 130 MB more. Both are in your cache folder, and stay there")
        print("docs/colab.md says what each of these means", flush=True)
        stop.wait()


def _config(folder: Path, colab: LocalColab, life_seconds: float) -> str:
    """The config in the folder, with a login beside it. Writes them if there are none."""
    environment = Environment(folder / "platforms" / "colab" / "cli", proxy=colab.url, ca_file=colab.ca)
    make_home(environment.home)
    write_whole(environment.token, colab.login().encode())
    config = folder / "config.yaml"
    if not config.exists():
        config.write_text(
            _CONFIG.format(url=colab.url, ca=colab.ca, life=life_seconds, margin=life_seconds / 4)
        )
    return config.read_text()


if __name__ == "__main__":
    main()
