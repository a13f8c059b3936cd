"""Figures of Kafka that no suite here measures: from Confluent's article and from Kafka's own benchmark, with sources.

They were measured with other programs, on other machines or in another hour. So they give only an idea of where timerd
stands, and nothing here computes a ratio with them.
"""

from __future__ import annotations

ARTICLE = '"Apache Kafka, Purgatory, and Hierarchical Timing Wheels", Confluent: on its own machine'
TRUNK = "Kafka's own benchmark: JDK 17, another 2-core machine of this kind"
# For each case of the article's experiment: the requests a second after which the design saturates, and the source.
QUOTED: dict[str, dict[str, tuple[int | None, str]]] = {
    "low": {
        "Kafka, old": (40_000, f"{ARTICLE}; 1.2 cores busy beyond it"),
        "Kafka, timing wheels": (None, f"{ARTICLE}; no degradation up to the highest rate"),
        "Kafka, trunk of 2024": (450_000, TRUNK),
    },
    "high": {
        "Kafka, old": (25_000, f"{ARTICLE}; 1.2 cores busy beyond it"),
        "Kafka, timing wheels": (105_000, ARTICLE),
        "Kafka, trunk of 2024": (405_000, TRUNK),
    },
}


# Kafka's own purgatory in the runs of one hour, in process, with the article's load.
MACHINE_OF_THE_HOUR = "an AMD EPYC with 2 cores and pages of 4 KiB"
KAFKA_OF_THE_HOUR: dict[str, object] = {
    "program": "Kafka's own purgatory (JVM, warm)",
    "requests a second": "414,000 to 460,000",
    "CPU for a request": "4.0 to 5.1 us",
}
