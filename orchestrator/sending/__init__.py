"""One attempt to bring a message to an address. Blocks, raises nothing, and never repeats the address.

Decides by the address alone who carries it: our own webhook (webhook.py), or the package apprise, which knows
about 180 services (services.py). Must never know runs, what else is to be told, or where an
address came from. Imports lazily: most programs send nothing.
"""

from __future__ import annotations

import re

from orchestrator.core.delivery import Answer, Delivery
from orchestrator.core.message import Message

# Addresses that these services give to their users begin with https. They take a body of their own form,
# which apprise knows, by the address as it is (docs/references/apprise.md#addresses-of-services).
_SERVICES = re.compile(
    r"https://(?:hooks\.slack\.com|(?:[\w.-]+\.)?discord(?:app)?\.com|chat\.googleapis\.com"
    r"|(?:[\w.-]+\.)?webhook\.office\.com|[\w.-]+\.logic\.azure\.com|[\w.-]+\.api\.powerplatform\.com"
    r"|ntfy\.sh|api\.flock\.com|(?:api\.ciscospark|webexapis)\.com|maker\.ifttt\.com|cliq\.zoho\.\w+"
    r"|open\.(?:feishu\.cn|larksuite\.com)|qyapi\.weixin\.qq\.com|[\w.-]+\.ryver\.com|api\.telegram\.org"
    r"|oapi\.dingtalk\.com|inbound\.[\w.-]+|alert\.victorops\.com)(?::443)?/",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
NO_ADDRESS = "its address is not valid: expected https://…, or one that apprise knows, such as mailto://…"


def scheme(address: str) -> str:
    """The part of the address before `://` in lower case, which may be shown; empty if it is none."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else ""


def needs_apprise(address: str) -> bool:
    """Whether the address can only be served with the package apprise."""
    return scheme(address) not in ("http", "https") or _SERVICES.match(address) is not None


def trouble(address: str) -> str:
    """What is known to be wrong with the address without asking anybody; empty if nothing is."""
    if not scheme(address):
        return NO_ADDRESS
    if needs_apprise(address):
        from orchestrator.sending import services

        return services.trouble()
    from orchestrator.sending import webhook

    return webhook.trouble(address)


def send(address: str, message: Message) -> Delivery:
    """Tries once."""
    if wrong := trouble(address):
        return Delivery(Answer.LATER, wrong)
    if needs_apprise(address):
        from orchestrator.sending import services

        return services.send(address, message)
    from orchestrator.sending import webhook

    return webhook.send(address, message)
