"""`colab login`: logs a platform in on this terminal. Must never see what the person types."""

from __future__ import annotations

import sys

from orchestrator.cli import asking
from orchestrator.cli.call import Call, Exit
from orchestrator.client import logins
from orchestrator.errors import InputError


def login(call: Call) -> int:
    name = call.options.name
    platform = logins.platform(call.home, call.client.wired(), name)
    if not sys.stdin.isatty():
        raise InputError(f"a person must log in: run `{call.command('colab', 'login', name)}` in a terminal")
    platform.log_in(asking.tell)
    call.out.document({"platform": name, "logged_in": True})
    call.out.say(f"{name} is logged in; to see what the account has: {call.command('doctor', name)}")
    return Exit.OK
