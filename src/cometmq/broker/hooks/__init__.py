"""Hooks of a broker: functions of installed packages that see requests and messages."""
