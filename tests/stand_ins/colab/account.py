"""What the local Colab answers: its one account, the machines of that, and their units.

Decides allocation, listing, tokens, units, and when a machine vanishes. HTTP is in server.py. The protocol is
in docs/references/colab.md, and each behaviour cites its heading.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.stand_ins.colab.machine import Machine
from tests.stand_ins.colab.settings import Settings

VARIANTS = {"NONE": 0, "T4": 1, "L4": 1, "G4": 1, "A100": 1, "H100": 1, "V5E1": 2, "V6E1": 2}


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(str(status))
        self.status = status
        self.body = body or {}


@dataclass
class Account:
    folder: Path
    settings: Settings
    machines: dict[str, Machine] = field(default_factory=dict)  # by endpoint; also those that are gone
    allocated: list[str] = field(default_factory=list)  # the notebook of every machine ever made
    python: Path = Path()
    url: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self.access: dict[str, float] = {}
        self._xsrf: set[str] = set()
        self._spent, self._counted = 0.0, time.monotonic()

    # --- Login: docs/references/colab.md#tokens ---------------------------------------------------------

    def token(self, form: Mapping[str, str]) -> dict[str, Any]:
        settings = self.settings
        granted = {
            "refresh_token": form.get("refresh_token") == settings.refresh_token,
            "authorization_code": form.get("code") == settings.code,
        }.get(form.get("grant_type", ""), False)
        if settings.login_is_refused:
            raise Refusal(400, {"error": settings.login_is_refused})
        if settings.login_is_revoked or not granted:
            raise Refusal(400, {"error": "invalid_grant", "error_description": "Bad Request"})
        made = f"ya29.{secrets.token_urlsafe(12)}"
        self.access[made] = time.monotonic() + settings.access_seconds
        answer = {"access_token": made, "expires_in": int(settings.access_seconds), "token_type": "Bearer"}
        scope = {"scope": settings.scopes} if settings.scopes is not None else {}
        return answer | scope | {"refresh_token": settings.refresh_token}

    def check(self, authorization: str) -> None:
        if self.access.get(authorization.removeprefix("Bearer "), 0.0) < time.monotonic():
            raise Refusal(401)

    # --- Machines ---------------------------------------------------------------------------------------

    def living(self) -> list[Machine]:
        return [each for each in self.machines.values() if each.gone is None]

    def of_notebook(self, notebook: str) -> Machine | None:
        return next((each for each in self.living() if each.notebook == notebook), None)

    def get_assign(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The notebook's machine, or what a POST needs. docs/references/colab.md#allocating"""
        with self._lock:
            machine = self.of_notebook(query["nbh"])
            if self.settings.notebooks_are_ignored:
                machine = next(iter(self.living()), None)
            if machine is not None and not self.settings.notebooks_are_forgotten:
                return {"endpoint": machine.endpoint, "runtimeProxyInfo": self._proxy(machine)}
            token = secrets.token_urlsafe(8)
            self._xsrf.add(token)
            variant = query.get("variant", "DEFAULT")
            return {
                "acc": query.get("accelerator", "NONE"),
                "nbh": query["nbh"],
                "token": token,
                "variant": variant,
            }

    def post_assign(self, query: Mapping[str, str], xsrf: str) -> dict[str, Any]:
        settings = self.settings
        threading.Event().wait(settings.assign_seconds)
        with self._lock:
            if xsrf not in self._xsrf:
                raise Refusal(403)
            if settings.outcome is not None:
                return {"outcome": settings.outcome}
            asked = query.get("accelerator", "NONE")
            if asked != "NONE" and asked not in (*settings.gpus, *settings.tpus):
                raise Refusal(400)
            if asked in settings.none_left or len(self.living()) >= settings.machines_max:
                raise Refusal(412)
            machine = self.allocate(query["nbh"], settings.substitute or asked, query.get("shape") == "hm")
            return {
                "accelerator": machine.accelerator, "endpoint": machine.endpoint, "fit": 5400,
                "variant": VARIANTS.get(machine.accelerator, 1), "runtimeProxyInfo": self._proxy(machine),
            }  # fmt: skip

    def allocate(self, notebook: str, accelerator: str, high_mem: bool = False) -> Machine:
        """A new machine, also for a notebook that has one."""
        with self._lock:
            self.count()
            endpoint = f"{accelerator.lower()}-s-{secrets.token_hex(6)}"
            folder = self.folder / endpoint
            now = time.monotonic()
            machine = Machine(
                endpoint,
                notebook,
                accelerator,
                high_mem,
                folder,
                self.python,
                self.url,
                now,
                self.settings.files_root,
                python_told=self.settings.python,
                busy_at=now,
            )
            self.machines[endpoint] = machine
            self.allocated.append(notebook)
            return machine

    def assignments(self) -> dict[str, Any]:
        with self._lock:
            now, settings = time.monotonic(), self.settings
            listed = [
                each
                for each in self.machines.values()
                if now >= each.began + settings.listed_after_seconds
                and (each.gone is None or now < each.gone + settings.gone_after_seconds)
            ]
            found = [
                {
                    "accelerator": each.accelerator, "endpoint": each.endpoint,
                    "machineShape": int(each.high_mem), "variant": VARIANTS.get(each.accelerator, 1),
                    "runtimeProxyInfo": self._proxy(each),
                }
                for each in listed
            ]  # fmt: skip
            if settings.foreign_accelerator:
                foreign = {"accelerator": settings.foreign_accelerator, "endpoint": "foreign", "variant": 1}
                proxy = {"token": "x", "tokenExpiresInSeconds": 60, "url": f"{self.url}/runtime/foreign"}
                found.append(foreign | {"machineShape": 0, "runtimeProxyInfo": proxy})
            return {"assignments": found}

    def get_unassign(self, endpoint: str) -> dict[str, Any]:
        with self._lock:
            self._living(endpoint)
            token = secrets.token_urlsafe(8)
            self._xsrf.add(token)
            return {"token": token}

    def post_unassign(self, endpoint: str, xsrf: str) -> dict[str, Any]:
        if xsrf not in self._xsrf:
            raise Refusal(403)
        self.vanish(self._living(endpoint))
        return {}

    def _living(self, endpoint: str) -> Machine:
        machine = self.machines.get(endpoint)
        if machine is None or machine.gone is not None:
            raise Refusal(404)
        return machine

    def _proxy(self, machine: Machine) -> dict[str, Any]:
        seconds = self.settings.proxy_seconds
        return {
            "token": machine.new_token(seconds), "tokenExpiresInSeconds": int(seconds),
            "url": f"{self.url}{machine.base}",
        }  # fmt: skip

    def vanish(self, machine: Machine) -> None:
        """The machine is gone, with everything that runs on it."""
        with self._lock:
            if machine.gone is not None:
                return
            self.count()
            machine.gone = time.monotonic()
        machine.end()

    # --- Units: docs/references/colab.md#units ----------------------------------------------------------

    def rate(self) -> float:
        return sum(self.settings.rates.get(each.accelerator, 0.0) for each in self.living())

    def count(self) -> float:
        """What is left of the balance, and from now on less."""
        with self._lock:
            now = time.monotonic()
            hours = (now - self._counted) * self.settings.hours_per_second
            self._spent, self._counted = self._spent + hours * self.rate(), now
            return max(0.0, self.settings.balance - self._spent)

    def units(self) -> dict[str, Any]:
        with self._lock:
            settings = self.settings
            found: dict[str, Any] = {
                "currentBalance": self.count(), "consumptionRateHourly": self.rate(),
                "assignmentsCount": len(self.living()),
            }  # fmt: skip
            if settings.units_are_bare:
                return found
            found |= {"eligibleGpus": list(settings.gpus), "ineligibleGpus": list(settings.ineligible_gpus)}
            found |= {"eligibleTpus": list(settings.tpus)}
            if settings.free_left is not None:
                free: dict[str, Any] = {"remainingTokens": str(round(settings.free_left * 1000))}
                if settings.free_refill_at is not None:
                    free["nextRefillTimestampSec"] = settings.free_refill_at
                found["freeCcuQuotaInfo"] = free
            return found

    # --- Time: docs/references/colab.md#liveness --------------------------------------------------------

    def tick(self) -> None:
        """Lets the machines vanish whose time has come."""
        settings, now = self.settings, time.monotonic()
        spent = self.count() <= 0.0 and settings.free_left is None
        for machine in self.living():
            age = now - machine.began
            too_old = settings.life_seconds and age > settings.life_seconds
            if spent or too_old or (settings.idle_seconds and self._idle(machine) > settings.idle_seconds):
                self.vanish(machine)

    def _idle(self, machine: Machine) -> float:
        """For how many seconds no kernel of the machine was busy."""
        now = time.monotonic()
        if machine.is_busy():
            machine.busy_at = now
        return now - machine.busy_at
