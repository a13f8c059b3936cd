"""Four workers, which load the application after their fork."""

from timerd_client.web.gunicorn import *  # noqa: F403  # SIGTERM and SIGHUP answer the waiting requests

wsgi_app = "app:application"
workers = 4
worker_class = "gthread"
threads = 20
