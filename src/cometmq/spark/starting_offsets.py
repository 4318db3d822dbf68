"""Keeps where a stream begins until Spark has written it down itself.

``latest`` means the moment at which it is looked up. Spark writes the offsets of a stream's first batch into its
checkpoint and from then on they are fixed; a driver that dies before that, and begins anew later, would begin behind
what came between. Offsets that are looked up once, and kept in a file, are the same for every start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.durable import replace_file
from cometmq.spark.cluster import Cluster
from cometmq.spark.errors import OptionError, SparkSourceError
from cometmq.spark.options import LATEST, parse_options
from cometmq.spark.queues import Offsets, offsets_from_json, offsets_to_json
from cometmq.spark.readers import demand_topics, resolve_start

_NAMES: Final = ("startingOffsets", "startingTimestamp")


def kept_starting_offsets(path: str | Path, options: Mapping[str, str]) -> str:
    """Give ``startingOffsets`` as JSON: what ``path`` has kept, or what ``options`` say now, which it then keeps.

    A topic that is new, and a beginning that is asked for in other words, are looked up now.

    :param options: of the source, by the names of the documentation.
    :raises OptionError: an option is wrong, or a topic is not there.
    :raises SparkSourceError: the file is not what this function has written.
    :raises UnreachableError: nameservers or brokers do not answer.
    """
    path = Path(path)
    parsed = parse_options(dict(options))
    cluster = Cluster(parsed)
    queues = cluster.queues()
    demand_topics(parsed, queues)
    asked = {name: options[name] for name in _NAMES if name in options}
    kept = _kept(path, asked)
    # Queues of a broker that is away now stay named: to begin without them would be to begin elsewhere later. Queues
    # that a topic has got since then are not named, and so begin at their first message.
    topics, known = {queue.topic for queue in queues}, {queue.topic for queue in kept}
    begin = {queue: offset for queue, offset in kept.items() if queue.topic in topics}
    if topics - known:
        now = resolve_start(parsed, cluster, cluster.bounds(queues), LATEST)
        begin |= {queue: offset for queue, offset in now.items() if queue.topic not in known}
        replace_file(path, json.dumps({"asked": asked, "offsets": offsets_to_json(kept | begin)}).encode())
    return json.dumps(offsets_to_json(begin))


def _kept(path: Path, asked: Mapping[str, str]) -> Offsets:
    if not path.exists():
        return {}
    try:
        found: Any = json.loads(path.read_bytes())
        return offsets_from_json(found["offsets"]) if found["asked"] == asked else {}
    except (ValueError, KeyError, TypeError, OptionError) as error:
        raise SparkSourceError(
            f"{path} does not hold the offsets where a stream begins",
            next_step="name another file; or remove it, and the stream begins where its options say now",
        ) from error
