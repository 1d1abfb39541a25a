"""Network silence: see docs/reports/chaos.md. No partition has two owners at a time, and all records are handled.

HEADRACE_CHAOS_SECONDS adds rounds with random silences; HEADRACE_CHAOS_SEED repeats them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.chaos.silence import (
    KINDS,
    PARTITIONS,
    SESSION_MS,
    SETTINGS,
    Feeder,
    Notes,
    everyone,
)
from tests.fixtures.processes import ServerProcess, running_server
from tests.fixtures.proxy import Proxy

PATIENCE_S = 90
LONG = float(os.environ.get("HEADRACE_CHAOS_SECONDS", "0"))
SILENCES = ["cut", "freeze", "half-open", "late", "trickle"]
CASES = [
    (silence, "consumer" if number % 2 else "classic") for number, silence in enumerate(SILENCES)
]
OTHERS = [
    (silence, "classic" if number % 2 else "consumer") for number, silence in enumerate(SILENCES)
]


class Network:
    """A broker with two addresses, one of them behind a proxy."""

    def __init__(self, server: ServerProcess, proxy: Proxy) -> None:
        self.server, self.proxy = server, proxy
        self.notes = Notes()
        with headrace.Admin(server.bootstrap) as admin:
            for kind in KINDS:
                admin.create_topic(kind, PARTITIONS)
            admin.create_topic("once-out", PARTITIONS)
        self.feeder = Feeder(server.bootstrap)

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}; {self.state()}"
            await asyncio.sleep(0.1)

    def state(self) -> dict[str, Any]:
        return {kind: len(self.notes.values(kind)) for kind in KINDS}

    def shared(self) -> bool:
        """Whether both members of every kind have handled something."""
        return all(
            self.notes.of(kind, member) for kind in KINDS for member in ("silenced", "other")
        )

    def taken_over(self, since_s: float) -> bool:
        """Return whether the member with a working network handles all partitions."""
        return all(self.notes.of(kind, "other", since_s) == PARTITIONS for kind in KINDS)

    def all_handled(self) -> bool:
        """Whether every record was handled of each kind that loses none."""
        return all(
            len(self.notes.values(kind)) == self.feeder.counts[kind]
            for kind in KINDS
            if kind != "most"
        )

    def check(self) -> None:
        self.notes.check()
        twice = [value for value, count in self.notes.values("most").items() if count > 1]
        assert not twice, "at most once"
        written: list[bytes] = []
        with headrace.Consumer(self.server.bootstrap, isolation_level="read_committed") as reader:
            places = [headrace.TopicPartition("once-out", number) for number in range(PARTITIONS)]
            reader.assign(dict.fromkeys(places, 0))
            while any(reader.lag().values()):
                written += [record.value for record in reader.poll(1)]
        assert sorted(written) == sorted(self.notes.values("once")), "exactly once"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    settings = SETTINGS | {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
    }
    with Proxy() as proxy:
        settings["advertised.listeners"] = f"PROXIED://{proxy.address}"
        given = [f"--config={name}={value}" for name, value in settings.items()]
        with running_server(tmp_path, "--listen", "PROXIED://127.0.0.1:0", *given) as server:
            host, port = server.listeners["PROXIED"].rsplit(":", 1)
            proxy.target = host, int(port)
            yield Network(server, proxy)


async def scenario(
    network: Network,
    protocol: str,
    silence: Callable[[], None],
    heal: Callable[[], None],
    *,
    others: bool | None,
) -> None:
    notes = network.notes
    async with (
        everyone(network.server.bootstrap, "other", protocol, notes) as other,
        everyone(network.proxy.address, "silenced", protocol, notes) as silenced,
    ):
        await network.until("both members handle records", network.shared)
        silence()
        began_s = time.monotonic()
        if others is None:
            await asyncio.sleep(2 * SESSION_MS / 1000)
        elif others:
            await network.until(
                "the other member has all partitions",
                lambda: network.taken_over(began_s + SESSION_MS / 1000 * 0.9),
            )
            status = silenced.status()
            assert not any(each.healthy for each in status.values()), status
        else:
            await asyncio.sleep(2 * SESSION_MS / 1000)
            for app in (other, silenced):
                assert not any(each.healthy for each in app.status().values())
        heal()
        await asyncio.to_thread(network.feeder.stop)
        await network.until("everything is handled", network.all_handled)
        await network.until(
            "all workers are well",
            lambda: all(
                each.healthy for app in (other, silenced) for each in app.status().values()
            ),
        )


def run(network: Network, protocol: str, silence: str) -> None:
    if silence == "stopped broker":
        asyncio.run(
            scenario(
                network,
                protocol,
                lambda: network.server.signal(signal.SIGSTOP),
                lambda: network.server.signal(signal.SIGCONT),
                others=False,
            )
        )
    else:

        def set_silence(value: Any) -> None:
            network.proxy.silence = value

        asyncio.run(
            scenario(
                network,
                protocol,
                lambda: set_silence(silence),
                lambda: set_silence(None),
                others=None
                if silence == "trickle"
                else True,  # heartbeats are small enough to arrive in time
            )
        )
    network.check()


@pytest.mark.slow
@pytest.mark.parametrize(("silence", "protocol"), [*CASES, ("stopped broker", "consumer")])
def test_a_silent_network_makes_no_second_owner(
    network: Network, silence: str, protocol: str
) -> None:
    run(network, protocol, silence)


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="make chaos runs it")
@pytest.mark.parametrize(("silence", "protocol"), [*OTHERS, ("stopped broker", "classic")])
def test_a_silent_network_makes_no_second_owner_under_the_other_protocol(
    network: Network, silence: str, protocol: str
) -> None:
    run(network, protocol, silence)


async def random_scenario(network: Network, protocol: str, chance: random.Random) -> None:
    notes = network.notes
    async with (
        everyone(network.server.bootstrap, "other", protocol, notes),
        everyone(network.proxy.address, "silenced", protocol, notes),
    ):
        await network.until("both members handle records", network.shared)
        until_s = time.monotonic() + LONG / 4
        while time.monotonic() < until_s:
            silence: Any = chance.choice(SILENCES)
            network.proxy.silence = silence
            await asyncio.sleep(chance.uniform(0.5, 2 * SESSION_MS / 1000))
            network.proxy.silence = None
            await asyncio.sleep(chance.uniform(0, SESSION_MS / 1000))
        await asyncio.to_thread(network.feeder.stop)
        await network.until("everything is handled", network.all_handled)


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="make chaos runs it")
@pytest.mark.timeout(LONG + 300)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_silences_in_any_order_make_no_second_owner(network: Network, protocol: str) -> None:
    seed = int(os.environ.get("HEADRACE_CHAOS_SEED", random.randrange(1 << 32)))
    try:
        asyncio.run(random_scenario(network, protocol, random.Random(seed)))
        network.check()
    except BaseException as error:
        error.add_note(f"HEADRACE_CHAOS_SEED={seed}")
        raise
