"""Requests from administration tools (AdminBrokerProcessor), with one module for each subject."""
