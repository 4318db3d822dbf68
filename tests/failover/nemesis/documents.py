"""All documents that a set's key in etcd ever had: etcd keeps them as revisions."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

from tests.failover.etcd_servers import EtcdCluster

from cometmq.broker.failover.document import Document, decode_document


def document_at(engine: EtcdCluster, key: str, revision: int = 0) -> tuple[Document, int, int] | None:
    """Return the document of a revision (0: of now), its version, and the version of the first one.

    ``None`` if there is none, or etcd does not answer.
    """
    request = {"key": base64.b64encode(key.encode()).decode(), "revision": str(revision)}
    for at in range(len(engine.members)):
        with suppress(OSError):
            answer: Any = engine.post("/v3/kv/range", request, at)
            if not answer.get("kvs"):
                return None
            (pair,) = answer["kvs"]
            document = decode_document(base64.b64decode(pair["value"]))
            return document, int(pair["mod_revision"]), int(pair["create_revision"])
    return None


def all_documents(engine: EtcdCluster, key: str) -> list[tuple[str, Document]]:
    """Return the versions and documents of a key from the first one on."""
    documents: list[tuple[str, Document]] = []
    found = document_at(engine, key)
    while found is not None:
        document, changed, created = found
        documents.append((str(changed), document))
        found = document_at(engine, key, changed - 1) if changed > created else None
    return documents[::-1]
