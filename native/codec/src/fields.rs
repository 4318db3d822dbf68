//! The fields of SEND_MESSAGE, SEND_MESSAGE_V2 and END_TRANSACTION, given one by one as text.

use super::json::integer;
use std::borrow::Cow;

pub const SEND_MESSAGE: i64 = 10;
pub const SEND_MESSAGE_V2: i64 = 310;
pub const END_TRANSACTION: i64 = 37;

/// Bits of the fields that every send has: the producer group, the topic, the default topic and its queues, queue id,
/// sysFlag, born timestamp and flag.
const REQUIRED: u32 = 0xFF;

/// What a send says of its message.
#[derive(Default)]
pub struct Fields<'a> {
    pub producer_group: Cow<'a, str>,
    pub topic: Cow<'a, str>,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    pub properties: Cow<'a, str>,
    pub reconsume_times: i32,
    seen: u32,
}

fn number(text: &str) -> Option<i32> {
    i32::try_from(integer(text)?).ok()
}

/// False; a message that asks for the other way is not plain.
fn is_false(text: &str) -> Option<()> {
    (text == "false").then_some(())
}

fn is_bool(text: &str) -> Option<()> {
    matches!(text, "true" | "false").then_some(())
}

/// The number of a field, by its name in a request of `code`; `None` for one that means nothing.
fn number_of(code: i64, name: &str) -> Option<u32> {
    if code == SEND_MESSAGE_V2 {
        return match name.as_bytes() {
            [letter @ b'a'..=b'n'] => Some(u32::from(letter - b'a')),
            _ => None,
        };
    }
    Some(match name {
        "producerGroup" => 0,
        "topic" => 1,
        "defaultTopic" => 2,
        "defaultTopicQueueNums" => 3,
        "queueId" => 4,
        "sysFlag" => 5,
        "bornTimestamp" => 6,
        "flag" => 7,
        "properties" => 8,
        "reconsumeTimes" => 9,
        "unitMode" => 10,
        "maxReconsumeTimes" => 11,
        "batch" => 12,
        _ => return None,
    })
}

impl<'a> Fields<'a> {
    /// Take one field. `None` when the request is not plain: a field comes twice, or is not in its usual form.
    pub fn set(&mut self, code: i64, name: &str, value: Cow<'a, str>) -> Option<()> {
        let Some(number_of_field) = number_of(code, name) else {
            return Some(());
        };
        let bit = 1 << number_of_field;
        if self.seen & bit != 0 {
            return None;
        }
        self.seen |= bit;
        match number_of_field {
            0 => self.producer_group = value,
            1 => self.topic = value,
            3 | 11 => drop(number(&value)?),
            4 => self.queue_id = number(&value)?,
            5 => self.sys_flag = number(&value)?,
            6 => self.born_timestamp = integer(&value)?,
            7 => self.flag = number(&value)?,
            8 => self.properties = value,
            9 => self.reconsume_times = number(&value)?,
            10 => is_bool(&value)?,
            12 => is_false(&value)?,
            _ => (),
        }
        Some(())
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
