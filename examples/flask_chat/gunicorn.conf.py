"""Four workers. With `worker_class = "gevent"` one worker holds thousands of polls."""

from timerd_client.web.gunicorn import *  # noqa: F403  # SIGTERM and SIGHUP answer the open polls

wsgi_app = "app:application"
workers = 4
worker_class = "gthread"
threads = 100
