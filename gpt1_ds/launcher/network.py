"""How the ranks of a launcher meet: the network interface that reaches the others, and a private folder, short enough
for the path of a socket.

Gloo takes the one that this host's name resolves to. On many clusters that is loopback or a slow management network,
and ranks on other hosts then wait for it in vain.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing.util
import os
import re
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gpt1_ds.common import log
from gpt1_ds.common.errors import LaunchError, NodeError, WorldError
from gpt1_ds.common.files import explain, naming, this_node

PREFIX = "gpt1-ds-ranks-"
LONGEST = 107 - len(f"/{PREFIX}12345678/pymp-12345678/listener-12345678")  # letters; Linux allows a socket's path 107
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")


@cache
def folder() -> Path:
    """Returns this process's folder. Raises LaunchError where TMPDIR is too long and there is no other place,
    FileNotFoundError where nothing can be written.
    """
    place = _place()
    _sweep(place)
    while True:
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        _lock(made, fcntl.LOCK_EX)  # for as long as this process lives
        if made.exists():  # else another launcher swept it away before it was locked
            break
    # after multiprocessing's own, which are inside
    multiprocessing.util.Finalize(None, shutil.rmtree, (made,), {"ignore_errors": True}, exitpriority=-200)
    before, tempfile.tempdir = tempfile.tempdir, str(made)
    try:
        multiprocessing.util.get_temp_dir()  # where the fork server listens
    finally:
        tempfile.tempdir = before
    return made


def _place() -> str:
    wanted = tempfile.gettempdir()
    for place in (wanted, *ELSEWHERE):
        if len(os.fsencode(place)) <= LONGEST and os.access(place, os.W_OK | os.X_OK):
            return place
    raise LaunchError(f"TMPDIR={wanted}: more than {LONGEST} letters, too long for a socket in it; export TMPDIR=/tmp")


def _sweep(place: str) -> None:
    """Removes the folders of launchers that were killed, in this container or another one of this host."""
    for left in Path(place).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid() and not left.is_symlink():
                descriptor = _lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if descriptor is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(descriptor)


def _lock(made: Path, how: int) -> int | None:
    """Returns an open descriptor that holds the folder's lock; None where another process does, or where there are
    none.
    """
    descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's variable
LATE_SECONDS = 30.0  # of waiting for other ranks before a line says so
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_NO_ADDRESS = re.compile(r"Unable to find (?:address|interface) for: (\S+)")


def meeting_point() -> str:
    return f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"


def port() -> int:
    """Returns the port where ranks meet. Raises LaunchError for what is none."""
    given = os.environ.get("MASTER_PORT", "")
    if not (given.isdecimal() and 0 < int(given) < 2**16):
        raise LaunchError(f"MASTER_PORT={given}: is no port; choose a free one, the same on all hosts, like 29500")
    return int(given)


def try_port() -> None:
    """Returns whether rank 0 can listen where the ranks meet; torchrun says it in a traceback only. Raises OSError."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with naming(meeting_point()):
        socket.create_server(("", port()), family=family, dualstack_ipv6=family == socket.AF_INET6).close()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """What keeps ranks from meeting in this block, in one line: NodeError for what this node lacks, else WorldError."""
    try:
        yield
    except RuntimeError as error:
        found = _NO_ADDRESS.search(str(error))
        if found:
            raise NodeError(
                this_node(),
                f"network interface {found[1]}: it has no address on {this_node()}; give it one (of loopback: ip link "
                "set lo up), or name another in GLOO_SOCKET_IFNAME",
            ) from None
        if "EADDRINUSE" in str(error):
            explained = explain(OSError(errno.EADDRINUSE, "", meeting_point()))
            assert explained is not None
            raise explained from None
        if str(error) == "Wait timeout":  # a FileStore's
            raise WorldError(
                f"rank {os.environ.get('RANK', '0')} on {this_node()}: another rank did not come within "
                "guard.init_timeout; run again, or raise it where the machine is busy"
            ) from None
        if type(error).__name__ in ("DistNetworkError", "DistStoreError"):  # torch's; this module does without it
            what = str(error).splitlines()[0]
            raise WorldError(
                f"{meeting_point()}: rank {os.environ.get('RANK', '0')} on {this_node()}: {what}"
            ) from None
        raise


@contextlib.contextmanager
def said_where_late(world: int) -> Iterator[None]:
    """After LATE_SECONDS in this block, says once a host where its ranks wait for the other ones of `world`: a wrong
    address is seen long before guard.init_timeout ends the wait.
    """
    rank = os.environ.get("RANK", "0")
    line = (
        f"{meeting_point()}: rank {rank} on {this_node()} has waited there for {LATE_SECONDS:.0f} s for all {world} "
        "ranks to meet; MASTER_ADDR must be the host of rank 0, and every host must have started its ranks"
    )
    timer = threading.Timer(LATE_SECONDS, log.say, (line,))
    timer.daemon = True
    if os.environ.get("LOCAL_RANK", "0") == "0":
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def choose_interface() -> None:
    """Sets GLOO_SOCKET_IFNAME for ranks that meet at MASTER_ADDR, unless the user has."""
    address = os.environ.get("MASTER_ADDR")
    if address and INTERFACE not in os.environ:
        name = interface_towards(address)
        if name is not None:
            os.environ[INTERFACE] = name


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """In this block a process that is the only rank makes its groups on loopback, unless the user chose an interface:
    gloo would look up this host's name, for many seconds where no server of names answers.
    """
    if INTERFACE in os.environ or os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        yield
        return
    os.environ[INTERFACE] = "lo"
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)  # programs that this one starts may have others to meet


def interface_towards(address: str) -> str | None:
    """Returns the interface that packets to `address` leave by; of an own address the one that has it. None if none is
    found, as for IPv6.
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
