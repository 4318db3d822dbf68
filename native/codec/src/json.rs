//! A reader of the JSON that RocketMQ's clients write into headers.
//!
//! It takes less than JSON: whatever it does not take goes to Python's decoder, which has the last word. What it does
//! take means the same to both.

use super::words::{below, equal, position};
use std::borrow::Cow;

/// Bytes of memory for a text with escapes, if the header has so many; few are longer.
const ROOM: usize = 512;
/// Digits of a number that is always small enough.
const SHORT: usize = 18;

/// A place in the text of a header, which is valid UTF-8.
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        Reader { text, at: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Pass over `byte`, with the space around it.
    pub fn take(&mut self, byte: u8) -> Option<()> {
        if self.peek()? != byte {
            self.skip_space();
            if self.peek()? != byte {
                return None;
            }
        }
        self.at += 1;
        self.skip_space();
        Some(())
    }

    /// The name of a member of an object, up to its value. One with escapes is none that RocketMQ's clients write.
    pub fn name(&mut self) -> Option<&'a str> {
        let at = self.at;
        // A name of one letter and no space, as in nearly all fields of nearly all sends.
        if let Some([b'"', b'a'..=b'z', b'"', b':', b'"']) = self.text.as_bytes().get(at..at + 5) {
            self.at += 4;
            return self.text.get(at + 1..at + 2);
        }
        let Cow::Borrowed(name) = self.string()? else {
            return None;
        };
        self.take(b':')?;
        Some(name)
    }

    /// True at the end of the text.
    pub fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// After a member of an object: true when another follows, false at the object's end.
    pub fn has_more(&mut self) -> Option<bool> {
        if self.take(b',').is_some() {
            return Some(true);
        }
        self.take(b'}').map(|()| false)
    }

    /// A whole number without exponent or fraction.
    pub fn integer(&mut self) -> Option<i64> {
        let begin = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        integer(&self.text[begin..self.at])
    }

    /// A string; text without escapes is not copied.
    #[inline]
    pub fn string(&mut self) -> Option<Cow<'a, str>> {
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        let begin = self.at;
        let bytes = self.text.as_bytes();
        let end = begin + plain_length(&bytes[begin..])?;
        match bytes[end] {
            b'"' => {
                self.at = end + 1;
                Some(Cow::Borrowed(&self.text[begin..end]))
            }
            b'\\' => self.escaped(begin, end).map(Cow::Owned),
            _ => None,
        }
    }

    /// A string that begins at `begin` and has an escape at `end`.
    fn escaped(&mut self, begin: usize, mut end: usize) -> Option<String> {
        let bytes = self.text.as_bytes();
        let mut text = String::with_capacity((bytes.len() - begin).min(ROOM));
        text.push_str(&self.text[begin..end]);
        loop {
            let plain = end;
            end += plain_length(&bytes[end..])?;
            text.push_str(&self.text[plain..end]);
            match bytes[end] {
                b'"' => {
                    self.at = end + 1;
                    return Some(text);
                }
                b'\\' => {
                    let (found, length) = escape(&bytes[end..])?;
                    text.push(found);
                    end += length;
                }
                _ => return None,
            }
        }
    }
}

/// Bytes up to the first one that means something in a string: a quote, a backslash or a control character; `None` when
/// there is none.
#[inline]
fn plain_length(bytes: &[u8]) -> Option<usize> {
    position(bytes, |word| {
        equal(word, b'"') | equal(word, b'\\') | below(word, 0x20)
    })
}

/// The character of an escape and its length. Surrogates are left to Python.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    Some(match *bytes.get(1)? {
        b'u' => {
            // The separators of properties: nearly all escapes are these.
            if let Some([b'0', b'0', b'0', digit @ b'0'..=b'7']) = bytes.get(2..6) {
                return Some((char::from(digit - b'0'), 6));
            }
            let mut code = 0;
            for digit in bytes.get(2..6)? {
                code = code << 4 | char::from(*digit).to_digit(16)?;
            }
            (char::from_u32(code)?, 6)
        }
        b'n' => ('\n', 2),
        b't' => ('\t', 2),
        b'r' => ('\r', 2),
        b'b' => ('\u{8}', 2),
        b'f' => ('\u{c}', 2),
        byte @ (b'"' | b'\\' | b'/') => (byte as char, 2),
        _ => return None,
    })
}

/// A whole number in the one form that every reader understands: no plus, no leading zeros, no space.
pub fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_negative = digits.len() < text.len();
    match digits.as_bytes() {
        [digit @ b'0'..=b'9'] if !is_negative => Some(i64::from(digit - b'0')),
        [b'1'..=b'9', ..] => {
            if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
                return None;
            }
            if digits.len() > SHORT {
                return text.parse().ok();
            }
            let number = digits
                .bytes()
                .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
            Some(if is_negative { -number } else { number })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_as_json_says() {
        let read = |text| Reader::new(text).string();
        assert_eq!(read("\"KEYS\\u0001k\\u0002\"").unwrap(), "KEYS\u{1}k\u{2}");
        assert_eq!(read("\"a\\\\b\\/\\\"\\n\"").unwrap(), "a\\b/\"\n");
        assert_eq!(read("\"中文\"").unwrap(), "中文");
        for odd in [
            "\"\\ud83d\\ude00\"",
            "\"\\x\"",
            "\"\u{1}\"",
            "\"open",
            "\"\\u12",
            "\"\\u+123\"",
            "x",
        ] {
            assert!(read(odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn numbers_have_one_form() {
        for (text, number) in [
            ("0", 0),
            ("-5", -5),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text), Some(number));
        }
        for odd in [
            "",
            "-",
            "-0",
            "01",
            "+1",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "0x1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999999",
            "١",
        ] {
            assert_eq!(integer(odd), None, "{odd}");
        }
        assert_eq!(Reader::new("12.5").integer(), None);
        assert_eq!(Reader::new("12,").integer(), Some(12));
    }
}
