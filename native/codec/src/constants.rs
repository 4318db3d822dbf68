//! Written by scripts/core_constants from src/cometmq/message; offsets in records are those with IPv4 hosts.

pub const MESSAGE_MAGIC: i32 = -626843481;
pub const MESSAGE_MAGIC_V2: i32 = -626843477;
pub const COMPRESSED: i32 = 1;
pub const BORNHOST_V6: i32 = 16;
pub const STOREHOST_V6: i32 = 32;
pub const TRANSACTION_PREPARED: i32 = 4;
pub const TRANSACTION_COMMIT: i32 = 8;
pub const TRANSACTION_ROLLBACK: i32 = 12;
pub const IPV4_HOST_BYTES: usize = 8;
pub const IPV6_HOST_BYTES: usize = 20;
pub const MIN_RECORD_BYTES: usize = 91;
pub const RECORD_WITHOUT_HOSTS_BYTES: usize = 75;
pub const BODY_LENGTH_BYTES: usize = 4;
pub const TOPIC_LENGTH_BYTES: usize = 1;
pub const TOPIC_LENGTH_V2_BYTES: usize = 2;
pub const PROPERTIES_LENGTH_BYTES: usize = 2;

pub mod record {
    pub const SIZE: usize = 0;
    pub const MAGIC: usize = 4;
    pub const BODY_CRC: usize = 8;
    pub const QUEUE_ID: usize = 12;
    pub const FLAG: usize = 16;
    pub const QUEUE_OFFSET: usize = 20;
    pub const PHYSICAL_OFFSET: usize = 28;
    pub const SYS_FLAG: usize = 36;
    pub const BORN_TIMESTAMP: usize = 40;
    pub const BORN_HOST: usize = 48;
    pub const STORE_TIMESTAMP: usize = 56;
    pub const STORE_HOST: usize = 64;
    pub const RECONSUME_TIMES: usize = 72;
    pub const PREPARED_TRANSACTION_OFFSET: usize = 76;
    pub const BODY_LENGTH: usize = 84;
    pub const BYTES: usize = 88;
}

pub mod queue_unit {
    pub const OFFSET: usize = 0;
    pub const SIZE: usize = 8;
    pub const TAGS: usize = 12;
    pub const BYTES: usize = 20;
}

pub mod index_entry {
    pub const HASH: usize = 0;
    pub const OFFSET: usize = 4;
    pub const SECONDS: usize = 12;
    pub const PREVIOUS: usize = 16;
    pub const BYTES: usize = 20;
}

pub mod batch_head {
    pub const SIZE: usize = 0;
    pub const MAGIC: usize = 4;
    pub const BODY_CRC: usize = 8;
    pub const FLAG: usize = 12;
    pub const BODY_LENGTH: usize = 16;
    pub const BYTES: usize = 20;
}
