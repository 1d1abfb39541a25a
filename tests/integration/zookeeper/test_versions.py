"""The metadata store on other versions of ZooKeeper than the one that most tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ports import Check, Conflict, Delete, Put
from tests.fixtures.metadata_stores import Seen, commit, settle, stored, watch
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open
from tools.fetch_java import JavaUnavailableError, zookeeper_class_path

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.mark.parametrize("version", ["3.6.4", "3.7.2", "3.8.4"])
def test_an_earlier_version_of_zookeeper_serves(tmp_path: Path, opened: Open, version: str) -> None:
    try:
        zookeeper_class_path(version)
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    with ZooKeeper(tmp_path, version=version) as ensemble:
        store, witness, seen = opened(ensemble), opened(ensemble), Seen()
        watch(witness, seen)
        before = commit(store, [], [Put("a", b"1"), Put("live", b"", ephemeral=True)])["a"]
        commit(store, [Check("a", before)], [Delete("a")])
        again = commit(store, [Check("a", "absent")], [Put("a", b"2")])["a"]
        with pytest.raises(Conflict):
            commit(store, [Check("a", before)], [Put("a", b"3")])
        settle(witness)
        assert seen.known == stored(store)
        ensemble.kill()
        ensemble.start()
        while witness._engine.failure is not None:
            witness._arrived.wait(0.02)
            witness.run_pending()
        store.close()
        commit(witness, [Check("a", again)], [Put("a", b"4")])
        assert witness.wait(witness.upkeep(marks_kept_ms=0)) is None
        commit(witness, [], [Delete("a")])
        settle(witness)
        assert "a" not in seen.known
        assert seen.snapshots == 1
