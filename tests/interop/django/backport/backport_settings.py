"""The settings with which the test cases of ``django-tasks`` run: its own, with a database and our application."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "cometmq.integrations.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "OPTIONS": {"timeout": 30},
        "TEST": {"NAME": os.environ["TASKS_DATABASE"]},
    }
}
