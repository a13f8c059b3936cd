"""The ring of events: a late registration finds there the events after its mark. Delivery is in operation/."""
