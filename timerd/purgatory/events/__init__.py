"""The ring of events, from which late registrations learn what came before them. Delivery is in operation/."""
