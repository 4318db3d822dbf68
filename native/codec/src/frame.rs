//! Frames: `int32 total, int32 mark, header, body`; the mark has the form of the header in its first byte.

/// One frame inside a buffer.
pub struct Frame<'a> {
    /// The header is in RocketMQ's binary form, otherwise in JSON.
    pub is_binary: bool,
    pub header: &'a [u8],
    pub body: &'a [u8],
    /// Bytes of the whole frame.
    pub size: usize,
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// The frame at the beginning of `data`; `None` when it is incomplete or not one that is taken.
pub fn frame(data: &[u8], max_frame_bytes: usize, max_header_bytes: usize) -> Option<Frame<'_>> {
    let total = usize::try_from(word(data, 0)? as i32).ok()?;
    let mark = word(data, 4)?;
    let header_length = (mark & 0xFF_FFFF) as usize;
    if total < 4
        || total > max_frame_bytes
        || header_length > total - 4
        || header_length > max_header_bytes
        || mark >> 24 > 1
    {
        return None;
    }
    let whole = data.get(8..4 + total)?;
    let (header, body) = whole.split_at(header_length);
    Some(Frame {
        is_binary: mark >> 24 == 1,
        header,
        body,
        size: 4 + total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_frames_are_taken() {
        let bytes = [0, 0, 0, 7, 0, 0, 0, 2, b'{', b'}', b'x', 9];
        let found = frame(&bytes, 100, 50).unwrap();
        assert_eq!(
            (found.header, found.body, found.size),
            (&b"{}"[..], &b"x"[..], 11)
        );
        for cut in 0..11 {
            assert!(frame(&bytes[..cut], 100, 50).is_none());
        }
        assert!(frame(&bytes, 6, 50).is_none());
        assert!(frame(&bytes, 100, 1).is_none());
        assert!(frame(&[0xFF; 16], 100, 50).is_none());
        assert!(frame(&[0, 0, 0, 7, 0, 0, 0, 4, 1, 2, 3, 4], 100, 50).is_none());
        assert!(frame(&[0, 0, 0, 7, 2, 0, 0, 2, 1, 2, 3, 4], 100, 50).is_none());
    }
}
