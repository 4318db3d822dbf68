//! A stored record, read back.

use super::constants::{record, MESSAGE_MAGIC};
use super::layout::{int, parts_of, Parts};

/// The parts of a record.
pub struct Stored<'a> {
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub reconsume_times: i32,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a str,
}

fn long(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at..at + 8)?.try_into().ok()?))
}

impl<'a> Stored<'a> {
    /// Read `data`, which is one record with the magic of RocketMQ 4; `None` for all else, and for a damaged body.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        Self::read_with(data, true)
    }

    /// As `read`; with `checks_body` false a damaged body is not seen.
    pub fn read_with(data: &'a [u8], checks_body: bool) -> Option<Self> {
        let parts = parts_of(data)?;
        if int(data, record::MAGIC)? != MESSAGE_MAGIC {
            return None;
        }
        let body = data.get(parts.body.clone())?;
        if checks_body
            && (crc32fast::hash(body) & 0x7FFF_FFFF) as i32 != int(data, record::BODY_CRC)?
        {
            return None;
        }
        Self::of(data, &parts)
    }

    /// The fields of `data`, whose parts are known.
    pub fn of(data: &'a [u8], parts: &Parts) -> Option<Self> {
        Some(Stored {
            queue_id: int(data, record::QUEUE_ID)?,
            flag: int(data, record::FLAG)?,
            queue_offset: long(data, record::QUEUE_OFFSET)?,
            log_offset: long(data, record::PHYSICAL_OFFSET)?,
            sys_flag: int(data, record::SYS_FLAG)?,
            born_timestamp: long(data, record::BORN_TIMESTAMP)?,
            store_timestamp: long(data, parts.born_host.end)?,
            born_host: data.get(parts.born_host.clone())?,
            reconsume_times: int(data, parts.store_host_end)?,
            body: data.get(parts.body.clone())?,
            topic: data.get(parts.topic.clone())?,
            properties: std::str::from_utf8(data.get(parts.properties.clone())?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::BORNHOST_V6;
    use crate::record::Record;

    #[test]
    fn what_was_written_is_read_and_no_damage_of_it() {
        let record = Record {
            body: b"hello",
            queue_id: 1,
            flag: 2,
            sys_flag: BORNHOST_V6,
            born_timestamp: 3,
            born_host: &[7; 20],
            store_timestamp: 4,
            store_host: &[8; 8],
            reconsume_times: 5,
            prepared_transaction_offset: 6,
            topic: b"\x01T",
        };
        let mut data = Vec::new();
        let size = record.size(3);
        record.write(size as i32, 9, 10, 3, &mut data);
        data.extend_from_slice(b"a\x01b");
        assert_eq!(data.len(), size);
        let read = Stored::read(&data).unwrap();
        assert_eq!(
            (read.body, read.topic, read.properties),
            (&b"hello"[..], &b"T"[..], "a\u{1}b")
        );
        assert_eq!(
            (
                read.flag,
                read.queue_offset,
                read.log_offset,
                read.reconsume_times
            ),
            (2, 9, 10, 5)
        );
        assert_eq!(
            (read.born_host, read.born_timestamp, read.sys_flag),
            (&[7; 20][..], 3, BORNHOST_V6)
        );
        assert_eq!((read.queue_id, read.store_timestamp), (1, 4));
        let mut damaged = data.clone();
        damaged[data.len() - 9] ^= 1; // in the body
        assert!(Stored::read(&damaged).is_none());
        assert!(Stored::read_with(&damaged, false).is_some());
        for cut in 0..data.len() {
            assert!(Stored::read(&data[..cut]).is_none());
        }
        for at in [0, 4, 8, 39, data.len() - 4] {
            let mut damaged = data.clone();
            damaged[at] ^= 0x10;
            assert!(Stored::read(&damaged).is_none(), "{at}");
        }
    }
}
