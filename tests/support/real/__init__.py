"""Real processes: daemons, the threaded and the asyncio client, timerctl; and the sources of this project."""
