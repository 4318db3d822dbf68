"""Copies a topic with phones encrypted for each user, then erases one: python examples/spark/mask.py NAMESRV TOPIC TO.

Bodies are JSON with userId and phone, such as {"userId": "user-1", "phone": "0123"}.
"""

import base64
import os
import sys
from pathlib import Path

from cometmq.spark import (
    MASTER_VARIABLE,
    KeyStore,
    MessageSource,
    Revealer,
    mask,
    master_key_place,
    revealed_messages,
    rules_from_options,
)

namesrv, topic, to = sys.argv[1:]
keys = Path(to).with_name(f"{Path(to).name}-keys")
os.environ.setdefault(MASTER_VARIABLE, base64.b64encode(os.urandom(32)).decode())  # store yours in a safe place

rules = rules_from_options(["$.phone=encrypt", "$.email=drop"], subject="$.userId")
print(mask(MessageSource(namesrv), topic, rules, to, keys=keys, master="local[2]").render())

store = KeyStore(keys, master_key_place(None))
for subject in (None, "user-1"):
    if subject is not None:
        store.forget(subject)
    revealer = Revealer(store.key_of)
    messages = list(revealed_messages(to, revealer, apart=print))
    print(f"{len(messages)} messages: {revealer.opened} values opened, {revealer.erased} erased")
