"""What bench/deliveries.py runs: the process that sends."""
