"""The partitions that one broker holds: as their leader, or as a follower that copies the leader's log."""
