"""One module an API: it takes a request, and gives its answer. What waits, waits for an operation of timerd.

data/      records: produce, fetch, offsets, deletion of records, ids of producers
topics/    the cluster: versions, metadata, topics, configurations
groups/    groups of consumers
"""
