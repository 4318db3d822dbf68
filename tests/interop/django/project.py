"""The settings with which Django's test cases run."""

import os

SECRET_KEY = "a key for tests"
USE_TZ = True
INSTALLED_APPS = ["cometmq.integrations.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "OPTIONS": {"timeout": 30},
        "TEST": {"NAME": os.environ["TASKS_DATABASE"]},
    }
}
