"""The broker: a folder for each capability, wired together by :mod:`cometmq.broker.controller`."""
