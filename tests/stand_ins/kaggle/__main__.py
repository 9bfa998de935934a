"""Runs the local Kaggle: `python -m tests.stand_ins.kaggle --folder F --port P`, or `make kaggle-local`.

It serves in the foreground until Ctrl-C, with a wall and a quota of minutes, and writes a config for the
orchestrator. It needs no account and reaches nothing outside this machine.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from tests.stand_ins.kaggle import Settings, local_kaggle

# The platform's times, in proportion to the short wall. Its options explain each of them.
_CONFIG = """\
# Written by the local Kaggle; edit it as you like.
platforms:
  kaggle: {{type: kaggle, endpoint: "{url}", username: {username}, key_file: "{key_file}",
    session_seconds: {wall:g}, tpu_session_seconds: {wall:g}, wall_margin_seconds: {margin:g},
    slack_seconds: 20, visibility_seconds: 2, poll_seconds: 1, setup_seconds: 5, report_seconds: 1,
    ready_seconds: 30, publish_seconds: 2}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stand_ins.kaggle", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder for files, the key and the config")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--wall-seconds", type=float, default=60, help="limit of a session (default: %(default)s)"
    )
    parser.add_argument(
        "--quota-seconds", type=float, default=300, help="seconds of GPU and TPU sessions per window"
    )
    parser.add_argument("--window-seconds", type=float, default=900, help="time until the quota starts again")
    asked = parser.parse_args()
    settings = Settings(
        wall_seconds=asked.wall_seconds,
        tpu_wall_seconds=asked.wall_seconds,
        gpu_quota_seconds=asked.quota_seconds,
        tpu_quota_seconds=asked.quota_seconds,
        window_seconds=asked.window_seconds,
        visible_seconds=1,
        ready_seconds=2,
        publish_seconds=2,
    )
    folder: Path = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with local_kaggle(folder / "kaggle", settings, port=asked.port) as kaggle:
        print(f"Kaggle on this machine: {kaggle.url}, until Ctrl-C. Then all its state is lost.")
        quota = f"{asked.quota_seconds:g} s in {asked.window_seconds:g} s"
        print(f"Sessions of at most {asked.wall_seconds:g} s, an accelerator quota of {quota}")
        print(f"\n{_config(folder, kaggle.url, settings)}\nin another terminal:")
        print(f"  .venv/bin/submit --home {asked.folder} jobs/graphmer_demo.yaml --follow --platform kaggle")
        print(f"  .venv/bin/orchestrator --home {asked.folder} quota", flush=True)
        stop.wait()


def _config(folder: Path, url: str, settings: Settings) -> str:
    """The config in the folder. Writes it if there is none, with the key in a separate file."""
    key_file, config = folder / "key", folder / "config.yaml"
    key_file.write_text(settings.key)
    key_file.chmod(0o600)
    if not config.exists():
        config.write_text(
            _CONFIG.format(
                url=url,
                username=settings.username,
                key_file=key_file,
                wall=settings.wall_seconds,
                margin=settings.wall_seconds / 4,
            )
        )
    return config.read_text()


if __name__ == "__main__":
    main()
