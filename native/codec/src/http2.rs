//! HTTP/2: whole calls with one request, one behind the other.

const HEAD_BYTES: usize = 9;
/// The most bytes of a frame's payload.
const MAX_FRAME_BYTES: usize = 16_384;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Prefix of a message of gRPC: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
    end: usize,
}

impl Frame<'_> {
    fn begins_call(&self, last_stream: u32) -> bool {
        self.kind == HEADERS
            && self.flags == END_HEADERS
            && self.stream > last_stream
            && self.stream % 2 == 1
    }
}

fn frame(data: &[u8], at: usize) -> Option<Frame<'_>> {
    let head: &[u8; HEAD_BYTES] = data.get(at..at + HEAD_BYTES)?.try_into().ok()?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    if length > MAX_FRAME_BYTES {
        return None;
    }
    let begin = at + HEAD_BYTES;
    Some(Frame {
        kind: head[3],
        flags: head[4],
        stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7FFF_FFFF,
        payload: data.get(begin..begin + length)?,
        end: begin + length,
    })
}

/// Header blocks of that size are read again when more of their call arrives.
const MAX_CUT_BLOCK_BYTES: usize = 1_024;

/// The header block of a call at `data[at:]` of which the rest has not arrived: nothing follows, or a part of one frame
/// of data.
pub fn cut_block(data: &[u8], at: usize, last_stream: u32) -> Option<&[u8]> {
    let head = frame(data, at)?;
    if !head.begins_call(last_stream) || head.payload.len() > MAX_CUT_BLOCK_BYTES {
        return None;
    }
    let rest = &data[head.end..];
    let mut expected = [0, 0, 0, DATA, END_STREAM, 0, 0, 0, 0];
    expected[5..].copy_from_slice(&head.stream.to_be_bytes());
    let length = rest.len().min(3);
    expected[..length].copy_from_slice(&rest[..length]);
    let known = rest.len().min(HEAD_BYTES);
    if rest[..known] != expected[..known] {
        return None;
    }
    let data_bytes =
        usize::from(expected[0]) << 16 | usize::from(expected[1]) << 8 | usize::from(expected[2]);
    let is_cut = known < HEAD_BYTES || rest.len() - HEAD_BYTES < data_bytes;
    (is_cut && data_bytes <= MAX_FRAME_BYTES).then_some(head.payload)
}

/// A call whose request has arrived.
pub struct Request<'a> {
    pub stream: u32,
    pub block: &'a [u8],
    /// The message, if it is in one frame; otherwise the scratch has it.
    payload: Option<&'a [u8]>,
    /// Bytes of all data frames.
    pub data_bytes: usize,
    pub end: usize,
}

impl<'a> Request<'a> {
    /// Read the call at `data[at:]`: headers in one frame, followed by all data of the stream, without padding. The
    /// message is appended to `scratch` if it has many frames, up to `max_bytes`.
    pub fn read(
        data: &'a [u8],
        at: usize,
        last_stream: u32,
        scratch: &mut Vec<u8>,
        max_bytes: usize,
    ) -> Option<Self> {
        let head = frame(data, at)?;
        let stream = head.stream;
        if !head.begins_call(last_stream) {
            return None;
        }
        scratch.clear();
        let (mut end, mut data_bytes) = (head.end, 0);
        loop {
            let found = frame(data, end)?;
            if found.kind != DATA || found.stream != stream || found.flags & !END_STREAM != 0 {
                return None;
            }
            let is_last = found.flags == END_STREAM;
            end = found.end;
            data_bytes += found.payload.len();
            if data_bytes > max_bytes || (found.payload.is_empty() && !is_last) {
                return None;
            }
            let is_only = is_last && scratch.is_empty();
            if !is_only {
                scratch.extend_from_slice(found.payload);
            }
            if is_last {
                return Some(Request {
                    stream,
                    block: head.payload,
                    payload: is_only.then_some(found.payload),
                    data_bytes,
                    end,
                });
            }
        }
    }

    /// The message without its prefix; `None` when it is compressed or of another length.
    pub fn message<'b>(&self, scratch: &'b [u8]) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let whole: &'b [u8] = self.payload.unwrap_or(scratch);
        let (prefix, message) = whole.split_at_checked(PREFIX_BYTES)?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        (prefix[0] == 0 && message.len() == length).then_some(message)
    }
}

/// Append a frame of an answer; `write` appends its payload.
fn write_frame(
    kind: u8,
    flags: u8,
    stream: u32,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let begin = out.len();
    out.extend_from_slice(&[0, 0, 0, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    write(out);
    let length = ((out.len() - begin - HEAD_BYTES) as u32).to_be_bytes();
    out[begin..begin + 3].copy_from_slice(&length[1..]);
}

/// Append the frames of an answer with one message, which `write` appends.
pub fn write_answer(
    stream: u32,
    headers: &[u8],
    trailers: &[u8],
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>),
) {
    write_frame(HEADERS, END_HEADERS, stream, out, |out| {
        out.extend_from_slice(headers)
    });
    write_frame(DATA, 0, stream, out, write);
    write_frame(HEADERS, END_HEADERS | END_STREAM, stream, out, |out| {
        out.extend_from_slice(trailers)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_cut_if_only_its_data_are_missing() {
        let head = raw(HEADERS, END_HEADERS, 3, b"h");
        let all = [&head[..], &raw(DATA, END_STREAM, 3, b"abc")].concat();
        for cut in 0..=all.len() {
            let is_cut = (head.len()..all.len()).contains(&cut);
            assert_eq!(cut_block(&all[..cut], 0, 1), is_cut.then_some(&b"h"[..]));
            assert_eq!(cut_block(&all[..cut], 0, 3), None);
        }
        for other in [
            raw(DATA, END_STREAM, 5, b"abc"),
            raw(DATA, 0, 3, b"abc"),
            raw(HEADERS, END_STREAM, 3, b"abc"),
        ] {
            let all = [&head[..], &other[..other.len() - 1]].concat();
            assert_eq!(cut_block(&all, 0, 1), None);
        }
        let huge = [&head[..], &[0xFF, 0xFF, 0xFF]].concat();
        assert_eq!(cut_block(&huge, 0, 1), None);
        let long = raw(HEADERS, END_HEADERS, 3, &[0; MAX_CUT_BLOCK_BYTES + 1]);
        assert_eq!(cut_block(&long, 0, 1), None);
    }

    fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_frame(kind, flags, stream, &mut out, |out| {
            out.extend_from_slice(payload)
        });
        out
    }

    #[test]
    fn only_whole_calls_are_read() {
        let parts = [
            raw(HEADERS, END_HEADERS, 3, b"h"),
            raw(DATA, 0, 3, b"\0\0\0\0\x03a"),
            raw(DATA, END_STREAM, 3, b"bc"),
        ];
        let all = parts.concat();
        let mut scratch = Vec::new();
        for cut in 0..all.len() {
            assert!(Request::read(&all[..cut], 0, 1, &mut scratch, 100).is_none());
        }
        let found = Request::read(&all, 0, 1, &mut scratch, 100).unwrap();
        assert_eq!(found.message(&scratch), Some(&b"abc"[..]));
        assert_eq!((found.end, found.data_bytes), (all.len(), 8));
        assert!(Request::read(&all, 0, 3, &mut scratch, 100).is_none());
        assert_eq!(cut_block(&all, 0, 1), None);
        assert!(Request::read(&all, 0, 1, &mut scratch, 7).is_none());
    }
}
