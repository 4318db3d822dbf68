//! The fields of SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and END_TRANSACTION, given one by one as text.

use super::json::integer;
use std::borrow::Cow;

pub const SEND_MESSAGE: i64 = 10;
pub const SEND_MESSAGE_V2: i64 = 310;
pub const SEND_BATCH_MESSAGE: i64 = 320;
pub const END_TRANSACTION: i64 = 37;

/// The numbers of the fields of a send: those of its message, then those of its account.
pub const PRODUCER_GROUP: usize = 0;
pub const TOPIC: usize = 1;
pub const PROPERTIES: usize = 8;
pub const STAMP: usize = 14;
pub const ACCESS_KEY: usize = 15;
pub const SECURITY_TOKEN: usize = 16;
pub const SIGNATURE: usize = 17;
const VALUES: usize = 18;

/// Bits of the fields that every send has: the producer group, the topic, the default topic and its queues, queue id,
/// sysFlag, born timestamp and flag.
const REQUIRED: u32 = 0xFF;

/// What a send says of its message, and of its account.
pub struct Fields<'a> {
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    pub reconsume_times: i32,
    /// A field has a name that sends do not have.
    pub is_odd: bool,
    /// All values but the properties.
    values: [&'a str; VALUES],
    properties: Cow<'a, str>,
    seen: u32,
}

fn number(text: &str) -> Option<i32> {
    i32::try_from(integer(text)?).ok()
}

/// Whether it is a batch: only the code of batches says so in a plain request.
fn is_batch(code: i64, text: &str) -> Option<()> {
    (text == "false" || (code == SEND_BATCH_MESSAGE && text == "true")).then_some(())
}

fn is_bool(text: &str) -> Option<()> {
    matches!(text, "true" | "false").then_some(())
}

/// The number of a field, by its name in a request of `code`; `None` for one that means nothing.
fn number_of(code: i64, name: &str) -> Option<usize> {
    if let [letter @ b'a'..=b'n'] = name.as_bytes() {
        return (code != SEND_MESSAGE).then_some(usize::from(letter - b'a'));
    }
    match name {
        "AccessAt" => return Some(STAMP),
        "AccessKey" => return Some(ACCESS_KEY),
        "SecurityToken" => return Some(SECURITY_TOKEN),
        "Signature" => return Some(SIGNATURE),
        _ if code != SEND_MESSAGE => return None,
        _ => (),
    }
    Some(match name {
        "producerGroup" => PRODUCER_GROUP,
        "topic" => TOPIC,
        "defaultTopic" => 2,
        "defaultTopicQueueNums" => 3,
        "queueId" => 4,
        "sysFlag" => 5,
        "bornTimestamp" => 6,
        "flag" => 7,
        "properties" => PROPERTIES,
        "reconsumeTimes" => 9,
        "unitMode" => 10,
        "maxReconsumeTimes" => 11,
        "batch" => 12,
        _ => return None,
    })
}

/// The numbers of signed fields in the order of their names.
const SIGNED_V2: [usize; VALUES - 1] = [
    STAMP,
    ACCESS_KEY,
    SECURITY_TOKEN,
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
];
const SIGNED: [usize; VALUES - 2] = [
    STAMP,
    ACCESS_KEY,
    SECURITY_TOKEN,
    12,
    6,
    2,
    3,
    7,
    11,
    0,
    8,
    4,
    9,
    5,
    1,
    10,
];

impl Default for Fields<'_> {
    fn default() -> Self {
        Fields {
            queue_id: 0,
            sys_flag: 0,
            born_timestamp: 0,
            flag: 0,
            reconsume_times: 0,
            is_odd: false,
            values: [""; VALUES],
            properties: Cow::Borrowed(""),
            seen: 0,
        }
    }
}

impl<'a> Fields<'a> {
    /// Take one field. `None` when the request is not plain: a field comes twice, is not in its usual form, or has
    /// escapes and is not the properties.
    pub fn set(&mut self, code: i64, name: &str, value: Cow<'a, str>) -> Option<()> {
        let Some(number_of_field) = number_of(code, name) else {
            self.is_odd = true;
            return Some(());
        };
        let bit = 1 << number_of_field;
        if self.seen & bit != 0 {
            return None;
        }
        self.seen |= bit;
        if number_of_field == PROPERTIES {
            self.properties = value;
            return Some(());
        }
        let Cow::Borrowed(value) = value else {
            return None;
        };
        match number_of_field {
            3 | 11 => drop(number(value)?),
            4 => self.queue_id = number(value)?,
            5 => self.sys_flag = number(value)?,
            6 => self.born_timestamp = integer(value)?,
            7 => self.flag = number(value)?,
            9 => self.reconsume_times = number(value)?,
            10 => is_bool(value)?,
            12 => is_batch(code, value)?,
            _ => (),
        }
        self.values[number_of_field] = value;
        Some(())
    }

    /// The text of a field other than the properties, if it has one.
    pub fn get(&self, number_of_field: usize) -> Option<&'a str> {
        (self.seen & 1 << number_of_field != 0).then(|| self.values[number_of_field])
    }

    pub fn producer_group(&self) -> &'a str {
        self.values[PRODUCER_GROUP]
    }

    pub fn topic(&self) -> &'a str {
        self.values[TOPIC]
    }

    pub fn properties(&self) -> &str {
        &self.properties
    }

    /// The values that a request of `code` signs, in the order of their names.
    pub fn signed(&self, code: i64) -> impl Iterator<Item = &str> {
        let order = if code == SEND_MESSAGE {
            &SIGNED[..]
        } else {
            &SIGNED_V2[..]
        };
        order.iter().map(|number| match *number {
            PROPERTIES => self.properties(),
            number => self.values[number],
        })
    }

    /// True when no field is missing.
    pub fn is_whole(&self) -> bool {
        self.seen & REQUIRED == REQUIRED
    }
}

/// The fields that every END_TRANSACTION has: all but the last two.
const REQUIRED_OF_END: u32 = 0x1F;

/// What an END_TRANSACTION says.
#[derive(Default)]
pub struct EndFields<'a> {
    pub producer_group: Cow<'a, str>,
    /// The offset of the half message in its queue.
    pub queue_offset: i64,
    pub log_offset: i64,
    pub commit_or_rollback: i32,
    seen: u32,
}

impl<'a> EndFields<'a> {
    /// Take one field. `None` when it comes twice, or is not in its usual form.
    pub fn set(&mut self, name: &str, value: Cow<'a, str>) -> Option<()> {
        let number_of_field = match name {
            "producerGroup" => 0,
            "tranStateTableOffset" => 1,
            "commitLogOffset" => 2,
            "commitOrRollback" => 3,
            "msgId" => 4,
            "fromTransactionCheck" => 5,
            "transactionId" => 6,
            _ => return Some(()),
        };
        let bit = 1 << number_of_field;
        if self.seen & bit != 0 {
            return None;
        }
        self.seen |= bit;
        match number_of_field {
            0 => self.producer_group = value,
            1 => self.queue_offset = integer(&value)?,
            2 => self.log_offset = integer(&value)?,
            3 => self.commit_or_rollback = number(&value)?,
            5 => is_bool(&value)?,
            _ => (),
        }
        Some(())
    }

    /// True when no field is missing.
    pub fn is_whole(&self) -> bool {
        self.seen & REQUIRED_OF_END == REQUIRED_OF_END
    }
}
