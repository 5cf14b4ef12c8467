"""TXT records out of the DNS, for what `doctor` compares: nothing that is sent ever waits for this."""

from __future__ import annotations

from notifyctl.clock import Deadline
from notifyctl.transports.base import Trouble

_LEAST = 0.1  # seconds


def texts(name: str, deadline: Deadline, resolver: str = "") -> list[str]:
    """The TXT records at `name`, each with its strings joined; none: there is no such record.

    `resolver` is ADDRESS or ADDRESS:PORT ("[::1]:53" with brackets), "": the system's. Raises Trouble: `dns_failed`
    where nobody could say, `resolver_invalid` where it is no address.
    """
    import dns.exception
    import dns.resolver

    try:
        asking = dns.resolver.Resolver(configure=not resolver)
        if resolver:
            host, port = _place(resolver)
            asking.nameservers, asking.port = [host], port
    except (ValueError, dns.exception.DNSException, OSError):
        raise Trouble("resolver_invalid", config=True) from None
    patience = max(_LEAST, deadline.remaining())
    asking.timeout = max(_LEAST, patience / 3)  # of one question: a lost datagram is asked for again
    try:
        answer = asking.resolve(f"{name}.", "TXT", lifetime=patience, search=False)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return []
    except (dns.exception.DNSException, OSError, UnicodeError, ValueError):
        raise Trouble("dns_failed") from None
    return [b"".join(record.strings).decode("utf-8", "replace") for record in answer]


def _place(resolver: str) -> tuple[str, int]:
    """Address and port; a bare IPv6 address has no port."""
    from ipaddress import ip_address

    host, port = resolver, "53"
    if resolver.startswith("["):
        host, _, rest = resolver[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif resolver.count(":") == 1:
        host, _, port = resolver.partition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError
    return str(ip_address(host)), int(port)
