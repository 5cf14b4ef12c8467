"""A network that falls silent: no reset, no refusal, packets simply vanish. In a network namespace, where permitted."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import auditor
from tests.postgres import Cluster
from tests.proxy import Proxy
from tests.site import Running, Site

MAILS = 6
NOTICED = 40.0  # seconds in which a dead peer is noticed: the connection's user timeout is 30


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)


@dataclass
class Network:
    """A namespace that sees this machine as `host` over a cable of its own."""

    name: str
    host: str

    def cut(self) -> None:
        """Every packet vanishes from now on."""
        _ip("link", "set", f"{self.name}h", "down")

    def mend(self) -> None:
        """They arrive again."""
        _ip("link", "set", f"{self.name}h", "up")

    @property
    def wrapper(self) -> list[str]:
        """What starts a process in there."""
        return ["ip", "netns", "exec", self.name]


@contextmanager
def cable(number: int) -> Iterator[Network]:
    """A namespace behind its own cable, while permitted; `number` tells several apart."""
    made = Network(f"nt{os.getpid() % 100_000}{'abc'[number]}", f"10.{os.getpid() % 200 + 20}.{7 + number}.1")
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command to make a network namespace with")
    try:
        _ip("netns", "add", made.name)
        _ip("link", "add", f"{made.name}h", "type", "veth", "peer", "name", f"{made.name}n")
        _ip("link", "set", f"{made.name}n", "netns", made.name)
        _ip("addr", "add", f"{made.host}/24", "dev", f"{made.name}h")
        _ip("-n", made.name, "addr", "add", f"{made.host[:-1]}2/24", "dev", f"{made.name}n")
        _ip("-n", made.name, "link", "set", f"{made.name}n", "up")
        _ip("-n", made.name, "link", "set", "lo", "up")
        made.mend()
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces are not permitted here")
    try:
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", made.name)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "delete", f"{made.name}h")


@pytest.fixture
def network() -> Iterator[Network]:
    with cable(0) as made:
        yield made


@pytest.fixture
def hosts() -> Iterator[list[Network]]:
    with ExitStack() as stack:
        yield [stack.enter_context(cable(number)) for number in range(3)]


@pytest.fixture
def url(postgres: Cluster, migrated_template: str) -> Iterator[str]:
    url = postgres.create_database(template=migrated_template)
    yield url
    postgres.drop_database(url)


def _start(site: Site, network: Network, proxy: Proxy, url: str) -> Running:
    site.settings["transports.relay"] = {"kind": "file", "path": "outbox", "from": "no-reply@shop.example"}
    there = proxy.url(url).replace("127.0.0.1", network.host)
    site.configure(ledger={"url": there, "patience": "2s"}, lane={"concurrency": 1, "batch": 2})
    process = site.start("dispatch", "--json", wrapper=network.wrapper)
    until = time.monotonic() + 30
    while sum("COMMIT" in sql for sql in list(proxy.statements)) < 4:
        assert time.monotonic() < until
        time.sleep(0.001)
    network.cut()
    return process


def _mails(site: Site) -> list[dict[str, object]]:
    found = []
    for file in (site.path / "outbox" / "mail").rglob("*"):
        if file.is_file():
            head = file.read_text().partition("\n\n")[0].splitlines()
            name = next(line.partition(":")[2].strip() for line in head if line.lower().startswith("message-id:"))
            key = name.strip("<>").partition("@")[0]
            digest = hashlib.sha256(key.encode()).hexdigest()[:32]  # what the folder calls it
            found.append({"at": 2e9, "sha256": "", "message_id": digest})
    return found


@pytest.mark.soak
def test_a_network_that_is_silent_for_a_while_delays_a_run_and_nothing_else(
    tmp_path: Path, network: Network, postgres: Cluster, url: str
) -> None:
    with Proxy(postgres.port, host=network.host) as proxy, Site(tmp_path, url) as site:
        site.publish()
        site.enqueue(MAILS)
        process = _start(site, network, proxy, url)
        process.goes_on_for(3)
        network.mend()
        done = process.result()
        assert done.code == 0, done
        assert auditor.faults(url, _mails(site), by_remote=True) == []
        assert len(_mails(site)) == MAILS


@pytest.mark.soak
def test_a_network_that_stays_silent_is_noticed_and_the_run_ends(
    tmp_path: Path, network: Network, postgres: Cluster, url: str
) -> None:
    with Proxy(postgres.port, host=network.host) as proxy, Site(tmp_path, url) as site:
        site.publish()
        site.enqueue(MAILS)
        process = _start(site, network, proxy, url)
        done = process.result(3 * NOTICED)
        assert done.code in (0, 75), done  # 0: it had just ended
        proxy.__exit__()
        site.quiet()
        assert auditor.faults(url, _mails(site), by_remote=True) == []
        site.later()
        site.configure(ledger={"url": url})
        site.dispatch()
        assert auditor.faults(url, _mails(site), by_remote=True) == []
        assert site.numbers("d.state NOT IN ('accepted', 'ambiguous')") == set()


@pytest.mark.parametrize("cut", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["", "one is cut off"])
def test_hosts_share_one_ledger_and_one_that_falls_silent_for_a_while_loses_and_doubles_nothing(
    tmp_path: Path, hosts: list[Network], postgres: Cluster, url: str, cut: bool
) -> None:
    mails = 90
    with ExitStack() as stack:
        site = stack.enter_context(Site(tmp_path, url))
        site.settings["transports.relay"] = {"kind": "file", "path": "outbox", "from": "no-reply@shop.example"}
        site.configure(lane={"concurrency": 1, "batch": 4})
        site.publish()
        site.enqueue(mails)
        seen, running = [], []
        for host in hosts:
            proxy = stack.enter_context(Proxy(postgres.port, host=host.host))
            site.configure(ledger={"url": proxy.url(url).replace("127.0.0.1", host.host), "patience": "60s"})
            config = tmp_path / f"{host.name}.toml"
            config.write_text(site.config.read_text())
            seen.append(proxy)
            running.append(site.start("--config", str(config), "dispatch", "--json", wrapper=host.wrapper))
        site.configure(ledger={"url": url})
        if cut:
            until = time.monotonic() + 30
            while sum("COMMIT" in sql for sql in list(seen[2].statements)) < 4:
                assert time.monotonic() < until
                time.sleep(0.001)
            hosts[2].cut()
        done = [process.result() for process in running[:2]]
        hosts[2].mend()
        done.append(running[2].result(3 * NOTICED))
        assert [one.code for one in done] == [0, 0, 0], done
        assert all(one.json["claimed"] > 0 for one in done), "one had no share"
        assert sum(one.json["accepted"] for one in done) == mails == len(_mails(site))
        assert auditor.faults(url, _mails(site), by_remote=True) == []
        assert site.numbers("d.state <> 'accepted'") == set()
