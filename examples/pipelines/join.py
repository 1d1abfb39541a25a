"""Two streams joined: each order with the payment that comes for it within an hour.

headrace pipeline run examples/pipelines/join.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.pipelines import pipeline, topic


@pipeline(
    source={
        "orders": topic("orders", schema="id BIGINT, euros DOUBLE, at TIMESTAMP", create=2),
        "payments": topic("payments", schema="order_id BIGINT, paid_at TIMESTAMP", create=2),
    },
    sink=topic("paid-orders", key="id", create=2),
)
def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """The watermarks say for how long an order has to wait for its payment, and so what is kept."""
    in_time = f.expr("order_id = id AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR")
    return (
        orders.withWatermark("at", "5 minutes")
        .join(payments.withWatermark("paid_at", "5 minutes"), in_time)
        .select("id", "euros", "paid_at")
    )
