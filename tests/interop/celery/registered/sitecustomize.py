"""Registers ``cometmq://`` in every Python that has this folder on its path, also in workers that suites start."""

import importlib
import os

if any(os.environ.get(name, "").startswith("cometmq") for name in ("TEST_BROKER", "KOMBU_PROOF_URL")):
    importlib.import_module("cometmq.integrations.kombu")
