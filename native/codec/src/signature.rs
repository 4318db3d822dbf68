//! Signatures of requests: HMAC-SHA1 over the values of all fields in the order of their names, and the body.

use super::fields::{ACCESS_KEY, SIGNATURE};
use super::hmac::{Key, Text};
use super::request::SendRequest;
use subtle::ConstantTimeEq;

/// Bytes of a signature in base64.
const SIGNATURE_BYTES: usize = 28;

/// Sends that are checked together at most.
pub const TOGETHER: usize = 8;

/// Room for the signed texts of sends that are checked together.
pub type Texts = [Text; TOGETHER];

/// For each send, with its body, true when it comes from the account: it names it, and is signed with its key if there
/// is one. The time does not tell how much of a signature is right.
///
/// One with a field that sends do not have is left to Python.
pub fn are_from<'a>(
    access_key: Option<&str>,
    key: Option<&Key>,
    texts: &mut Texts,
    sends: impl Iterator<Item = (&'a SendRequest<'a>, &'a [u8])> + Clone,
) -> [bool; TOGETHER] {
    let mut are_from = [false; TOGETHER];
    for (is_from, (request, _)) in are_from.iter_mut().zip(sends.clone()) {
        *is_from = !request.fields.is_odd && request.fields.get(ACCESS_KEY) == access_key;
    }
    let Some(key) = key else { return are_from };
    let mut count = 0;
    for (text, (request, body)) in texts.iter_mut().zip(sends.clone()) {
        text.begin(key, request.fields.signed(request.code), body);
        count += 1;
    }
    let texts = &mut texts[..count];
    key.sign(texts);
    for ((is_from, text), (request, _)) in are_from.iter_mut().zip(texts).zip(sends) {
        let given = request.fields.get(SIGNATURE).and_then(decode);
        *is_from &= given.is_some_and(|given| text.signature()[..].ct_eq(&given[..]).into());
    }
    are_from
}

/// What no character of base64 stands for.
const NONE: u8 = 0xFF;

/// What each byte stands for in base64.
const SIX_BITS: [u8; 256] = {
    let characters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = [NONE; 256];
    let mut at = 0;
    while at < characters.len() {
        bits[characters[at] as usize] = at as u8;
        at += 1;
    }
    bits
};

/// The words of a signature in base64; `None` unless it is the text that encoding them gives.
fn decode(text: &str) -> Option<[u32; 5]> {
    let mut text: [u8; SIGNATURE_BYTES] = text.as_bytes().try_into().ok()?;
    if text[SIGNATURE_BYTES - 1] != b'=' {
        return None;
    }
    text[SIGNATURE_BYTES - 1] = b'A'; // six bits of zero
    let (mut threes, mut seen) = ([0; SIGNATURE_BYTES / 4], 0);
    for (bits, four) in threes.iter_mut().zip(text.chunks_exact(4)) {
        for character in four {
            let six = SIX_BITS[usize::from(*character)];
            seen |= six;
            *bits = *bits << 6 | u32::from(six);
        }
    }
    let [a, b, c, d, e, f, g] = threes;
    let words = [
        a << 8 | b >> 16,
        b << 16 | c >> 8,
        c << 24 | d,
        e << 8 | f >> 16,
        f << 16 | g >> 8,
    ];
    // Two bits are left over, which encoding makes zero.
    (seen != NONE && g & 0xFF == 0).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A send of the form that signs `fields`, as JSON.
    fn header(code: i64, fields: &[(&str, &str)]) -> String {
        let fields: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("\"{name}\":\"{value}\""))
            .collect();
        format!(
            "{{\"code\":{code},\"extFields\":{{{}}},\"flag\":0,\"opaque\":7}}",
            fields.join(",")
        )
    }

    const SHORT: [(&str, &str); 8] = [
        ("h", "8"),
        ("g", "7"),
        ("f", "6"),
        ("e", "5"),
        ("d", "4"),
        ("c", "D"),
        ("b", "T"),
        ("a", "g"),
    ];
    const LONG: [(&str, &str); 8] = [
        ("producerGroup", "g"),
        ("topic", "T"),
        ("defaultTopic", "D"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "5"),
        ("sysFlag", "6"),
        ("bornTimestamp", "7"),
        ("flag", "8"),
    ];

    fn accepts(
        code: i64,
        fields: &[(&str, &str)],
        more: &[(&str, &str)],
        access_key: Option<&str>,
        key: Option<&Key>,
        body: &[u8],
    ) -> bool {
        let header = header(code, &[fields, more].concat());
        let request = SendRequest::read(false, header.as_bytes()).unwrap();
        let mut texts = Texts::default();
        let mut are_from =
            |sends: &[_]| are_from(access_key, key, &mut texts, sends.iter().copied());
        let (send, other) = ((&request, body), (&request, &b"another"[..]));
        let [alone, none, ..] = are_from(&[send]);
        assert!(!none);
        for number in 0..TOGETHER {
            let mut sends = [other; TOGETHER];
            sends[number] = send;
            assert_eq!(are_from(&sends)[number], alone);
        }
        alone
    }

    #[test]
    fn only_the_accounts_own_signature_is_accepted() {
        let key = Key::new(b"secret");
        let signed = |signature| [("Signature", signature), ("AccessKey", "me")];
        let short = |signature, access_key, key, body| {
            accepts(310, &SHORT, &signed(signature), access_key, key, body)
        };
        let (me, key) = (Some("me"), Some(&key));
        // HMAC-SHA1 of "me" + "gTD45678" + "body"
        let good = "jM5DkrHuAaehfSRheYumBZWK4aI=";
        assert!(short(good, me, key, b"body"));
        assert!(!short(good, me, key, b"bodY"));
        let wrong = format!("A{}", &good[1..]);
        assert!(!short(&wrong, me, key, b"body"));
        for odd in [
            "jM5DkrHuAaehfSRheYumBZWK4aI",
            "jM5DkrHuAaehfSRheYumBZWK4aI==",
            "jM5DkrHuAaehfSRheYumBZWK4aJ=",
            "jM5DkrHuAaehfSRheYumBZWK4aIA",
            "jM5DkrHuAaehfSRheYumBZWK4a==",
            "jM5DkrHuAaehfSRheYumBZWK4 I=",
            "=M5DkrHuAaehfSRheYumBZWK4aI=",
            "jM5DkrHuAaehfSRheYumBZWK-aI=",
        ] {
            assert!(!short(odd, me, key, b"body"), "{odd}");
        }
        assert!(!short("", me, key, b"body"));
        assert!(!short(good, Some("you"), key, b"body"));
        assert!(!short(good, None, None, b"body"));
        assert!(short("", me, None, b"body"));
        let odd = [("nonce", "1"), ("AccessKey", "me")];
        assert!(!accepts(310, &SHORT, &odd, me, None, b"body"));
        // HMAC-SHA1 of "me" + "7D48g56T" + "body": SEND_MESSAGE has other names, so another order
        let long = |signature| accepts(10, &LONG, &signed(signature), me, key, b"body");
        assert!(long("l60DnbbEPs1JX+1Wuj6NEvJ9mn8="));
        assert!(!long(good));
    }

    #[test]
    fn all_signed_fields_are_signed_in_the_order_of_their_names() {
        let key = Key::new(b"secret");
        let (me, key) = (Some("me"), Some(&key));
        let rest = [
            ("SecurityToken", "K"),
            ("AccessKey", "me"),
            ("AccessAt", "A"),
        ];
        let short = [
            ("n", "N"),
            ("m", "false"),
            ("l", "9"),
            ("k", "true"),
            ("j", "3"),
            ("i", "P"),
            // "A" + "me" + "K" + "gTD45678P3true9falseN"
            ("Signature", "VGNUatA5HP3AzRM9rY/dmPYWWMw="),
        ];
        assert!(accepts(
            310,
            &SHORT,
            &[&short[..], &rest].concat(),
            me,
            key,
            b""
        ));
        let long = [
            ("batch", "false"),
            ("maxReconsumeTimes", "9"),
            ("unitMode", "true"),
            ("reconsumeTimes", "3"),
            ("properties", "P"),
            // "A" + "me" + "K" + "false7D489gP536Ttrue"
            ("Signature", "jxHyxUZKQiDFZsuMuhcoM2rS4dQ="),
        ];
        assert!(accepts(
            10,
            &LONG,
            &[&long[..], &rest].concat(),
            me,
            key,
            b""
        ));
    }
}
