"""The ring of events: a late registration finds there what came after its mark. Delivery is in operation/."""
