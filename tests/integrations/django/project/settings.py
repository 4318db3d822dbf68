"""Settings of a Django project whose tasks run by CometMQ; the environment has what a test chooses."""

import json
import os

import django

SECRET_KEY = "a key for tests"
USE_TZ = True
TIME_ZONE = "UTC"
LOGGING_CONFIG = None
STATIC_URL = "static/"  # tests that look at all objects of the process touch Django's lazy storage of static files
ROOT_URLCONF = "tests.integrations.django.project.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "cometmq.integrations.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
_DATABASE = os.environ.get("TASKS_DATABASE", ":memory:")
_SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": _DATABASE, "OPTIONS": {"timeout": 30}}
_POSTGRES = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "lake", "HOST": "127.0.0.1"}
DATABASES = {"default": {**_POSTGRES, "PORT": _DATABASE.rpartition(":")[2]} if "//" in _DATABASE else _SQLITE}
_BACKEND = "cometmq.integrations.django.CometMQBackend"
QUEUES = ["default", "mails", "Büro/nachts 1"]
TASKS = {
    "default": {"BACKEND": _BACKEND, "QUEUES": QUEUES, "OPTIONS": json.loads(os.environ.get("TASKS_OPTIONS", "{}"))},
    "plain": {"BACKEND": _BACKEND, "OPTIONS": {"results": False, "prefix": "plain"}},
    "patient": {
        "BACKEND": _BACKEND,
        "OPTIONS": {"prefix": "patient", "retry_delay_s": 0, "max_attempts": 3, "invisible_s": 10},
    },
}
