"""Delayed operations whose owner evaluates the condition, as Kafka's purgatories have them; for both faces."""
