"""Commands that serve: ``serve``, ``namesrv``, ``broker``."""
