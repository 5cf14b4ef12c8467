"""Connecting within a deadline: name look-up and TCP, for transports that own their sockets."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from threading import Thread

from notifyctl.clock import Deadline
from notifyctl.transports.base import Exchange, Trouble

Address = tuple[int, tuple[object, ...]]


def connect(host: str, port: int, exchange: Exchange) -> socket.socket:
    """A non-blocking socket to the first of the host's addresses that answers; they share the time that is left."""
    addresses = _addresses(host, port, exchange.deadline)
    for number, (family, address) in enumerate(addresses):
        exchange.check()
        share = exchange.deadline.remaining() / (len(addresses) - number)
        try:
            return _connected(family, address, share)
        except OSError:
            continue
    raise Trouble("connect_failed")


def own_name(sock: socket.socket) -> str:
    """How we greet: the host's full name, else our address as a literal (RFC 5321 4.1.3)."""
    name = socket.gethostname()
    if "." in name.strip(".") and name.isascii() and name.replace("-", "").replace(".", "").isalnum():
        return name
    address = str(sock.getsockname()[0]).partition("%")[0]
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"


def _addresses(host: str, port: int, deadline: Deadline) -> list[Address]:
    """The host's addresses. The system's resolver knows no deadline, so it is asked from a thread left behind."""
    found: list[Address] = []

    def look_up() -> None:
        with suppress(OSError, UnicodeError):
            found.extend((one[0], one[4]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))

    try:
        ip_address(host)
    except ValueError:
        asking = Thread(target=look_up, name="notifyctl-dns", daemon=True)
        asking.start()
        asking.join(max(0.0, deadline.remaining()))
        if asking.is_alive():
            raise Trouble("deadline") from None
    else:
        look_up()
    if not found:
        raise Trouble("dns_failed")
    return found


def _connected(family: int, address: tuple[object, ...], patience: float) -> socket.socket:
    """A connected, non-blocking socket; raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.001, patience))
        sock.connect(address)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a body follows its command in a second write
    except OSError:
        sock.close()
        raise
    return sock


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine, by its name or address alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
