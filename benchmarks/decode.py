"""Measures how many records a core decodes to Arrow columns, without broker and Spark; one JSON line each.

python benchmarks/decode.py [--size 1024]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

from cometmq.message.hosts import encode_host
from cometmq.message.record import encode_record
from cometmq.spark.records.columns import COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode


def properties(number: int) -> str:
    """Properties as a producer makes them."""
    return f"KEYS\x01key-{number}\x02UNIQ_KEY\x017F00000100000000000000{number:010X}\x02TAGS\x01Tag{number % 3}\x02"


def main() -> None:
    """Decode the same block again and again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    size = parser.parse_args().size
    pool = [os.urandom(size) for _ in range(512)]
    count = 4_000_000 // (size + 250)
    data = b"".join(
        encode_record(
            topic="orders",
            queue_id=n % 8,
            queue_offset=n,
            physical_offset=n * 1200,
            body=pool[n % 512],
            properties_text=properties(n),
            born_timestamp=1_700_000_000_000 + n,
            born_host=encode_host("127.0.0.1", 50_000 + n % 16),
            store_timestamp=1_700_000_000_001 + n,
            store_host=encode_host("127.0.0.1", 10_911),
        )
        for n in range(count)
    )
    every = [column.name for column in COLUMNS if column.default]
    for name, columns in (("all columns", every), ("fixed columns", ["queueId", "queueOffset", "storeTimestamp"])):
        schema = arrow_schema(columns)
        seconds = []
        for _ in range(15):
            began = time.process_time()
            list(decode(Records(data), schema, broker_name="broker-a"))
            seconds.append(time.process_time() - began)
        figures = {"rows_per_cpu_s": round(count / statistics.median(seconds)), "body_bytes": size}
        print(json.dumps({"case": f"decode, {name}"} | figures), flush=True)


if __name__ == "__main__":
    main()
