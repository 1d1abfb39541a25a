"""The pytest plugin as its users meet it: in a project of their own, in a process of its own, alone and under xdist."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.testing import Broker

pytest_plugins = "pytester"

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def configured(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        addopts = ["--strict-markers", "--strict-config", "-p", "no:cacheprovider"]
        filterwarnings = ["error"]
        """
    )


def outcomes(pytester: pytest.Pytester, *arguments: str) -> dict[str, int]:
    result = pytester.runpytest_subprocess(*arguments, timeout=120)
    return result.parseoutcomes()


def test_the_package_says_where_the_plugin_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"headrace": "headrace.testing.plugin"}


def test_pytest_starts_without_the_broker() -> None:
    code = "import sys, headrace.testing.plugin; print(*[m for m in sys.modules if m.startswith('headrace.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {
        "headrace.testing",
        "headrace.testing.factories",
        "headrace.testing.isolation",
        "headrace.testing.plugin",
    }


def test_every_fixture_is_there_and_says_what_it_is(pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures")
    wanted = [
        "broker",
        "broker_proc",
        "broker_noproc",
        "cluster",
        "bootstrap",
        "topic",
        "admin",
        "client",
    ]
    for name in wanted:
        result.stdout.re_match_lines([rf"headrace_{name}\b.*"])
    assert "no docstring" not in result.stdout.str().split("headrace.testing")[-1]


FLOW = """
    import headrace

    def test_flow(headrace_broker, headrace_client, headrace_topic, headrace_admin, headrace_bootstrap):
        assert headrace_topic in headrace_admin.topics()
        assert headrace_bootstrap == headrace_broker.bootstrap
        headrace_client.producer().send(headrace_topic, b"a").result()
        consumer = headrace_client.consumer(headrace_topic, group="billing")
        while not (records := consumer.poll(1.0)):
            pass
        assert records[0].value == b"a"
        consumer.commit()
        headrace_broker.wait_caught_up("billing")
        with headrace.Producer(headrace_bootstrap) as producer:
            producer.send(headrace_topic, b"b").result()
        headrace_broker.wait_for(topic=headrace_topic, records=2)
"""


def test_a_flow_through_a_broker_needs_no_other_fixture(pytester) -> None:
    pytester.makepyfile(FLOW)
    assert outcomes(pytester) == {"passed": 1}


ISOLATION = """
    import pytest
    from headrace.testing import ApiKey, error

    @pytest.fixture(scope="module")
    def shared(headrace_broker):
        headrace_broker.create_topic("shared")
        return "shared"

    @pytest.mark.parametrize("turn", [1, 2])
    def test_topics_groups_and_faults_of_a_test_are_removed(headrace_broker, shared, turn):
        assert headrace_broker.topics() == ["shared"]
        headrace_broker.create_topic("mine")
        headrace_broker.publish("shared", b"kept")
        headrace_broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER"))
        assert len(headrace_broker.messages("shared")) == turn

    def test_also_if_it_comes_by_another_fixture(headrace_topic, request):
        broker = request.getfixturevalue("headrace_broker")
        assert broker.topics() == sorted([headrace_topic, "shared"])

    def test_and_topics_go(headrace_broker):
        assert headrace_broker.topics() == ["shared"]
"""


def test_tests_leave_nothing_to_each_other_but_what_wider_fixtures_made(pytester) -> None:
    pytester.makepyfile(ISOLATION)
    assert outcomes(pytester) == {"passed": 4}


def test_the_first_test_leaves_nothing_either(pytester) -> None:
    pytester.makepyfile(
        """
        import headrace

        def test_first(headrace_topic, headrace_client):
            headrace_client.admin().create_topic("left")

        def test_second(headrace_broker):
            assert headrace_broker.topics() == []
        """
    )
    assert outcomes(pytester) == {"passed": 2}


def test_xdist_workers_have_separate_brokers(pytester) -> None:
    pytester.makepyfile(
        """
        import os, pathlib
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_alone(headrace_broker, headrace_bootstrap, number):
            assert headrace_broker.topics() == []
            headrace_broker.create_topic("same-name")
            headrace_broker.publish("same-name", b"x")
            pathlib.Path(f"seen-{os.environ['PYTEST_XDIST_WORKER']}-{number}").write_text(headrace_bootstrap)
            assert len(headrace_broker.messages("same-name")) == 1
        """
    )
    assert outcomes(pytester, "-n", "2") == {"passed": 8}
    seen: dict[str, set[str]] = {}
    for path in pytester.path.glob("seen-*"):
        seen.setdefault(path.name.split("-")[1], set()).add(path.read_text())
    assert len(seen) == 2
    assert all(len(addresses) == 1 for addresses in seen.values())
    assert len(set.union(*seen.values())) == 2


def test_a_topic_is_made_as_the_mark_says(pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.headrace_topic(partitions=3, serde="json", configs={"retention.ms": "1000"})
        def test_marked(headrace_topic, headrace_admin, headrace_broker):
            assert len(headrace_admin.describe_topic(headrace_topic).partitions) == 3
            assert headrace_admin.configs(headrace_topic)["retention.ms"].value == "1000"
            headrace_broker.publish(headrace_topic, {"id": 1})
            assert headrace_broker.messages(headrace_topic)[0].value == {"id": 1}

        def test_unmarked(headrace_topic, headrace_admin):
            assert len(headrace_admin.describe_topic(headrace_topic).partitions) == 1

        @pytest.mark.parametrize("odd", ["a/b ä", "x" * 300])
        def test_a_test_may_have_any_name(headrace_topic, odd):
            assert headrace_topic.startswith("test_a_test_may_have_any_name-")
        """
    )
    assert outcomes(pytester) == {"passed": 4}


def test_a_broker_of_a_process_of_its_own_can_be_killed(pytester) -> None:
    pytester.makepyfile(
        """
        import headrace

        def test_killed(headrace_broker_proc):
            with headrace.Producer(headrace_broker_proc.bootstrap) as producer:
                producer.send("orders", b"a").result(20)
                headrace_broker_proc.kill()
                headrace_broker_proc.start()
                assert producer.send("orders", b"b").result(20).offset == 1
        """
    )
    assert outcomes(pytester) == {"passed": 1}


EXTERNAL = """
    def test_there(headrace_broker_noproc, headrace_bootstrap, headrace_topic, headrace_client, headrace_admin):
        assert headrace_bootstrap == headrace_broker_noproc.bootstrap
        assert headrace_topic in headrace_admin.topics()
        headrace_client.producer().send(headrace_topic, b"a").result()
"""


def test_a_cluster_that_runs_anyway_is_used_if_it_is_named(pytester) -> None:
    pytester.makepyfile(EXTERNAL)
    with Broker() as broker:
        assert outcomes(pytester, f"--headrace-bootstrap={broker.bootstrap}") == {"passed": 1}
        assert broker.topics() == [], "the test's topic stays in the cluster"


def test_a_test_for_a_cluster_is_skipped_where_none_is_named(pytester) -> None:
    pytester.makepyfile(EXTERNAL)
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs a cluster: pass --headrace-bootstrap=HOST:PORT*"])


def test_factories_make_more_of_each(pytester) -> None:
    pytester.makeconftest(
        """
        from headrace.testing import ManualClock, factories

        strict = factories.broker(configs={"auto.create.topics.enable": "false"}, scope="module")
        timeless = factories.broker(clock=ManualClock, scope="function")
        strict_address = factories.bootstrap("strict", scope="module")
        wide = factories.topic("strict", partitions=4)
        strict_admin = factories.admin("strict")
        strict_client = factories.client("strict")
        durable = factories.broker_proc(configs={"num.partitions": "2"})
        elsewhere = factories.broker_noproc("127.0.0.1:1")
        """
    )
    pytester.makepyfile(
        """
        import headrace

        def test_all(strict, headrace_broker, strict_address, wide, strict_admin, strict_client):
            assert strict is not headrace_broker
            assert strict_address == strict.bootstrap
            assert strict.topics() == [wide] == strict_admin.topics()
            assert strict_client.producer().send(wide, b"a", partition=3).result().partition == 3
            assert headrace_broker.topics() == []

        def test_time_by_hand(timeless):
            before_ms = timeless.now_ms()
            timeless.advance(86_400_000)
            assert timeless.now_ms() == before_ms + 86_400_000

        def test_processes(durable, elsewhere):
            assert elsewhere.bootstrap == "127.0.0.1:1"
            with headrace.Admin(durable.bootstrap) as admin:
                admin.create_topic("t")
                assert len(admin.describe_topic("t").partitions) == 2
        """
    )
    assert outcomes(pytester) == {"passed": 3}
