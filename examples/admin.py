"""Look at a cluster, create a topic, find a message, show and reset the offsets of a group.

python examples/admin.py [NAMESRV]
"""

import sys

from cometmq.client import Message
from cometmq.client.sync import SyncAdmin, SyncProducer


def main(namesrv: str) -> None:
    """Work on the topic `parcels` and the group `parcel-service`."""
    with SyncAdmin(namesrv) as admin, SyncProducer("post-office", namesrv) as producer:
        for name, address in admin.masters().items():
            print(f"broker {name} at {address}: {admin.runtime_info(address)['brokerVersionDesc']}")
        admin.create_topic("parcels", queues=4)
        admin.create_group("parcel-service")
        print(f"parcels has {len(admin.queues('parcels'))} queues")

        result = producer.send(Message("parcels", b"a parcel"))
        print(f"found again: {admin.message_by_id(result.offset_msg_id).body.decode()}")

        admin.reset_offset("parcel-service", "parcels", 0)
        print(f"parcel-service has {admin.consume_progress('parcel-service', 'parcels').lag} to do")
        admin.reset_offset("parcel-service", "parcels", -1)
        print(f"parcel-service has {admin.consume_progress('parcel-service', 'parcels').lag} to do")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876")
