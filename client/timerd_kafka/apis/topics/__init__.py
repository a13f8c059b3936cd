"""The APIs of the cluster and its topics."""
