//! Signatures of requests: HMAC-SHA1 over the values of all fields in the order of their names, and the body.

use base64::prelude::{Engine, BASE64_STANDARD};
use hmac::{Hmac, Mac};
use sha1::Sha1;
use std::borrow::Cow;

/// The fields of a request.
pub type Pairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

const ACCESS_KEY: &str = "AccessKey";
const STAMP: &str = "AccessAt";
const SIGNATURE: &str = "Signature";
const SECURITY_TOKEN: &str = "SecurityToken";
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
    fn accepts(&self, pairs: &Pairs<'_>, body: &[u8]) -> bool {
        let mut mac = self.0.clone();
        let mut given = "";
        for (name, value) in pairs {
            if name == SIGNATURE {
                given = value;
            } else {
                mac.update(value.as_bytes());
            }
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

/// True when a request comes from the account: it names it, and is signed with its key if there is one.
///
/// Sorts the fields. A request with a field that sends do not have, or with a field twice, is left to Python.
pub fn is_from(
    access_key: Option<&str>,
    key: Option<&Key>,
    pairs: &mut Pairs<'_>,
    body: &[u8],
) -> bool {
    pairs.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let is_odd = |name: &str| name.len() > 1 && !LONG_NAMES.contains(&name);
    if pairs.windows(2).any(|two| two[0].0 == two[1].0)
        || pairs.iter().any(|(name, _)| is_odd(name))
    {
        return false;
    }
    let named = pairs
        .iter()
        .find(|(name, _)| name == ACCESS_KEY)
        .map(|(_, value)| value.as_ref());
    named == access_key && key.is_none_or(|key| key.accepts(pairs, body))
}

/// The stamp of a request whose fields are sorted: it comes before all other names that are not odd.
pub fn stamp<'a>(pairs: &'a Pairs<'_>) -> Option<&'a str> {
    let (name, value) = pairs.first()?;
    (name == STAMP).then_some(value.as_ref())
}

/// The fields of a signed send; of those of one letter Python and the core know the same.
const LONG_NAMES: [&str; 17] = [
    STAMP,
    ACCESS_KEY,
    SIGNATURE,
    SECURITY_TOKEN,
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_accounts_own_signature_is_accepted() {
        let key = Key::new(b"secret").unwrap();
        let pairs = |signature: &'static str| -> Pairs<'static> {
            [
                ("b", "T"),
                ("AccessKey", "me"),
                ("Signature", signature),
                ("a", "g"),
            ]
            .map(|(name, value)| (name.into(), value.into()))
            .to_vec()
        };
        // HMAC-SHA1 of "me" + "g" + "T" + "body"
        let good = "qOfz7esXWCKLFpaIK2xYzHz9GVc=";
        assert!(!is_from(
            Some("me"),
            Some(&key),
            &mut pairs("AOfz7esXWCKLFpaIK2xYzHz9GVc="),
            b"body"
        ));
        assert!(!is_from(Some("me"), Some(&key), &mut pairs(""), b"body"));
        assert!(!is_from(Some("you"), Some(&key), &mut pairs(good), b"body"));
        assert!(!is_from(None, None, &mut pairs(good), b"body"));
        assert!(is_from(Some("me"), None, &mut pairs(""), b"body"));
        let mut twice = pairs(good);
        twice.push(("a".into(), "g".into()));
        assert!(!is_from(Some("me"), None, &mut twice, b"body"));
        let mut odd = pairs(good);
        odd.push(("nonce".into(), "1".into()));
        assert!(!is_from(Some("me"), None, &mut odd, b"body"));
        assert!(is_from(Some("me"), Some(&key), &mut pairs(good), b"body"));
        assert!(!is_from(Some("me"), Some(&key), &mut pairs(good), b"bodY"));
    }
}
