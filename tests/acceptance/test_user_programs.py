"""Programs that a user can write from the documentation, run with the documented commands."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import headrace
from headrace.kinesis import AwsSettings
from headrace.kinesis.blocking import Producer as StreamProducer
from tests.acceptance.user_programs import PROGRAMS, ROOT, Shell
from tests.fixtures.processes import running_server

CUSTOMERS = ("alice", "bob", "carol", "dave")


def bills_of(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_an_order_service_with_retries_dead_letters_and_redrive(tmp_path: Path) -> None:
    bills = tmp_path / "bills"
    orders: list[dict[str, Any]] = [
        {"id": number, "customer": CUSTOMERS[number % 4], "total": -1 if number == 8 else number}
        for number in range(12)
    ]
    billed = [each["id"] for each in orders if each["customer"] != "carol" and each["id"] != 8]
    with running_server(tmp_path / "broker", memory=True) as server:
        at = ["-b", server.bootstrap]
        shell = Shell(tmp_path, BOOTSTRAP=server.bootstrap, BILLS=str(bills))
        lines = [*map(json.dumps, orders), "no JSON"]
        shell.run("topic", "create", "orders", "-p", "2", *at)
        shell.run("produce", "orders", *at, lines="\n".join(lines) + "\n")

        with shell.started("-m", "headrace", "run", "billing:app") as service:
            service.wait_until(
                lambda: [each["records"] for each in shell.json("dlq", "list", *at)] == [5],
                "five dead letters",
            )
            service.wait_until(lambda: sorted(bills_of(bills)) == billed, "all bills")
            service.stop()
        letters = shell.json("dlq", "show", "orders", *at)
        kinds = Counter(each["error_type"] for each in letters)
        assert kinds == {"PaymentDownError": 3, "ValueError": 1, "SerializationError": 1}
        invoices = shell.run("consume", "invoices", "-e", "--format", "json", *at).splitlines()
        attempts = {
            each["key"]: json.loads(each["value"])["attempt"] for each in map(json.loads, invoices)
        }
        assert attempts == {"alice": 1, "bob": 3, "dave": 1}

        redrive = ["dlq", "redrive", "orders", "--error-type", "PaymentDownError", *at]
        planned = shell.json(*redrive, "--dry-run")
        assert (planned["sent"], planned["passed_over"]) == (3, 2)
        assert shell.json(*redrive)["sent"] == 3
        with shell.started("-m", "headrace", "run", "billing:app", PAYMENT_UP="1") as service:
            everything = sorted([*billed, 2, 6, 10])
            service.wait_until(lambda: sorted(bills_of(bills)) == everything, "carol's bills")
            service.stop()
        purge = ["dlq", "purge", "orders", "--sent", "--yes", *at]
        purged = shell.json(*purge)
        assert purged["deleted"] + purged["kept"] == 5
        left = Counter(each["error_type"] for each in shell.json("dlq", "show", "orders", *at))
        assert (left["ValueError"], left["SerializationError"]) == (1, 1), "they were not sent"
        shell.run("dlq", "redrive", "orders", "--all", "--max-redrives", "9", *at)
        assert shell.json(*purge)["kept"] == 0


def test_a_suite_of_tests_with_another_client(tmp_path: Path) -> None:
    suite = shutil.copytree(PROGRAMS / "suite", tmp_path / "suite")
    shell = Shell(suite, PYTHONPATH=str(ROOT / "src"))
    output = shell.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", ".")
    assert "6 passed" in output


def test_asyncio_and_transactions_on_every_kind_of_broker(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    program = str(PROGRAMS / "transfers.py")
    assert shell.python(program, "embedded") == "50\n"
    with running_server(tmp_path / "dev", memory=True) as server:
        assert shell.python(program, server.bootstrap) == "50\n"
    with running_server(tmp_path / "serve") as server:
        assert shell.python(program, server.bootstrap) == "50\n"


def test_a_worker_over_a_stream_of_kinesis(tmp_path: Path) -> None:
    keys = {
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "fake",
        "AWS_SECRET_ACCESS_KEY": "fake",
    }
    server = ["-m", "headrace.testing.kinesis", "--stream", "parcels:2", "--region", "eu-central-1"]
    with running_server(tmp_path / "broker", memory=True) as broker:
        at = ["-b", broker.bootstrap]
        with Shell(tmp_path).started(*server) as fake:
            [url] = fake.lines(1)
            shell = Shell(tmp_path, BOOTSTRAP=broker.bootstrap, AWS_ENDPOINT_URL=url, **keys)
            settings = AwsSettings(
                region="eu-central-1",
                endpoint_url=url,
                access_key_id="fake",
                secret_access_key="fake",
            )
            with StreamProducer(settings) as producer:
                for number in range(6):
                    address = "" if number == 3 else "1 High Street"
                    parcel = json.dumps({"id": number, "address": address}).encode()
                    producer.send("parcels", parcel, partition_key=str(number)).result(20)

            with shell.started("-m", "headrace", "run", "parcels:app") as worker:
                delivered = {line.split()[1] for line in worker.lines(5)}
                assert delivered == {"0", "1", "2", "4", "5"}
                worker.wait_until(
                    lambda: "parcels" in shell.run("dlq", "list", *at), "the dead letter"
                )
                [document] = shell.json("kinesis", "describe", "delivery")
                assert document["owners"] == ["van-7"]
                assert [each["owner"] for each in document["shards"]] == ["van-7", "van-7"]
                worker.stop()
            [group] = shell.json("kinesis", "groups")
            assert (group["group"], group["shards"], group["owned"]) == ("delivery", 2, 0)
            [letter] = shell.json("dlq", "show", "kinesis.parcels", *at)
            assert letter["error_type"] == "ValueError"

            reset = ["kinesis", "reset", "delivery", "--to", "TRIM_HORIZON", "--wait", "0", "--yes"]
            shell.run(*reset)
            with shell.started("-m", "headrace", "run", "parcels:app") as worker:
                assert {line.split()[1] for line in worker.lines(5)} == delivered
                worker.stop()


def test_one_program_for_every_kind_of_broker(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    program = str(PROGRAMS / "counting.py")
    amounts = [str(number) for number in range(300)]
    everything = {f"counted {amount}" for amount in amounts}
    assert set(shell.python(program, "embedded").splitlines()) == everything

    with running_server(tmp_path / "dev", memory=True) as server:
        at = ["-b", server.bootstrap]
        shell.run("topic", "create", "amounts", "-p", "3", *at)
        shell.run("produce", "amounts", *at, lines="\n".join(amounts) + "\n")
        with shell.started(program, server.bootstrap) as worker:
            assert set(worker.ended().splitlines()) == everything

    with running_server(tmp_path / "serve") as server:
        at = ["-b", server.bootstrap]
        shell.run("topic", "create", "amounts", "-p", "3", *at)
        shell.run("produce", "amounts", *at, lines="\n".join(amounts[:150]) + "\n")
        with shell.started(program, server.bootstrap) as worker:
            before = worker.lines(150)
            server.kill()
            server.start()
            shell.run("produce", "amounts", *at, lines="\n".join(amounts[150:]) + "\n")
            after = worker.ended().splitlines()
        assert {*before, *after} == everything
        hot = shutil.copytree(server.data or tmp_path, tmp_path / "hot/data")
        server.stop()
        cold = shutil.copytree(server.data or tmp_path, tmp_path / "cold/data")
    for copy in (hot, cold):
        with running_server(copy.parent) as server, headrace.Admin(server.bootstrap) as admin:
            assert admin.describe_topic("amounts") is not None
            with headrace.Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
                consumer.assign(consumer.partitions_for("amounts"))
                found: list[bytes] = []
                while len(found) < 300:
                    found += [record.value for record in consumer.poll(5)]
            assert sorted(map(int, found)) == list(range(300))
