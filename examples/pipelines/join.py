"""Join two streams: each order with the payment that arrives within an hour.

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
    """Join by order id; the watermarks limit how long an order waits for its payment, and so the state."""
    in_time = f.expr("order_id = id AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR")
    return (
        orders.withWatermark("at", "5 minutes")
        .join(payments.withWatermark("paid_at", "5 minutes"), in_time)
        .select("id", "euros", "paid_at")
    )
