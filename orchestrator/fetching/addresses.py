"""Which addresses a fetch may connect to: public ones, and those that the config allows.

A name may lead to a private address, so it is the resolved addresses that are judged, and they are the ones
connected to. Must never connect itself.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.errors import InputError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")  # RFC 8215
_UNICAST = ipaddress.ip_network("2000::/3")  # all that is given out of IPv6; not ::127.0.0.1, for example
_NAMES = ("localhost", "localhost.localdomain", "metadata.google.internal")


@dataclass(frozen=True)
class Allowed:
    """What the config allows in addition to public addresses: names of hosts, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> Allowed:
        """From names, addresses and networks (CIDR) as a config has them."""
        hosts, networks = set(), []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                hosts.add(entry.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Whether the config names this host, or the address that it is."""
        found = literal(host)
        return host.lower().rstrip(".") in self.hosts or (found is not None and self._has(found))

    def check(self, host: str, found: Sequence[str]) -> None:
        """Raises InputError if one of the addresses of a host is not to be connected to."""
        if host.lower().rstrip(".") in self.hosts:
            return
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            kind = private(address)
            if kind and not self._has(address):
                raise InputError(
                    f"{host} is at {address}, {kind}, from which no input is fetched. If that is meant, "
                    f"allow it in the config: inputs: {{allow_private: [{address}]}}"
                )

    def check_unresolved(self, host: str) -> None:
        """The same for a host that a proxy resolves: only what its name says is known here."""
        found = literal(host)
        if found is not None:
            self.check(host, [str(found)])
        elif host.lower().rstrip(".") in _NAMES or host.lower().rstrip(".").endswith(".localhost"):
            self.check(host, ["127.0.0.1"])

    def _has(self, address: Address) -> bool:
        return any(each in network for each in (address, _inner(address)) for network in self.networks)


def literal(host: str) -> Address | None:
    """The address that a host's text is, in any form that some system understands (`127.1`, `0x7f000001`,
    `2130706433`, `127.0.0.1.`); None for a name."""
    host = host.rstrip(".")
    try:
        return ipaddress.ip_address(host.partition("%")[0] if ":" in host else host)
    except ValueError:
        pass
    try:
        return None if not host or host.split() != [host] else ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def private(address: Address) -> str:
    """What kind of address it is if it is not a public one; empty if it is."""
    inner = _inner(address)
    if inner is not address:
        return private(inner)
    if isinstance(address, ipaddress.IPv6Address) and (
        address in _LOCAL_NAT64 or address.teredo is not None or address.is_site_local
    ):
        return "a private address"
    if address.is_loopback:
        return "this machine itself"
    if address.is_link_local:
        return "a link-local address (there clouds keep credentials)"
    if address.is_multicast:
        return "a multicast address"
    public = address.is_global and not (
        isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST
    )
    return "" if public else "a private or reserved address"


def _inner(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that leads to it: mapped, NAT64, 6to4."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.sixtofour is not None:
            return address.sixtofour
    return address
