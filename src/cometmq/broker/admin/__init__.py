"""Requests from administration tools (AdminBrokerProcessor), one module per subject."""
