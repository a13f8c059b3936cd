"""Parts that suites share: arguments and documents, the report and its goals, and rigs of several suites."""
