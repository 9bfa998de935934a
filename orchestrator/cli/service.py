"""`service`: the controller as a service of this machine, in words."""

from __future__ import annotations

import sys

from orchestrator.cli.call import Call, Exit
from orchestrator.client import service as services
from orchestrator.client.service import Service


def service(call: Call) -> int:
    """Installs, removes or describes the service of this home."""
    what, standby = call.options.what, getattr(call.options, "standby", False)
    if what == "install" and (call.options.print or call.options.system or call.options.launchd):
        is_plist = call.options.launchd or (sys.platform == "darwin" and not call.options.system)
        text = services.plist(call.home, standby=standby).decode() if is_plist else services.unit(
            call.home, system=call.options.system, standby=standby
        )  # fmt: skip
        call.out.document({"unit": text})
        call.out.say(text.rstrip("\n"))
        if call.options.system:
            name = services.name_of(call.home)
            call.out.remark(f"as root: write it to /etc/systemd/system/{name}.service, then "
                            f"`systemctl enable --now {name}`")  # fmt: skip
        elif call.options.launchd:
            agent = f"~/Library/LaunchAgents/dev.{services.name_of(call.home)}.plist"
            call.out.remark(
                f"on the Mac: write it to {agent}, then `launchctl bootstrap gui/$(id -u) {agent}`"
            )
        return Exit.OK
    if what == "install":
        found = services.install(call.home, standby=standby)
    elif what == "uninstall":
        found = services.uninstall(call.home)
    else:
        found = services.look(call.home)
    path = None if found.path is None else str(found.path)
    call.out.document({**vars(found), "path": path, "survives_reboot": found.survives_reboot})
    how = "`orchestrator service install` writes it" if found.path is not None else found.advice
    call.out.facts([
        ("service", found.name),
        ("unit", str(found.path) if found.installed else f"none: {how}"),
        ("enabled", _yes(found.enabled)),
        ("running", _yes(found.active)),
        ("after a reboot", _after(found)),
    ])  # fmt: skip
    if found.installed and found.advice:
        call.out.remark(found.advice)
    return Exit.OK


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _after(found: Service) -> str:
    if not found.enabled:
        return "nothing is started"
    return "it starts at boot" if found.lingers else "it starts when you log in"
