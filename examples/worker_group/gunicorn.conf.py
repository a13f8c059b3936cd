"""One worker: it coordinates the group, and keeps its members in memory. A thread for each request that waits."""

from timerd_client.web.gunicorn import *  # noqa: F403  # SIGTERM and SIGHUP answer the open requests

wsgi_app = "app:application"
workers = 1
worker_class = "gthread"
threads = 100
