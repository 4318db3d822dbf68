"""Connections and their sockets: how they are accepted, opened, polled, read by clients and limited."""
