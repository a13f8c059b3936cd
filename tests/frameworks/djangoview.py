"""A Django application under ASGI for tests. Each GET /pid advances a watermark with the client of the process."""

from __future__ import annotations

import os

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import timerd as td
from timerd_client.web import ASGI

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="of a test")


def pid(request: HttpRequest) -> HttpResponse:
    td.client().advance("asked", int(request.GET.get("count", 1)))
    return HttpResponse(str(os.getpid()))


urlpatterns = [path("pid", pid)]
application = ASGI(get_asgi_application())
