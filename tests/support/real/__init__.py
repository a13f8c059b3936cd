"""Real processes: daemons, both faces of the client, timerctl; and the sources of this project."""
