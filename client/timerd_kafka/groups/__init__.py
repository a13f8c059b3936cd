"""Groups of consumers: members, rebalances and committed offsets, as in Kafka's classic protocol.

    member, group    the state of one group             sessions      how long a silent member is believed alive
    rebalances       joining, syncing, and their ends    remembered    what outlives a broker, in one file a group
    coordinator      what the APIs call                  messages      what they ask, and are answered

All state is changed in the broker's loop. Source: Kafka, GroupCoordinator and GroupMetadata (3.x).
"""
