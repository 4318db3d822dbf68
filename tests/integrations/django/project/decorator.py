"""The decorator ``task`` of Django 6, or of the package ``django-tasks``."""

from importlib.util import find_spec

if find_spec("django.tasks") is not None:
    from django.tasks import task
else:
    from django_tasks import task

__all__ = ["task"]
