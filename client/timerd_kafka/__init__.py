"""A Kafka broker for tests and development, without Java: every wait of a client is a delayed operation of timerd.

    python -m timerd_kafka --workers 4 --replicas 3 --data DIR

wire/        frames, requests and answers; kio is the codec
log/         the record batches of a partition, in a file
cluster/     settings, topics, and the brokers of each partition
replicas/    the partitions of one broker: leader and follower
waits/       the waits of requests, for operations of timerd
groups/      groups of consumers
broker/      one broker and its process
apis/        one module for each API
supervisor/  the process that starts brokers

No other part of timerd imports this package. docs/kafka.md describes its use.
"""
