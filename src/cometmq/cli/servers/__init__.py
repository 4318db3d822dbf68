"""The server commands ``serve``, ``namesrv``, ``broker`` and ``proxy``, and ``backup`` and ``tls`` for their files."""
