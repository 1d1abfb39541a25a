"""Add up amounts, with a broker in the process, `headrace dev` or `headrace serve`: one program for all of them.

python counting.py embedded         # writes the amounts, too
python counting.py HOST:PORT
"""

import sys

import headrace

TOTAL = 300


def make(target: "str | headrace.Broker") -> headrace.App:
    app = headrace.App(target)
    seen: set[int] = set()

    @app.worker("amounts", group="counting", ordering="none", concurrency=4)
    async def count(amount: int) -> None:
        seen.add(amount)
        print("counted", amount, flush=True)
        if len(seen) == TOTAL:
            app.stop()

    return app


def main() -> None:
    if sys.argv[1] != "embedded":
        make(sys.argv[1]).run()
        return
    with headrace.Broker() as broker:
        broker.create_topic("amounts", partitions=3)
        with headrace.Producer(broker, serde="json") as producer:
            for amount in range(TOTAL):
                producer.send("amounts", amount)
        make(broker).run()


if __name__ == "__main__":
    main()
