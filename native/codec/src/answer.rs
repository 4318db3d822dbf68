//! The answer to stored messages: a template in which only offsets, queue id and opaque differ.

const FLAG_RESPONSE: i32 = 1;

/// JSON up to the log offset in the message id, and the text before queue id, queue offset, opaque and the end.
pub type JsonParts = [Vec<u8>; 5];

/// What an answer says of stored messages.
pub struct Stored<'a> {
    pub is_batch: bool,
    /// The log offset of each message.
    pub log_offsets: &'a [i64],
    pub queue_id: i32,
    /// The offset of the first message.
    pub queue_offset: i64,
}

/// The parts of the answers of a broker.
pub struct Answers {
    /// Of a message, and of a batch, whose fields have another order.
    json: [JsonParts; 2],
    /// The message id up to the log offset.
    id_prefix: Vec<u8>,
    /// Binary: code, language and version.
    binary_head: Vec<u8>,
    /// Binary: the fields that are the same in every answer.
    binary_fields: Vec<u8>,
    scratch: Vec<u8>,
}

impl Answers {
    pub fn new(
        json: [JsonParts; 2],
        id_prefix: Vec<u8>,
        binary_head: Vec<u8>,
        binary_fields: Vec<u8>,
    ) -> Self {
        Answers {
            json,
            id_prefix,
            binary_head,
            binary_fields,
            scratch: Vec::new(),
        }
    }

    /// Append the frame of an answer.
    pub fn write(&mut self, is_binary: bool, opaque: i32, stored: &Stored<'_>, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&[0; 8]);
        if is_binary {
            self.write_binary(opaque, stored, out);
        } else {
            let [before_id, before_queue, before_offset, before_opaque, end] =
                &self.json[usize::from(stored.is_batch)];
            out.extend_from_slice(before_id);
            ids(stored.log_offsets, &self.id_prefix, out);
            out.extend_from_slice(before_queue);
            decimal(i64::from(stored.queue_id), out);
            out.extend_from_slice(before_offset);
            decimal(stored.queue_offset, out);
            out.extend_from_slice(before_opaque);
            decimal(i64::from(opaque), out);
            out.extend_from_slice(end);
        }
        let length = (out.len() - begin - 8) as u32;
        out[begin..begin + 4].copy_from_slice(&(length + 4).to_be_bytes());
        out[begin + 4..begin + 8]
            .copy_from_slice(&(u32::from(is_binary) << 24 | length).to_be_bytes());
    }

    fn write_binary(&mut self, opaque: i32, stored: &Stored<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.binary_head);
        out.extend_from_slice(&opaque.to_be_bytes());
        out.extend_from_slice(&FLAG_RESPONSE.to_be_bytes());
        out.extend_from_slice(&0i32.to_be_bytes()); // no remark
        let fields_at = out.len();
        out.extend_from_slice(&[0; 4]);
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.id_prefix);
        ids(stored.log_offsets, &self.id_prefix, &mut self.scratch);
        field(b"msgId", &self.scratch, out);
        self.scratch.clear();
        decimal(i64::from(stored.queue_id), &mut self.scratch);
        field(b"queueId", &self.scratch, out);
        self.scratch.clear();
        decimal(stored.queue_offset, &mut self.scratch);
        field(b"queueOffset", &self.scratch, out);
        out.extend_from_slice(&self.binary_fields);
        let length = (out.len() - fields_at - 4) as i32;
        out[fields_at..fields_at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(name.len() as i16).to_be_bytes());
    out.extend_from_slice(name);
    out.extend_from_slice(&(value.len() as i32).to_be_bytes());
    out.extend_from_slice(value);
}

/// Message ids with commas between them; the prefix of the first one is there already.
fn ids(log_offsets: &[i64], prefix: &[u8], out: &mut Vec<u8>) {
    for (number, log_offset) in log_offsets.iter().enumerate() {
        if number > 0 {
            out.push(b',');
            out.extend_from_slice(prefix);
        }
        hex(*log_offset, out);
    }
}

/// Sixteen digits, in upper case.
fn hex(number: i64, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = [0; 16];
    for (at, digit) in text.iter_mut().enumerate() {
        *digit = DIGITS[(number >> ((15 - at) * 4) & 0xF) as usize];
    }
    out.extend_from_slice(&text);
}

/// As `write!` does, without the costs of formatting.
fn decimal(number: i64, out: &mut Vec<u8>) {
    let mut text = [0; 20];
    let mut at = text.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use super::{decimal, hex};

    #[test]
    fn numbers_are_written_as_rust_formats_them() {
        let mut numbers = vec![i64::MIN, i64::MAX, 0, -1];
        for shift in 0..63 {
            let power = 1i64 << shift;
            numbers.extend([power, -power, power - 1, power.wrapping_mul(5)]);
        }
        for power in 0..19 {
            let power = 10i64.pow(power);
            numbers.extend([power, power - 1, -power]);
        }
        for number in numbers {
            let (mut digits, mut hex_digits) = (Vec::new(), Vec::new());
            decimal(number, &mut digits);
            hex(number, &mut hex_digits);
            assert_eq!(digits, number.to_string().into_bytes());
            assert_eq!(hex_digits, format!("{number:016X}").into_bytes());
        }
    }
}
