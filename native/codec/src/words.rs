//! Searches of bytes, eight at a time.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Stands behind the last bytes of a text; no search is for it.
const FILL: u8 = 0x7F;

/// The high bits of the bytes of `word` that are `byte`; above the lowest of them there may be others.
pub fn equal(word: u64, byte: u8) -> u64 {
    let zero_if_equal = word ^ (ONES * u64::from(byte));
    zero_if_equal.wrapping_sub(ONES) & !zero_if_equal & HIGH
}

/// The same for the bytes that are less than `limit`, which is at most 0x80.
pub fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH
}

/// The place of the first byte that `wanted` finds in words made of [`equal`] and [`below`].
#[inline]
pub fn position(bytes: &[u8], wanted: impl Fn(u64) -> u64) -> Option<usize> {
    let mut words = bytes.chunks_exact(8);
    let mut at = 0;
    for word in &mut words {
        let found = wanted(u64::from_le_bytes(word.try_into().ok()?));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let mut last = [FILL; 8];
    for (byte, rest) in last.iter_mut().zip(words.remainder()) {
        *byte = *rest;
    }
    let found = wanted(u64::from_le_bytes(last));
    (found != 0).then(|| at + found.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_find_what_a_loop_finds() {
        let mut state = 1u32;
        for length in 0..40 {
            for _ in 0..200 {
                let bytes: Vec<u8> = (0..length)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        [
                            0, 1, 2, 0x1F, 0x20, b'"', b'\\', 0x7E, 0x80, 0x81, 0xA0, 0xFF,
                        ][(state >> 24) as usize % 12]
                    })
                    .collect();
                for byte in [1, 2, b'"', 0x80, 0xFF] {
                    let expected = bytes.iter().position(|each| *each == byte);
                    assert_eq!(position(&bytes, |word| equal(word, byte)), expected);
                }
                for limit in [1, 3, 0x20, 0x7F] {
                    let expected = bytes.iter().position(|each| *each < limit);
                    assert_eq!(position(&bytes, |word| below(word, limit)), expected);
                }
                let expected = bytes.iter().position(|each| matches!(each, 0..3 | b'"'));
                let either = |word| below(word, 3) | equal(word, b'"');
                assert_eq!(position(&bytes, either), expected);
            }
        }
    }
}
