"""What has happened to keys: the ring of events, from which late registrations learn what came before them."""
