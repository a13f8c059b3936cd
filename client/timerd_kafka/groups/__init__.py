"""Groups of consumers: members, rebalances and committed offsets, as in Kafka's classic protocol.

    member, group    the state of one group              sessions      the sessions of members
    rebalances       joining, syncing, and their ends    remembered    data that outlive a broker: a file for each group
    coordinator      the functions that the APIs call    messages      their requests and answers

All state is changed in the broker's loop. Source: Kafka, GroupCoordinator and GroupMetadata (3.x).
"""
