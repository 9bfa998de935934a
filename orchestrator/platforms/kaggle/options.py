"""What a user may set about their Kaggle account."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from orchestrator.platforms.uplink_options import UplinkOptions
from orchestrator.user import expanded

HOUR = 3600.0
PRODUCTION = "https://api.kaggle.com"
MIB = 1 << 20


class KaggleOptions(UplinkOptions):
    """Sessions as private kernels of one account.

    Without `username`, the credentials are kaggle's own: its variables, ~/.kaggle/access_token or
    ~/.kaggle/kaggle.json. With it, `key_file` or `token_file` contains the API key or token and nothing else.
    `accelerators` are offered to jobs. Kaggle ends a session after `session_seconds`, or on a TPU after
    `tpu_session_seconds`. Sessions end by themselves `wall_margin_seconds` before that. `internet`: the
    account is verified by phone. Jobs with secrets run only with `send_secrets`, because secrets travel in a
    private dataset. A checkpoint of `hand_over_bytes` or more is read from the output of the kernel that
    wrote it, if that still exists; a smaller one is always uploaded. With `mount_inputs`, inputs that are
    data sets of Kaggle are mounted there and not uploaded.

    With `uplink`, what opens the home store travels in a private dataset of its own, which is deleted once
    the session has ended. Such a session may take `grace_seconds` to save and leave when it is asked to stop,
    and what it had not shipped at its end is waited for at most `unshipped_seconds`.
    Figures: docs/references/kaggle.md#limits
    """

    username: str | None = Field(default=None, min_length=1)
    key_file: Path | None = None
    token_file: Path | None = None
    endpoint: str = Field(default=PRODUCTION, pattern=r"https?://\S+[^/]")
    accelerators: tuple[str, ...] = Field(default=("T4x2", "T4", "TPUv5e-8", "cpu"), min_length=1)
    internet: bool = True
    send_secrets: bool = False
    gpu_slots: int = Field(default=2, ge=1)
    tpu_slots: int = Field(default=1, ge=1)
    cpu_slots: int = Field(default=5, ge=1)
    threads: int = Field(default=4, ge=1)
    session_seconds: float = Field(default=12 * HOUR, gt=0)
    tpu_session_seconds: float = Field(default=9 * HOUR, gt=0)
    wall_margin_seconds: float = Field(default=0.75 * HOUR, ge=0)
    slack_seconds: float = Field(default=0.5 * HOUR, ge=0)
    visibility_seconds: float = Field(default=600.0, gt=0)
    absence_seconds: float = Field(default=0.5 * HOUR, ge=0)
    poll_seconds: float = Field(default=45.0, gt=0)
    setup_seconds: float = Field(default=300.0, ge=0)
    report_seconds: float = Field(default=30.0, gt=0)
    ready_seconds: float = Field(default=1800.0, gt=0)
    listed_seconds: float = Field(default=300.0, ge=0)
    mount_seconds: float = Field(default=300.0, ge=0)
    mount_inputs: bool = True
    publish_seconds: float = Field(default=HOUR, ge=0)
    saving_seconds: float = Field(default=HOUR, ge=0)  # 20 GB at 110 s/GB, plus 60 %
    hand_over_bytes: int = Field(default=64 * MIB, ge=0)
    uplink_silence_seconds: float = Field(default=900.0, ge=1)
    grace_seconds: float = Field(default=300.0, ge=0)
    unshipped_seconds: float = Field(default=600.0, ge=0)

    @field_validator("key_file", "token_file")
    @classmethod
    def _anywhere(cls, path: Path | None) -> Path | None:
        if path is not None and not expanded(path).is_absolute():
            raise ValueError("write an absolute path, or one that begins with ~/")
        return path

    @model_validator(mode="after")
    def _whole(self) -> Self:
        files = [each for each in (self.key_file, self.token_file) if each is not None]
        if (self.username is None) != (not files) or len(files) > 1:
            raise ValueError("set username together with one of key_file and token_file")
        if self.uplink and not self.internet:
            raise ValueError(
                "an uplink needs the internet: set `uplink: false`, or verify the account by phone"
            )
        if min(self.session_seconds, self.tpu_session_seconds) <= self.wall_margin_seconds:
            raise ValueError("wall_margin_seconds is not shorter than a session: set a smaller one")
        return self
