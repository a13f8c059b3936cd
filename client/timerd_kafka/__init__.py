"""A Kafka broker for tests and development, without Java: every wait of a client is a delayed operation of timerd.

    python -m timerd_kafka --workers 4 --replicas 3 --data DIR

wire/        frames, requests and answers; kio is the codec
log/         the record batches of a partition, in a file
cluster/     settings, topics, and the brokers of each partition
replicas/    the partitions of one broker: leader and follower
waits/       the waits of requests, for operations of timerd
faults/      errors, late answers and cut connections on demand
groups/      groups of consumers
broker/      the state of one broker
apis/        one module for each API
worker/      the process of one broker
supervisor/  the process that starts brokers
testing/     a cluster for tests, and its fixtures

No other part of timerd imports this package. docs/howto/kafka.md describes its use.
"""
