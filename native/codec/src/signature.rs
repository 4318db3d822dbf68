//! Signatures of requests: HMAC-SHA1 over the values of all fields in the order of their names, and the body.

use super::fields::{ACCESS_KEY, SIGNATURE};
use super::request::SendRequest;
use base64::prelude::{Engine, BASE64_STANDARD};
use hmac::{Hmac, Mac};
use sha1::Sha1;

/// Bytes of a signature in base64.
const SIGNATURE_BYTES: usize = 28;

/// The key of an account, ready to sign.
#[derive(Clone)]
pub struct Key(Hmac<Sha1>);

impl Key {
    pub fn new(secret: &[u8]) -> Option<Self> {
        Hmac::new_from_slice(secret).ok().map(Key)
    }

    /// True when the request carries this key's signature; the time does not tell how much of it is right.
    fn accepts(&self, request: &SendRequest<'_>, body: &[u8]) -> bool {
        let given = request.fields.get(SIGNATURE).unwrap_or("");
        let mut mac = self.0.clone();
        for value in request.fields.signed(request.code) {
            mac.update(value.as_bytes());
        }
        mac.update(body);
        // Compared as bytes; the only text of these bytes is the one that encoding gives.
        let mut signature = [0; 20];
        given.len() == SIGNATURE_BYTES
            && BASE64_STANDARD
                .decode_slice(given, &mut signature)
                .is_ok_and(|length| length == signature.len())
            && mac.verify_slice(&signature).is_ok()
    }
}

/// True when a send comes from the account: it names it, and is signed with its key if there is one.
///
/// One with a field that sends do not have is left to Python.
pub fn is_from(
    access_key: Option<&str>,
    key: Option<&Key>,
    request: &SendRequest<'_>,
    body: &[u8],
) -> bool {
    !request.fields.is_odd
        && request.fields.get(ACCESS_KEY) == access_key
        && key.is_none_or(|key| key.accepts(request, body))
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
        is_from(access_key, key, &request, body)
    }

    #[test]
    fn only_the_accounts_own_signature_is_accepted() {
        let key = Key::new(b"secret").unwrap();
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
        let key = Key::new(b"secret").unwrap();
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
