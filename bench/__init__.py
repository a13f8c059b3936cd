"""The benches: suites that measure, the rivals and attacks that they run, and their shared parts (lib)."""
