//! A stored record, read back.

const MAGIC: i32 = 0xDAA3_20A7_u32 as i32;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;

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

/// Bytes that are taken from the front.
struct Front<'a>(&'a [u8]);

impl<'a> Front<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        if length > self.0.len() {
            return None;
        }
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn host(&mut self, is_v6: bool) -> Option<&'a [u8]> {
        self.take(if is_v6 { 20 } else { 8 })
    }
}

impl<'a> Stored<'a> {
    /// Read `data`, which is one record with the magic of RocketMQ 4; `None` for all else, and for a damaged body.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        Self::read_with(data, true)
    }

    /// As `read`; with `checks_body` false a damaged body is not seen.
    pub fn read_with(data: &'a [u8], checks_body: bool) -> Option<Self> {
        let mut front = Front(data);
        if usize::try_from(front.int()?).ok()? != data.len() || front.int()? != MAGIC {
            return None;
        }
        let crc = front.int()?;
        let queue_id = front.int()?;
        let flag = front.int()?;
        let queue_offset = front.long()?;
        let log_offset = front.long()?;
        let sys_flag = front.int()?;
        let born_timestamp = front.long()?;
        let born_host = front.host(sys_flag & BORN_HOST_V6 != 0)?;
        let store_timestamp = front.long()?;
        front.host(sys_flag & STORE_HOST_V6 != 0)?;
        let reconsume_times = front.int()?;
        front.take(8)?; // prepared transaction offset
        let length = usize::try_from(front.int()?).ok()?;
        let body = front.take(length)?;
        let length = usize::from(*front.take(1)?.first()?);
        let topic = front.take(length)?;
        let length = usize::try_from(front.short()?).ok()?;
        let properties = std::str::from_utf8(front.take(length)?).ok()?;
        let is_sound = !checks_body || (crc32fast::hash(body) & 0x7FFF_FFFF) as i32 == crc;
        (front.0.is_empty() && is_sound).then_some(Stored {
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            reconsume_times,
            body,
            topic,
            properties,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn what_was_written_is_read_and_no_damage_of_it() {
        let record = Record {
            body: b"hello",
            queue_id: 1,
            flag: 2,
            sys_flag: BORN_HOST_V6,
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
            (&[7; 20][..], 3, BORN_HOST_V6)
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
