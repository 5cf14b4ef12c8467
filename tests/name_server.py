"""A small DNS server on loopback: TXT records by name, over UDP and, for what is too long for a datagram, over TCP."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Mapping
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

LARGEST = 512  # bytes of a datagram without EDNS


class NameServer:
    """Listens while used as a context manager. `records`: name → the texts of its TXT records. `mode`: `silent` says
    nothing at all, `broken` answers SERVFAIL."""

    def __init__(self, records: Mapping[str, list[str]], mode: str = "") -> None:
        self.records = dict(records)
        self.mode = mode
        self.asked: list[tuple[str, str]] = []  # (udp or tcp, name)
        server = self

        class Datagram(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                data, sock = self.request
                answer = server.answer("udp", data)
                if answer is not None:
                    sock.sendto(answer, self.client_address)

        class Stream(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                size = int.from_bytes(self.request.recv(2, socket.MSG_WAITALL))
                answer = server.answer("tcp", self.request.recv(size, socket.MSG_WAITALL))
                if answer is not None:
                    self.request.sendall(len(answer).to_bytes(2) + answer)

        self._servers = _both(Datagram, Stream)
        port = self._servers[0].server_address[1]
        self.address = f"127.0.0.1:{port}"
        self._threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in self._servers]

    def __enter__(self) -> NameServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._servers:
            one.shutdown()
            one.server_close()
        for thread in self._threads:
            thread.join()

    def answer(self, way: str, data: bytes) -> bytes | None:
        """The answer to one question; None: silence."""
        question = dns.message.from_wire(data)
        name = question.question[0].name.to_text(omit_final_dot=True).lower()
        self.asked.append((way, name))
        if self.mode == "silent":
            return None
        reply = dns.message.make_response(question)
        if self.mode == "broken":
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif name not in self.records:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif self.records[name]:
            texts = [" ".join(f'"{text[at : at + 255]}"' for at in range(0, len(text), 255))
                     for text in self.records[name]]  # fmt: skip
            reply.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "TXT", *texts))
        wire = bytes(reply.to_wire())
        if way == "udp" and len(wire) > LARGEST:
            reply.answer.clear()
            reply.flags |= dns.flags.TC
            wire = bytes(reply.to_wire())
        return wire


def _both(datagram: Any, stream: Any) -> list[Any]:
    """A UDP and a TCP server on one port, whichever is free for both."""
    while True:
        udp = socketserver.ThreadingUDPServer(("127.0.0.1", 0), datagram)
        try:
            return [udp, socketserver.ThreadingTCPServer(udp.server_address, stream)]
        except OSError:
            udp.server_close()
