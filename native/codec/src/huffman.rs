//! The Huffman code of HPACK (RFC 7541, Appendix B), read four bits at a time.

use std::sync::OnceLock;

/// Bits of the code of each byte, and of the end of a string.
const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const END_OF_TEXT: usize = 256;
const PADDING_BITS: u8 = 7;
/// Mark of a step that emits no byte, and of one that no text may take.
const NOTHING: i16 = -1;
const WRONG: i16 = -2;

#[derive(Clone, Copy)]
struct Step {
    next: u16,
    /// A byte, `NOTHING` or `WRONG`.
    emits: i16,
}

struct Code {
    steps: Vec<[Step; 16]>,
    /// True for each node at which a text may end.
    ends: Vec<bool>,
}

/// A successor of a node: a node, or a symbol.
#[derive(Clone, Copy)]
enum Next {
    None,
    Node(usize),
    Symbol(usize),
}

fn code() -> &'static Code {
    static CODE: OnceLock<Code> = OnceLock::new();
    CODE.get_or_init(build)
}

fn build() -> Code {
    let mut nodes = vec![[Next::None; 2]];
    let mut ends = vec![true];
    let mut symbols: Vec<usize> = (0..CODE_LENGTHS.len()).collect();
    symbols.sort_by_key(|symbol| (CODE_LENGTHS[*symbol], *symbol));
    let (mut word, mut last) = (0u64, 0u8);
    for symbol in symbols {
        let length = CODE_LENGTHS[symbol];
        word <<= length - last;
        last = length;
        let (mut node, mut ones) = (0, true);
        for at in (1..length).rev() {
            let bit = (word >> at & 1) as usize;
            ones &= bit == 1;
            node = match nodes[node][bit] {
                Next::Node(found) => found,
                _ => {
                    nodes.push([Next::None; 2]);
                    ends.push(ones && length - at <= PADDING_BITS);
                    nodes[node][bit] = Next::Node(nodes.len() - 1);
                    nodes.len() - 1
                }
            };
        }
        nodes[node][(word & 1) as usize] = Next::Symbol(symbol);
        word += 1;
    }
    let steps = (0..nodes.len())
        .map(|node| std::array::from_fn(|bits| step(&nodes, node, bits)))
        .collect();
    Code { steps, ends }
}

fn step(nodes: &[[Next; 2]], begin: usize, bits: usize) -> Step {
    let (mut node, mut emits) = (begin, NOTHING);
    for at in (0..4).rev() {
        match nodes[node][bits >> at & 1] {
            Next::Node(next) => node = next,
            Next::Symbol(END_OF_TEXT) | Next::None => {
                return Step {
                    next: 0,
                    emits: WRONG,
                }
            }
            Next::Symbol(symbol) => {
                emits = symbol as i16; // codes have five bits or more: one of them at most ends here
                node = 0;
            }
        }
    }
    Step {
        next: node as u16,
        emits,
    }
}

/// Append the bytes of a text; the error says what is wrong with it.
pub fn decode(data: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    let code = code();
    let mut node = 0;
    for byte in data {
        for bits in [byte >> 4, byte & 0xF] {
            let step = code.steps[node][bits as usize];
            if step.emits >= 0 {
                out.push(step.emits as u8);
            } else if step.emits == WRONG {
                return Err("a string contains the end-of-string code");
            }
            node = step.next as usize;
        }
    }
    if code.ends[node] {
        Ok(())
    } else {
        Err("a string ends in the middle of a code")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_rfc_are_read() {
        let mut out = Vec::new();
        decode(
            &[
                0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
            ],
            &mut out,
        )
        .unwrap();
        assert_eq!(out, b"www.example.com");
    }

    #[test]
    fn padding_and_ends_are_checked() {
        for wrong in [&[0xff, 0xff, 0xff, 0xff][..], &[0xff][..], &[0x00][..]] {
            assert!(decode(wrong, &mut Vec::new()).is_err(), "{wrong:?}");
        }
    }
}
