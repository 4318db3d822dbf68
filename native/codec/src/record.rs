//! The record of a message in the CommitLog.

use super::constants::{MESSAGE_MAGIC, RECORD_WITHOUT_HOSTS_BYTES, TOPIC_LENGTH_BYTES};

/// All of a record but its offsets.
pub struct Record<'a> {
    pub body: &'a [u8],
    pub queue_id: i32,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    /// The log offset of the half message that this one was, otherwise 0.
    pub prepared_transaction_offset: i64,
    /// The length and the bytes of the topic.
    pub topic: &'a [u8],
}

impl Record<'_> {
    /// Bytes of the record with properties of that length.
    pub fn size(&self, properties_length: usize) -> usize {
        RECORD_WITHOUT_HOSTS_BYTES
            + self.born_host.len()
            + self.store_host.len()
            + self.body.len()
            + self.topic.len()
            - TOPIC_LENGTH_BYTES
            + properties_length
    }

    /// Append the record up to its properties, which follow.
    pub fn write(
        &self,
        size: i32,
        queue_offset: i64,
        log_offset: i64,
        properties_length: i16,
        out: &mut Vec<u8>,
    ) {
        let crc = crc32fast::hash(self.body) & 0x7FFF_FFFF;
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        out.extend_from_slice(&crc.to_be_bytes());
        out.extend_from_slice(&self.queue_id.to_be_bytes());
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&queue_offset.to_be_bytes());
        out.extend_from_slice(&log_offset.to_be_bytes());
        out.extend_from_slice(&self.sys_flag.to_be_bytes());
        out.extend_from_slice(&self.born_timestamp.to_be_bytes());
        out.extend_from_slice(self.born_host);
        out.extend_from_slice(&self.store_timestamp.to_be_bytes());
        out.extend_from_slice(self.store_host);
        out.extend_from_slice(&self.reconsume_times.to_be_bytes());
        out.extend_from_slice(&self.prepared_transaction_offset.to_be_bytes());
        out.extend_from_slice(&(self.body.len() as i32).to_be_bytes());
        out.extend_from_slice(self.body);
        out.extend_from_slice(self.topic);
        out.extend_from_slice(&properties_length.to_be_bytes());
    }
}
