//! Protobuf: the fields of a message, one behind the other.

/// Reads the fields of one message.
pub struct Fields<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Fields { data, at: 0 }
    }

    /// The key of the next field: its number and its wire type. `Some(None)` at the end; `None` when it is malformed.
    pub fn key(&mut self) -> Option<Option<u64>> {
        if self.at == self.data.len() {
            return Some(None);
        }
        self.short().map(Some)
    }

    /// A key or a length: protobuf's libraries refuse one of more than five bytes.
    fn short(&mut self) -> Option<u64> {
        let begin = self.at;
        let value = self.varint()?;
        (self.at - begin <= 5 && value <= u64::from(u32::MAX)).then_some(value)
    }

    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.data.get(self.at)?;
            self.at += 1;
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.short()?).ok()?;
        let end = self.at.checked_add(length)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

/// The name in a `Resource` of RocketMQ without a namespace.
pub fn resource_name(data: &[u8]) -> Option<&str> {
    let mut name = None;
    let mut fields = Fields::new(data);
    while let Some(key) = fields.key()? {
        match key {
            0x0A if fields.bytes()?.is_empty() => (),
            0x12 if name.is_none() => name = Some(fields.text()?),
            _ => return None,
        }
    }
    name
}

/// Append a number.
pub fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes of a number.
pub fn varint_length(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Append a field of bytes with a number below 16.
pub fn write_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Bytes of such a field.
pub fn bytes_length(length: usize) -> usize {
    1 + varint_length(length as u64) + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for number in [0, 1, 127, 128, 300, 1 << 35, u64::MAX] {
            let mut out = Vec::new();
            write_varint(number, &mut out);
            assert_eq!(out.len(), varint_length(number));
            assert_eq!(Fields::new(&out).varint(), Some(number));
            assert_eq!(Fields::new(&out[..out.len() - 1]).varint(), None);
        }
        assert_eq!(Fields::new(&[0xFF; 11]).varint(), None);
    }

    #[test]
    fn a_length_is_not_trusted() {
        let huge = [
            0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, b'a',
        ];
        assert_eq!(Fields::new(&huge).bytes(), None);
        assert_eq!(Fields::new(&[2, b'a']).bytes(), None);
        let padded = [0x81, 0x80, 0x80, 0x80, 0x00, b'a'];
        assert_eq!(Fields::new(&padded).bytes(), Some(&b"a"[..]));
        let six = [0x81, 0x80, 0x80, 0x80, 0x80, 0x00, b'a'];
        assert_eq!(Fields::new(&six).bytes(), None);
        assert_eq!(Fields::new(&six).key(), None);
        assert_eq!(Fields::new(&[1, 0xFF]).text(), None);
    }
}
