"""The choice of brokers for the replicas of new partitions.

The partitions of a topic are spread evenly:

* No two replicas of a partition are in one rack, while there are enough racks. If there are not, the replicas of a
  partition are spread over all racks.
* The numbers of replicas on two brokers differ by at most one, and so do the numbers of leaders, if there are enough
  racks, and all racks have the same number of brokers.

Partitions that are added later continue where the present ones end. A partition gets its replicas one by one, each on
a broker with the fewest replicas. Of these brokers, the one with the fewest leaders leads, and brokers with many
leaders follow, so that the next partitions find leaders as well.

Brokers that are not live get replicas only if there are fewer live brokers than replicas (`with_away`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence


class _Load:
    """The replicas and leaders that a topic has on each broker."""

    def __init__(self, racks: Mapping[int, str | None], present: Sequence[Sequence[int]]) -> None:
        self.rack_of: dict[int, Hashable] = {
            broker: (broker, None) if rack is None else rack for broker, rack in racks.items()
        }
        """The rack of each broker. A broker without a rack is in a rack of its own."""
        self.replicas = dict.fromkeys(racks, 0)
        self.leaders = dict.fromkeys(racks, 0)
        self.rack_leaders = dict.fromkeys(self.rack_of.values(), 0)
        for replicas in present:
            self.add(replicas)

    def add(self, replicas: Sequence[int]) -> None:
        """Count a partition. Brokers that take no new partitions are left out."""
        for broker in replicas:
            if broker in self.replicas:
                self.replicas[broker] += 1
        if replicas[0] in self.leaders:
            self.leaders[replicas[0]] += 1
            self.rack_leaders[self.rack_of[replicas[0]]] += 1

    @property
    def is_even(self) -> bool:
        """Whether all brokers have the same number of replicas."""
        return len(set(self.replicas.values())) == 1

    def choices(self, chosen: Sequence[int], more: int) -> list[int]:
        """Return the brokers that may be among the next `more` replicas of a partition.

        Racks with fewer replicas of the partition come first. Of these, the racks come first whose least loaded broker
        has fewer replicas of the topic, then the racks with more such brokers: they are further behind.
        """
        used: dict[Hashable, int] = {}
        for broker in chosen:
            used[self.rack_of[broker]] = used.get(self.rack_of[broker], 0) + 1
        least: dict[Hashable, list[int]] = {}
        replicas = self.replicas
        for broker, count in replicas.items():
            if broker not in chosen:
                brokers = least.setdefault(self.rack_of[broker], [])
                if brokers and count < replicas[brokers[0]]:
                    brokers.clear()
                if not brokers or count == replicas[brokers[0]]:
                    brokers.append(broker)
        keys = {
            rack: (used.get(rack, 0), replicas[brokers[0]], -len(brokers))
            for rack, brokers in least.items()
        }
        last = sorted(keys.values())[:more][-1]
        return [broker for rack, each in least.items() if keys[rack] <= last for broker in each]


def placements(
    racks: Mapping[int, str | None],
    replication_factor: int,
    *,
    start: int,
    present: Sequence[Sequence[int]] = (),
) -> Iterator[tuple[int, ...]]:
    """Yield the replicas of one new partition after the other, without an end. The first replica is the leader.

    Args:
        racks: The brokers that take new partitions, with their racks; None for a broker without a rack.
        replication_factor: The number of replicas, at most the number of brokers.
        start: A number that chooses the first broker. Topics with different numbers begin with different brokers.
        present: The replicas of the partitions that the topic has.
    """
    load, known = _Load(racks, present), dict[tuple[int, ...], tuple[int, ...]]()
    numbers, shift = {broker: number for number, broker in enumerate(sorted(racks))}, start
    leaders = load.leaders

    def leads_first(broker: int) -> tuple[int, int, int]:
        in_rack = load.rack_leaders[load.rack_of[broker]]
        return leaders[broker], in_rack, (numbers[broker] - start) % len(numbers)

    def follows_first(broker: int) -> tuple[int, int]:
        return -leaders[broker], (numbers[broker] - shift) % len(numbers)

    while True:
        if load.is_even:  # a leader gets other followers in the next round
            shift += 1
        chosen = [min(load.choices((), replication_factor), key=leads_first)]
        while len(chosen) < replication_factor:
            chosen.append(min(load.choices(chosen, 1), key=follows_first))
        replicas = tuple(chosen)
        load.add(replicas)
        yield known.setdefault(replicas, replicas)


def with_away(
    placed: Iterable[tuple[int, ...]], away: Sequence[int], replication_factor: int, *, start: int
) -> Iterator[tuple[int, ...]]:
    """Yield the replicas of each partition, completed with brokers that are not live, in turn.

    Args:
        placed: The replicas on live brokers.
        away: The registered brokers that are not live. With the live ones they are enough.
        replication_factor: The number of replicas.
        start: A number that chooses the first broker.
    """
    for number, replicas in enumerate(placed, start):
        missing = range(number, number + replication_factor - len(replicas))
        yield (*replicas, *(away[each % len(away)] for each in missing))
