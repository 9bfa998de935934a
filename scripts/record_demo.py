"""Records docs/_static/demo.svg: a run crosses the ends of its sessions, and a kill -9 of its controller.

    python3 -m venv /tmp/recorder
    /tmp/recorder/bin/pip install asciinema==2.4.0 termtosvg-ng==1.4.1
    .venv/bin/python scripts/record_demo.py --tools /tmp/recorder/bin

Decides what is typed and what is waited for. All that the recording shows is real: a shell, the commands, a
training without torch, sessions of ten seconds. The tools are used here only, so no list of ours has them.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "_static" / "demo.svg"
COLUMNS, ROWS = 76, 20
MARGIN = 10  # around the text, in the picture's units
BYTES_MAX = 150_000
IDLE_SECONDS = 0.7  # a longer pause is shown as one of this length
FRAME_MILLISECONDS = 420
PATIENCE_SECONDS = 120.0
PLAYED = "played"
PROMPT = r"\$ $"

CONFIG = """\
platforms:
  here:
    type: process
    accelerator: cpu
    python: /usr/bin/python3
    session_seconds: 10
    setup_seconds: 1
    slack_seconds: 5
"""
JOB = """\
name: pi
source: code
command: python pi.py {steps}
work: {total: 1200, global_batch: 1}
checkpoint: {interval: 2s}
profiles: {cpu: {micro_batch: 1, precision: fp32}}
"""
TRAINING = '''\
"""Adds up a series for pi: a training in which every step counts, and none may count twice."""
import json, os, signal, sys, time
from pathlib import Path

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
folder, total, done, pi = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"]), int(sys.argv[1]), 0, 0.0
if resume := os.environ.get("ORCHESTRATOR_RESUME_FROM"):
    done, pi = json.loads(Path(resume, "state.json").read_text())
for step in range(done + 1, total + 1):
    pi += 4 * (-1) ** (step - 1) / (2 * step - 1)
    time.sleep(0.025)
    if step % 10 == 0:
        with open(os.environ["ORCHESTRATOR_PROGRESS"], "a") as report:
            print(json.dumps({"step": step, "metrics": {"pi": pi}}), file=report)
    if stop or step % 40 == 0 or step == total:
        building = folder / f".tmp-{step}"
        building.mkdir(parents=True, exist_ok=True)
        (building / "state.json").write_text(json.dumps([step, pi]))
        building.rename(folder / f"step-{step}")
    if stop and step < total:
        sys.exit(75)
'''


class Terminal:
    """A shell in a terminal of its own, whose output is copied to ours."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._seen = ""
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], variables)
        subprocess.run(["stty", "rows", str(ROWS), "columns", str(COLUMNS)], stdin=self._file, check=True)
        self.expect(PROMPT)

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits until the new output has this. Raises SystemExit if it does not come."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if match := re.search(pattern, self._seen):
                self._seen = self._seen[match.end() :]
                return match
            if select.select([self._file], [], [], 0.5)[0]:
                data = os.read(self._file, 65536)
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                self._seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", data.decode(errors="replace"))
        raise SystemExit(f"record: {pattern!r} did not come; seen: {self._seen[-2000:]}")

    def type(self, text: str) -> None:
        """Types a line, and waits until the terminal shows it."""
        for letter in text:
            os.write(self._file, letter.encode())
            self.expect(re.escape(letter))
        os.write(self._file, b"\n")

    def interrupt(self) -> None:
        os.write(self._file, b"\x03")
        self.expect(PROMPT)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)


def controller(folder: Path) -> int:
    """The process of the controller of this home, and of no other."""
    asked = [str(ROOT / ".venv/bin/orchestrator"), "--home", str(folder / "home"), "health", "--json"]
    found = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    return int(found["controller"]["pid"])


def play(folder: Path) -> None:
    """What the recording shows."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
    shell = Terminal(
        folder, kept | {"PS1": "$ ", "TERM": "xterm-256color", "ORCHESTRATOR_HOME": str(folder / "home")}
    )
    shell.type("cat job.yaml")
    shell.expect(PROMPT)
    shell.type("submit job.yaml --follow          # its sessions end after 10 seconds")
    shell.expect(r"s02 on here.*ends in 0:0[1-5]")
    shell.interrupt()
    shell.type(f"kill -9 {controller(folder)}                    # the controller, in the middle of it")
    shell.expect(PROMPT)
    shell.type("orchestrator up --detach          # a new one")
    shell.expect(PROMPT)
    shell.type("orchestrator show pi --follow")
    shell.expect(rf"done in(.*\n)*{PROMPT}")
    shell.type("orchestrator pull pi -o result && cat result/state.json && echo")
    shell.expect(rf"\[1200, .*\n{PROMPT}")
    shell.close()
    (folder / PLAYED).touch()


def record(tools: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name)
        (folder / "home").mkdir(mode=0o700)
        (folder / "code").mkdir()
        (folder / "home" / "config.yaml").write_text(CONFIG, encoding="utf-8")
        (folder / "job.yaml").write_text(JOB, encoding="utf-8")
        (folder / "code" / "pi.py").write_text(TRAINING, encoding="utf-8")
        cast = folder / "demo.cast"
        variables = os.environ | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}", "PYTHONUTF8": "1"}
        playing = f"{sys.executable} {Path(__file__)} --play {folder}"
        size = ["--cols", str(COLUMNS), "--rows", str(ROWS)]
        command = [str(tools / "asciinema"), "rec", "--quiet", "--overwrite", *size, "--idle-time-limit",
                   str(IDLE_SECONDS), "-c", playing, str(cast)]  # fmt: skip
        try:
            subprocess.run(command, check=True, env=variables, stdin=subprocess.DEVNULL)
        finally:
            home = ["--home", str(folder / "home")]
            subprocess.run([str(ROOT / ".venv/bin/orchestrator"), *home, "down"], stdout=subprocess.DEVNULL)
        if not (folder / PLAYED).exists():
            raise SystemExit(
                f"record: it was not played to its end:\n{cast.read_text(encoding='utf-8')[-2000:]}"
            )
        drawn = folder / "demo.svg"
        render = [str(tools / "termtosvg"), "render", str(cast), str(drawn), "-t", "base16_default_dark",
                  "-m", str(FRAME_MILLISECONDS), "-M", "2500", "-D", "4000"]  # fmt: skip
        subprocess.run(render, check=True)
        text = with_margin(still_without_animation(drawn.read_text(encoding="utf-8")))
    if len(text.encode()) > BYTES_MAX:
        raise SystemExit(
            f"record: {len(text.encode()):,} bytes, {BYTES_MAX:,} at most; raise FRAME_MILLISECONDS"
        )
    target.write_text(text, encoding="utf-8")
    print(f"record: {target}, {len(text.encode()):,} bytes")


def still_without_animation(svg: str) -> str:
    """The picture with its last frame where nothing moves: for a viewer without animations, or a reader who
    wants none. Without the names of other servers, which nothing is loaded from."""
    last = re.findall(r"translateY\((-?\d+)px\)", svg)[-1]
    still = f"""
            #screen_view {{ transform: translateY({last}px); }}
            @media (prefers-reduced-motion: reduce) {{ #screen_view {{ animation: none !important; }} }}
"""
    head, mark, rest = svg.partition('<style type="text/css" id="user-style">')
    svg = re.sub(r"\(source: http[^)]*\)", "", f"{head}{mark}{still}{rest}")
    title = "A run crosses the ends of its sessions, and goes on after its controller was killed"
    return re.sub(r"(<svg [^>]*>)", rf"\1<title>{title}</title>", svg, count=1)


def with_margin(svg: str) -> str:
    """The picture with room between its text and its edges."""

    def wider(found: re.Match[str]) -> str:
        width, height = (int(size) + 2 * MARGIN for size in found.groups())
        return f'viewBox="-{MARGIN} -{MARGIN} {width} {height}" width="{width}"'

    svg, resized = re.subn(r'viewBox="0 0 (\d+) (\d+)" width="\1"', wider, svg, count=1)
    ground = f'<rect class="background" x="-{MARGIN}" y="-{MARGIN}" width="100%" height="100%"/>'
    svg, grounded = re.subn(r'(?=<svg id="screen")', ground, svg, count=1)
    if not (resized and grounded):
        raise SystemExit("record: the picture has another form than expected; see with_margin")
    return svg


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Records docs/_static/demo.svg.")
    parser.add_argument("--tools", type=Path, help="the folder with asciinema and termtosvg")
    parser.add_argument("--play", type=Path, help="only play what is recorded, in this folder")
    parser.add_argument("--output", type=Path, default=TARGET, help="the file to write")
    given = parser.parse_args(words)
    if given.play is not None:
        play(given.play)
    elif given.tools is None:
        parser.error("--tools is missing; the head of this file says how to install them")
    else:
        record(given.tools, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
