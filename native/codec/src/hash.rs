//! Java's hashes: `String.hashCode` and what IndexFile and ConsumeQueue make of it.

/// `String.hashCode` of UTF-8 text, over its UTF-16 units, continued from the hash of what stands before it.
pub fn java_hash(seed: i32, text: &str) -> i32 {
    if !text.is_ascii() {
        return text.encode_utf16().fold(seed, |hash, unit| {
            hash.wrapping_mul(31).wrapping_add(unit as i32)
        });
    }
    // Four units at a time: a multiplication waits for the one before it.
    let mut fours = text.as_bytes().chunks_exact(4);
    let mut hash = seed;
    for four in &mut fours {
        hash = four
            .iter()
            .zip([31 * 31 * 31, 31 * 31, 31, 1])
            .fold(hash.wrapping_mul(31 * 31 * 31 * 31), |hash, (unit, by)| {
                hash.wrapping_add(i32::from(*unit) * by)
            });
    }
    fours.remainder().iter().fold(hash, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(*unit))
    })
}

/// The hash that IndexFile stores: the absolute value, 0 for the smallest number.
pub fn index_hash(hash: i32) -> i32 {
    hash.checked_abs().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(java_hash(0, "TagA"), 2598919);
        assert_eq!(java_hash(java_hash(0, "Ta"), "gA"), 2598919);
        assert_eq!(java_hash(0, "polygenelubricants"), i32::MIN);
        let text = "~7F00000100001C83#".repeat(3);
        for end in 0..text.len() {
            let expected = text[..end].bytes().fold(-5i32, |hash, unit| {
                hash.wrapping_mul(31).wrapping_add(i32::from(unit))
            });
            assert_eq!(java_hash(-5, &text[..end]), expected);
        }
        assert_eq!(index_hash(i32::MIN), 0);
        assert_eq!(index_hash(-7), 7);
        assert_eq!(java_hash(0, "中文"), 646394);
    }
}
