//! A plain AckMessageRequest of gRPC: the messages that it acknowledges, by their receipt handles.
//!
//! What the endpoint refuses, and what is not in the form that it writes itself, is left to Python: `None`.

use super::protobuf::{bytes_length, resource_name, write_bytes, write_varint, Fields};

/// Numbers of more digits are left to Python, and negative ones.
const MOST_DIGITS: usize = 18;
/// A blank in a broker's name.
const BLANK_IN_NAME: char = '\u{1f}';

/// What the endpoint allows.
pub struct Rules {
    /// The name of the broker that handed out the messages.
    pub broker: String,
    /// Messages of a request.
    pub max_entries: usize,
    /// Bytes of an answer.
    pub max_answer_bytes: usize,
}

/// The pop of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pop {
    pub pop_time: i64,
    pub queue_id: i64,
    /// The kind of topic from which it was popped: 0 for the client's topic, 1 and 2 for retry topics.
    pub kind: u8,
}

/// A message of a request.
#[derive(Debug)]
pub struct Ack<'a> {
    pub id: &'a str,
    /// The receipt handle.
    pub text: &'a str,
    pub pop: Pop,
    pub offset: i64,
}

/// The names in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names<'a> {
    pub group: &'a str,
    pub topic: &'a str,
}

/// Read a request, and append its messages to `acks`.
pub fn read<'a>(
    request: &'a [u8],
    rules: &Rules,
    now_ms: i64,
    acks: &mut Vec<Ack<'a>>,
) -> Option<Names<'a>> {
    let (mut group, mut topic) = (None, None);
    let mut fields = Fields::new(request);
    while let Some(key) = fields.key()? {
        match key {
            0x0A if group.is_none() => group = Some(resource_name(fields.bytes()?)?),
            0x12 if topic.is_none() => topic = Some(resource_name(fields.bytes()?)?),
            0x1A if acks.len() < rules.max_entries => {
                acks.push(read_entry(fields.bytes()?, rules, now_ms)?);
            }
            _ => return None,
        }
    }
    let names = Names {
        group: group?,
        topic: topic?,
    };
    (!acks.is_empty()).then_some(names)
}

fn read_entry<'a>(data: &'a [u8], rules: &Rules, now_ms: i64) -> Option<Ack<'a>> {
    let (mut id, mut handle) = (None, None);
    let mut fields = Fields::new(data);
    while let Some(key) = fields.key()? {
        match key {
            0x0A if id.is_none() => id = Some(fields.text()?),
            0x12 if handle.is_none() => handle = Some(fields.text()?),
            _ => return None,
        }
    }
    read_handle(id.unwrap_or_default(), handle?, rules, now_ms)
}

/// Read a handle that has not expired; further parts may follow its eight.
fn read_handle<'a>(id: &'a str, text: &'a str, rules: &Rules, now_ms: i64) -> Option<Ack<'a>> {
    let mut parts = text.split(' ');
    let number = |part: Option<&str>| -> Option<i64> {
        let part = part?;
        let is_number = !part.is_empty()
            && part.len() <= MOST_DIGITS
            && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            part.parse().ok()
        } else {
            None
        }
    };
    number(parts.next())?; // where the pop began
    let pop_time = number(parts.next())?;
    let invisible_ms = number(parts.next())?;
    number(parts.next())?; // the revive queue
    let kind = match parts.next()? {
        "0" => 0,
        "1" => 1,
        "2" => 2,
        _ => return None,
    };
    let broker = parts.next()?;
    let queue_id = number(parts.next())?;
    let offset = number(parts.next())?;
    let is_ours = broker == rules.broker && !broker.contains(BLANK_IN_NAME);
    let is_valid = is_ours && pop_time + invisible_ms > now_ms;
    is_valid.then_some(Ack {
        id,
        text,
        pop: Pop {
            pop_time,
            queue_id,
            kind,
        },
        offset,
    })
}

fn entry_length(status: &[u8], ack: &Ack<'_>) -> usize {
    let id = if ack.id.is_empty() {
        0
    } else {
        bytes_length(ack.id.len())
    };
    id + bytes_length(ack.text.len()) + bytes_length(status.len())
}

/// Bytes of the answer to acknowledged messages, without its prefix.
pub fn answer_length(status: &[u8], acks: &[Ack<'_>]) -> usize {
    let entries = acks
        .iter()
        .map(|ack| bytes_length(entry_length(status, ack)));
    bytes_length(status.len()) + entries.sum::<usize>()
}

/// Append the answer to acknowledged messages: an AckMessageResponse with its prefix.
///
/// :param status: the encoded Status OK.
pub fn write_answer(status: &[u8], acks: &[Ack<'_>], out: &mut Vec<u8>) {
    out.push(0);
    out.extend_from_slice(&(answer_length(status, acks) as u32).to_be_bytes());
    write_bytes(1, status, out);
    for ack in acks {
        out.push(0x12);
        write_varint(entry_length(status, ack) as u64, out);
        if !ack.id.is_empty() {
            write_bytes(1, ack.id.as_bytes(), out);
        }
        write_bytes(2, ack.text.as_bytes(), out);
        write_bytes(3, status, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            broker: "b".to_owned(),
            max_entries: 2,
            max_answer_bytes: 1_000,
        }
    }

    #[test]
    fn a_handle_is_read_as_python_reads_it() {
        let read = |text| read_handle("", text, &rules(), 149);
        let found = read("1 100 50 3 0 b 7 42 999 x").unwrap();
        let pop = Pop {
            pop_time: 100,
            queue_id: 7,
            kind: 0,
        };
        assert_eq!((found.pop, found.offset), (pop, 42));
        assert_eq!(read("1 100 50 3 2 b 7 42").unwrap().pop.kind, 2);
        for wrong in [
            "",
            "1 100 50 3 0 b 7",
            "1 100 50 3 0 b 7 ",
            "1 100 49 3 0 b 7 42",
            "1 100 50 3 0 c 7 42",
            "1 100 50 3 5 b 7 42",
            "1 100 50 3 0 b -7 42",
            "1 100 50 3 0 b 7 42x",
            "1 100 50 3 0 b 7 4\u{0662}",
            "1 100 50 3  0 b 7 42",
            "1 100 9999999999999999999 3 0 b 7 42",
        ] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
