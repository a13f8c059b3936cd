"""Long polls in web applications: a wait ends with its request, and a request that cannot be served gets an answer.

    application = WSGI(application)              # Flask, Django, any WSGI application
    application = ASGI(application)              # FastAPI, Django, any ASGI application
    from timerd_client.web.gunicorn import *     # in gunicorn.conf.py: SIGTERM drains

docs/howto/web.md is the page for users. No framework and no server is imported here.
"""

from .asgi import ASGI
from .events import events, last_event_id
from .requests import drain
from .wsgi import WSGI

__all__ = ["ASGI", "WSGI", "drain", "events", "last_event_id"]
