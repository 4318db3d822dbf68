//! HMAC-SHA1 (RFC 2104) of several texts at once, each given in short pieces.
//!
//! Within one text each step of SHA-1 waits for the one before; those of another text do not. So blocks of the texts
//! are hashed in turn: four signatures together take half of the time that they take one after the other.

use sha1::digest::generic_array::GenericArray;
use sha1::{Digest, Sha1};
use std::slice;

/// Bytes of a block of SHA-1.
const BLOCK: usize = 64;
/// Bytes of a hash.
const DIGEST: usize = 20;
/// Bytes at the end of the last block that have the length of the text in bits.
const LENGTH: usize = 8;
/// A text whose last piece is longer is hashed alone, not copied.
const LONG: usize = 4096;
/// The state of SHA-1 before the first block.
const BEGIN: [u32; 5] = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0];

/// A key: the states of both hashes of an HMAC after the block that is the key's.
#[derive(Clone)]
pub struct Key {
    inner: [u32; 5],
    outer: [u32; 5],
}

impl Key {
    pub fn new(secret: &[u8]) -> Self {
        let mut key = [0; BLOCK];
        if secret.len() > BLOCK {
            key[..DIGEST].copy_from_slice(&Sha1::digest(secret));
        } else {
            key[..secret.len()].copy_from_slice(secret);
        }
        let state = |pad: u8| {
            let mut state = BEGIN;
            hash(&mut state, &key.map(|byte| byte ^ pad));
            state
        };
        Key {
            inner: state(0x36),
            outer: state(0x5C),
        }
    }

    /// Sign texts that have begun with this key; `Text::signature` has the result.
    pub fn sign(&self, texts: &mut [Text]) {
        let longest = texts.iter().map(|text| text.rest.len()).max().unwrap_or(0);
        for at in (0..longest).step_by(BLOCK) {
            for text in texts.iter_mut() {
                if let Some(block) = text.rest.get(at..at + BLOCK) {
                    hash(&mut text.state, block);
                }
            }
        }
        for text in texts {
            let mut block = [0; BLOCK];
            for (bytes, word) in block.chunks_exact_mut(4).zip(text.state) {
                bytes.copy_from_slice(&word.to_be_bytes());
            }
            block[DIGEST] = 0x80;
            block[BLOCK - LENGTH..].copy_from_slice(&bits(DIGEST));
            text.state = self.outer;
            hash(&mut text.state, &block);
        }
    }
}

/// The length in bits of a text behind the block of a key.
fn bits(length: usize) -> [u8; LENGTH] {
    ((BLOCK + length) as u64 * 8).to_be_bytes()
}

/// Append a piece; a short one, as most are, by moves of fixed size: its first bytes, then its last ones.
fn append(out: &mut Vec<u8>, piece: &[u8]) {
    fn ends<const N: usize>(out: &mut Vec<u8>, piece: &[u8]) {
        let end = out.len() + piece.len();
        if let (Some(first), Some(last)) = (piece.first_chunk::<N>(), piece.last_chunk::<N>()) {
            out.extend_from_slice(first);
            out.truncate(end - N);
            out.extend_from_slice(last);
        }
    }
    match piece.len() {
        0 => (),
        1 => out.push(piece[0]),
        2..=3 => ends::<2>(out, piece),
        4..=7 => ends::<4>(out, piece),
        8..=16 => ends::<8>(out, piece),
        17..=32 => ends::<16>(out, piece),
        _ => out.extend_from_slice(piece),
    }
}

/// Hash whole blocks.
fn hash(state: &mut [u32; 5], blocks: &[u8]) {
    for block in blocks.chunks_exact(BLOCK) {
        sha1::compress(state, slice::from_ref(GenericArray::from_slice(block)));
    }
}

/// A text that is signed.
#[derive(Default)]
pub struct Text {
    /// The state of the hash before `rest`, in the end the signature.
    state: [u32; 5],
    /// The blocks that are not hashed yet.
    rest: Vec<u8>,
}

impl Text {
    /// Begin with a text: pieces, and the last one, which may be long.
    pub fn begin<'a>(&mut self, key: &Key, pieces: impl Iterator<Item = &'a str>, last: &[u8]) {
        let rest = &mut self.rest;
        rest.clear();
        for piece in pieces {
            append(rest, piece.as_bytes());
        }
        let length = rest.len() + last.len();
        self.state = key.inner;
        let mut last = last;
        if last.len() > LONG {
            let (first, others) = last.split_at(rest.len().next_multiple_of(BLOCK) - rest.len());
            rest.extend_from_slice(first);
            hash(&mut self.state, rest);
            rest.clear();
            let (blocks, end) = others.split_at(others.len() - others.len() % BLOCK);
            hash(&mut self.state, blocks);
            last = end;
        }
        rest.extend_from_slice(last);
        rest.push(0x80);
        rest.resize((rest.len() + LENGTH).next_multiple_of(BLOCK) - LENGTH, 0);
        rest.extend_from_slice(&bits(length));
    }

    /// The big-endian words of the signature.
    pub fn signature(&self) -> &[u32; 5] {
        &self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hmac::{Hmac, Mac};

    fn signature(text: &Text) -> Vec<u8> {
        text.signature().map(u32::to_be_bytes).concat()
    }

    fn known(secret: &[u8], text: &[u8]) -> Vec<u8> {
        let mut known = Hmac::<Sha1>::new_from_slice(secret).unwrap();
        known.update(text);
        known.finalize().into_bytes().to_vec()
    }

    #[test]
    fn texts_of_every_length_have_their_hmacs() {
        let bytes: String = (0..9000u32)
            .map(|at| char::from(b' ' + ((at * 7 + at / 64) % 90) as u8))
            .collect();
        let mut texts: [Text; 2] = Default::default();
        for key_length in [0, 1, 20, 63, 64, 65, 200] {
            let secret = &bytes.as_bytes()[100..100 + key_length];
            let key = Key::new(secret);
            for pieces_length in [0, 1, 55, 56, 63, 64, 65, 130, 600] {
                let (pieces, last) = bytes.split_at(pieces_length);
                for length in (0..200).chain(LONG - 2..LONG + 130) {
                    let other = length / 3;
                    for (text, length) in texts.iter_mut().zip([length, other]) {
                        let (one, two) = pieces.split_at(pieces.len() / 3);
                        let bytes = two.split_inclusive('a');
                        let all = [one, ""].into_iter().chain(bytes);
                        text.begin(&key, all, &last.as_bytes()[..length]);
                    }
                    key.sign(&mut texts);
                    for (text, length) in texts.iter().zip([length, other]) {
                        let whole = &bytes.as_bytes()[..pieces_length + length];
                        assert_eq!(signature(text), known(secret, whole));
                    }
                }
            }
        }
    }

    #[test]
    fn a_text_alone_is_signed_as_beside_others() {
        let key = Key::new(b"secret");
        let mut texts: [Text; 3] = Default::default();
        for (text, letter) in texts.iter_mut().zip(["a", "b", "c"]) {
            text.begin(&key, [letter].into_iter(), &[7; 100]);
        }
        key.sign(&mut texts[1..2]);
        let alone = signature(&texts[1]);
        texts[1].begin(&key, ["b"].into_iter(), &[7; 100]);
        key.sign(&mut texts);
        assert_eq!(signature(&texts[1]), alone);
        assert_ne!(signature(&texts[0]), alone);
    }
}
