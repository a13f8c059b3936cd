"""What suites share: arguments and documents, the report and its goals, and parts that several suites measure with."""
