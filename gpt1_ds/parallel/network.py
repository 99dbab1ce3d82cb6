"""Which network interface reaches the other ranks.

Gloo takes the one that this host's name resolves to. On many clusters that is loopback or a slow management network,
and ranks on other hosts then wait for it in vain.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def choose_interface() -> None:
    """Set GLOO_SOCKET_IFNAME for ranks that meet at MASTER_ADDR, unless the user has."""
    address = os.environ.get("MASTER_ADDR")
    if address and "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_towards(address)
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_towards(address: str) -> str | None:
    """The interface that packets to `address` leave by; of an own address the one that has it. None if none is found,
    as for IPv6.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # chooses a route; a datagram socket sends nothing
        own = probe.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if _address_of(name, probe) == own), None)
    return None


def _address_of(name: str, open_socket: socket.socket) -> str | None:
    with contextlib.suppress(OSError):
        request = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(open_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    return None
