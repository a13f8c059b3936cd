"""The benches: suites that measure, the rivals and attacks that they run, and what they share (lib)."""
