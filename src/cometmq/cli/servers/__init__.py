"""Server commands: ``serve``, ``namesrv``, ``broker``, ``proxy``; and ``backup`` and ``tls`` for their files."""
