"""One module for each API: it takes a request, and gives its answer.

If the request waits for records, replicas, members or a time, it waits for an operation of timerd.

data/      records: produce, fetch, offsets, deletion of records, ids of producers
topics/    the cluster: versions, metadata, topics, configurations
groups/    groups of consumers
"""
