"""Three workers. Each is a replica. A fourth worker would find no free number."""

from timerd_client.web.gunicorn import *  # noqa: F403  # SIGTERM and SIGHUP answer the open polls

wsgi_app = "app:application"
workers = 3
worker_class = "gthread"
threads = 50
