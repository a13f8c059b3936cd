"""Delayed operations whose owner evaluates the condition, as in Kafka's purgatories; for threads and for asyncio."""
