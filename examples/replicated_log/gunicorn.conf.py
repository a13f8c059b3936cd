"""Three workers, of which each is a replica. Another one would find no number that is free."""

from timerd_client.web.gunicorn import *  # noqa: F403  # SIGTERM and SIGHUP answer the open polls

wsgi_app = "app:application"
workers = 3
worker_class = "gthread"
threads = 50
