"""The broker: one capability a module, wired together by :mod:`cometmq.broker.controller`."""
