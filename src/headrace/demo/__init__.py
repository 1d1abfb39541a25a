"""`headrace demo`: a year of real flights streamed into a broker and through a Spark pipeline, and checked.

`flights` reads the data, `stream` puts it into topics, `pipeline` is the Spark side, `statistics` computes the same
without Spark, `report` shows both, `run` is the order of things. `child` keeps the broker.
"""
