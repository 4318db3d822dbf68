//! Damaged frames: nothing panics, no number overflows, and what is taken has the size that was promised.

mod chance;

use chance::Chance;
use cometmq_codec::batch::{encode, Common, Place};
use cometmq_codec::frame::frame;
use cometmq_codec::hmac::Key;
use cometmq_codec::properties::{HalfProperties, Properties};
use cometmq_codec::received::{received, Pop};
use cometmq_codec::record::Record;
use cometmq_codec::record_columns::{self, Columns};
use cometmq_codec::request::{EndRequest, SendRequest};
use cometmq_codec::scan::{Scan, Wanted};
use cometmq_codec::signature::{are_from, Texts};
use cometmq_codec::stored::Stored;
use cometmq_codec::units::{find, Most, Queue, Segment};
use std::collections::HashSet;

const ROUNDS: usize = 300_000;

fn framed(kind: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let total = (4 + header.len() + body.len()) as u32;
    let mark = u32::from(kind) << 24 | header.len() as u32;
    [&total.to_be_bytes()[..], &mark.to_be_bytes(), header, body].concat()
}

/// A plain send of that code, in JSON and in binary form.
fn plain(code: i16, is_batch: &str) -> [Vec<u8>; 2] {
    let fields = [
        ("a", "g"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        (
            "i",
            "KEYS\u{1}k\u{2}UNIQ_KEY\u{1}7F00\u{2}WAIT\u{1}true\u{2}TAGS\u{1}\u{4e2d}",
        ),
        ("j", "0"),
        ("k", "false"),
        ("m", is_batch),
        ("AccessKey", "me"),
        ("Signature", "qOfz7esXWCKLFpaIK2xYzHz9GVc="),
    ];
    let mut binary = Vec::new();
    for (name, value) in fields {
        binary.extend_from_slice(&(name.len() as i16).to_be_bytes());
        binary.extend_from_slice(name.as_bytes());
        binary.extend_from_slice(&(value.len() as i32).to_be_bytes());
        binary.extend_from_slice(value.as_bytes());
    }
    let head = [
        &code.to_be_bytes()[..],
        &[0, 1, 143],
        &7i32.to_be_bytes(),
        &[0; 8],
        &(binary.len() as i32).to_be_bytes(),
    ];
    let binary = [&head.concat()[..], &binary].concat();
    let texts: Vec<String> = fields
        .iter()
        .map(|(name, value)| {
            format!(
                "\"{name}\":\"{}\"",
                value
                    .replace('\u{1}', "\\u0001")
                    .replace('\u{2}', "\\u0002")
            )
        })
        .collect();
    let json = format!(
        "{{\"code\":{code},\"extFields\":{{{}}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":7,\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":399}}",
        texts.join(",")
    );
    [
        framed(0, json.as_bytes(), b"hello"),
        framed(1, &binary, b"hello"),
    ]
}

/// Read what a broker reads; true when it is a plain send.
fn take(data: &[u8]) -> bool {
    let Some(found) = frame(data, 1 << 24, 1 << 20) else {
        return false;
    };
    assert!(found.size <= data.len());
    let Some(request) = SendRequest::read(found.is_binary, found.header) else {
        return false;
    };
    are_from(
        Some("me"),
        Some(&Key::new(b"secret")),
        &mut Texts::default(),
        [(&request, found.body)].into_iter(),
    );
    let Some(properties) = Properties::read(request.fields.properties()) else {
        return false;
    };
    let mut stored = Vec::new();
    properties.store(b"CLUSTER\x01c", &mut stored);
    assert_eq!(stored.len(), properties.stored_length(b"CLUSTER\x01c"));
    properties.index_hashes(7, &mut Vec::new());
    let record = Record {
        body: found.body,
        queue_id: request.fields.queue_id,
        flag: request.fields.flag,
        sys_flag: request.fields.sys_flag,
        born_timestamp: request.fields.born_timestamp,
        born_host: &[0; 8],
        store_timestamp: 0,
        store_host: &[0; 20],
        reconsume_times: request.fields.reconsume_times,
        prepared_transaction_offset: 0,
        topic: b"\x01T",
    };
    let size = record.size(stored.len());
    let mut out = Vec::new();
    record.write(size as i32, 0, 0, stored.len() as i16, &mut out);
    assert_eq!(out.len() + stored.len(), size);
    true
}

#[test]
fn damaged_frames_are_read_or_left() {
    let originals = [plain(310, "false"), plain(320, "true")].concat();
    assert!(
        originals.iter().all(|original| take(original)),
        "the originals are plain"
    );
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    let mut taken = 0;
    for round in 0..ROUNDS {
        let mut data = originals[round % 4].clone();
        for _ in 0..=chance.below(4) {
            if data.is_empty() {
                break;
            }
            let at = chance.below(data.len());
            match chance.below(4) {
                0 => data[at] = chance.below(256) as u8,
                1 => data[at] ^= 1 << chance.below(8),
                2 => drop(data.remove(at)),
                _ => data.insert(at, b"\"\\{}:,u0\x00\xff\x01\x02"[chance.below(12)]),
            }
            if chance.below(50) == 0 {
                data.truncate(at.max(1));
            }
        }
        if round % 3 > 0 && data.len() > 8 {
            // The lengths fit again, so that what is inside is read.
            let body = data.len().min(5);
            let kind = originals[round % 4][4];
            data = framed(
                kind,
                &data[8..data.len() - body.min(data.len() - 8)],
                b"hello",
            );
        }
        taken += usize::from(take(&data));
    }
    assert!(taken > 0 && taken < ROUNDS);
}

/// Append a record with this topic (behind its length), body and properties, and return its size.
fn append(
    (topic, body, properties): (&str, &str, &str),
    (queue_id, queue_offset, log_offset): (i32, i64, i64),
    log: &mut Vec<u8>,
) -> i32 {
    let record = Record {
        body: body.as_bytes(),
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: &[7; 8],
        store_timestamp: 2,
        store_host: &[8; 8],
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        topic: topic.as_bytes(),
    };
    let length = properties.len();
    let size = record.size(length) as i32;
    record.write(size, queue_offset, log_offset, length as i16, log);
    log.extend_from_slice(properties.as_bytes());
    size
}

#[test]
fn damaged_units_and_records_lead_nowhere_outside_the_segment() {
    let mut chance = Chance(0x2545_F491_4F6C_DD1D);
    let base = 1 << 30;
    let mut log = vec![0; 100];
    let mut sound = Vec::new();
    for number in 0..7 {
        let begin = base + log.len() as i64;
        let texts = ("\x01T", "xxxxxxxxxxxxxxxxxxxx", "a\x01b");
        let size = append(texts, (3, 5 + number, begin), &mut log);
        cometmq_codec::units::write(begin, size, number, &mut sound);
    }
    let (low, end) = (base + 100, base + log.len() as i64);
    let mut taken = [0, 0];
    for _ in 0..ROUNDS / 10 {
        let (mut units, mut log) = (sound.clone(), log.clone());
        units.truncate(chance.below(8) * 20);
        for data in [&mut units, &mut log] {
            if !data.is_empty() && chance.below(2) == 0 {
                let at = chance.below(data.len());
                data[at] = chance.below(256) as u8;
            }
        }
        log.truncate(log.len() - chance.below(2) * chance.below(150));
        let known_from = chance.below(14) as i64;
        let queue = Queue {
            topic: b"T",
            queue_id: 3,
            offset: 5,
            known_from,
        };
        let segment = Segment {
            log: &log[..],
            base,
            low,
            end,
        };
        let most = Most {
            messages: chance.below(10),
            bytes: chance.below(1_000),
        };
        let found = find(&units, None, &queue, &segment, &most);
        taken[usize::from(found.is_some())] += 1;
        if let Some(found) = found {
            assert!(found
                .runs
                .iter()
                .all(|(begin, end)| *begin >= 100 && begin < end && *end <= log.len()));
            let bytes: usize = found.runs.iter().map(|(begin, end)| end - begin).sum();
            assert_eq!(bytes, found.bytes);
            assert!(found.looked_at * 20 <= units.len() && found.messages <= most.messages);
        }
    }
    assert!(taken.iter().all(|count| *count > ROUNDS / 100));
}

#[test]
fn damaged_records_become_rows_or_leave_no_trace() {
    let mut data = Vec::new();
    for number in 0..4 {
        let texts = (
            "\x01T",
            "hello",
            "KEYS\x01a b\x02TAGS\x01\u{4e2d}\x02x\x01y",
        );
        append(texts, (3, number, 400 * number), &mut data);
    }
    let mut columns = Columns::new(record_columns::Wanted {
        maps: true,
        texts: true,
        names: vec!["TAGS".to_owned(), "KEYS".to_owned()],
        plain: true,
    });
    let mut chance = Chance(0x5DEE_CE66_D1CE_5EED);
    let mut counts = HashSet::new();
    for round in 0..ROUNDS / 3 {
        let mut data = data.clone();
        for _ in 0..round % 4 {
            let at = chance.below(data.len());
            data[at] = chance.below(256) as u8;
        }
        data.truncate(data.len() - chance.below(2) * chance.below(data.len()));
        let room = chance.below(30);
        let (mut at, mut count, mut bodies) = (0, 0, 0);
        while let Some(end) = columns.take(&data[..], at, &mut |place| {
            let length = data.get(place)?.len();
            bodies += if bodies + length <= room {
                length
            } else {
                return None;
            };
            Some(())
        }) {
            assert!(at < end && end <= data.len());
            (at, count) = (end, count + 1);
        }
        assert_eq!(columns.body_bytes(), bodies);
        assert_eq!(columns.body_ends.len(), count + 1);
        assert!(columns.longs.iter().all(|column| column.len() == count));
        assert!(columns.ints.iter().all(|column| column.len() == count));
        assert_eq!(columns.ids.len(), 32 * count);
        assert_eq!(columns.texts.offsets.len(), count + 1);
        assert_eq!(columns.maps.offsets.len(), count + 1);
        for values in &columns.values {
            assert_eq!(values.texts.offsets.len(), count + 1);
            assert_eq!(values.has.len(), count.div_ceil(8));
        }
        counts.insert(count);
        columns.clear();
    }
    assert_eq!(counts.len(), 5);
}

#[test]
fn damaged_batches_are_whole_records_or_nothing() {
    let mut piece = 40i32.to_be_bytes().to_vec();
    piece.extend_from_slice(&[0; 12]);
    piece.extend_from_slice(b"\x00\x00\x00\x05hello\x00\x0dKEYS\x01k\x02TAGS\x01t");
    assert_eq!(piece.len(), 40);
    let original = piece.repeat(3);
    let most = cometmq_codec::batch::Most {
        messages: 5,
        properties_bytes: 100,
        stored_bytes: 200,
    };
    let mut chance = Chance(0x1234_5678_9ABC_DEF1);
    let mut taken = 0;
    for round in 0..ROUNDS / 10 {
        let mut body = original.clone();
        for _ in 0..round % 3 {
            let at = chance.below(body.len());
            body[at] = chance.below(256) as u8;
        }
        body.truncate(body.len() - chance.below(2) * chance.below(40));
        let common = Common {
            queue_id: 1,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: &[0; 8],
            store_timestamp: 0,
            store_host: &[0; 20],
            reconsume_times: 0,
            topic: b"\x01T",
            tail: b"CLUSTER\x01c",
            first_tail: b"CLUSTER\x01c",
            index_seed: Some(7),
        };
        let place = Place {
            next: 1000,
            limit: 1000 + chance.below(900) as i64,
            queue_offset: 0,
        };
        if let Some(made) = encode(&body, &common, &place, &most) {
            taken += 1;
            assert!(1000 + made.records.len() as i64 <= place.limit);
            assert_eq!(made.units.len(), 20 * made.offsets.len());
            assert_eq!(made.index_hashes.len(), made.index_offsets.len());
        }
    }
    assert!(taken > 0 && taken < ROUNDS / 10);
}

#[test]
fn damaged_ends_of_transactions_are_read_or_left() {
    let header = b"{\"code\":37,\"extFields\":{\"producerGroup\":\"g\",\"tranStateTableOffset\":\"7\",\
        \"commitLogOffset\":\"4096\",\"commitOrRollback\":\"8\",\"msgId\":\"A\"},\"flag\":0,\"opaque\":7}";
    let properties = "PGROUP\u{1}g\u{2}KEYS\u{1}k\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}3";
    let mut stored = Vec::new();
    append(("\x01H", "hello", properties), (0, 7, 4096), &mut stored);
    let mut chance = Chance(0x0DDB_1A5E_5BAD_5EED);
    let mut taken = [0; 2];
    for round in 0..ROUNDS / 10 {
        let (mut data, mut half) = (header.to_vec(), stored.clone());
        for bytes in [&mut data, &mut half] {
            for _ in 0..round % 3 {
                let at = chance.below(bytes.len());
                bytes[at] = chance.below(256) as u8;
            }
            bytes.truncate(bytes.len() - chance.below(2) * chance.below(40));
        }
        taken[0] += usize::from(EndRequest::read(false, &data).is_some());
        if let Some(found) = Stored::read(&half) {
            assert!(found.body.len() + found.properties.len() < half.len());
            taken[1] += usize::from(HalfProperties::read(found.properties).is_some());
        }
    }
    assert!(taken.iter().all(|count| *count > 0 && *count < ROUNDS / 10));
}

#[test]
fn a_damaged_log_is_read_up_to_the_damage() {
    let mut log = Vec::new();
    let properties = b"KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x01u";
    let mut sizes = Vec::new();
    for number in 0..6 {
        let record = Record {
            body: b"hello",
            queue_id: number % 2,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 3,
            born_host: &[7; 8],
            store_timestamp: 1_700_000_000_000,
            store_host: &[8; 8],
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: b"\x01T",
        };
        let size = record.size(properties.len());
        let at = log.len() as i64;
        record.write(
            size as i32,
            i64::from(number / 2),
            at,
            properties.len() as i16,
            &mut log,
        );
        log.extend_from_slice(properties);
        sizes.push(size);
    }
    let wanted = Wanted {
        units_from: 0,
        keys_from: 0,
        checks_body: true,
    };
    let mut scan = Scan::new(wanted);
    let mut chance = Chance(0x0DDB_1A5E_5BAD_5EED);
    let mut ends = std::collections::HashSet::new();
    for round in 0..ROUNDS / 10 {
        let mut data = log.clone();
        for _ in 0..round % 3 {
            let at = chance.below(data.len());
            data[at] = chance.below(256) as u8;
        }
        data.truncate(data.len() - chance.below(2) * chance.below(data.len()));
        scan.follow("T", 0, Some(0));
        scan.follow("T", 1, Some(0));
        let run = scan.run(&data, 0);
        let records = run.bytes / sizes[0];
        assert_eq!(run.bytes, records * sizes[0], "all are of one size");
        let units: usize = scan.touched().map(|queue| queue.units.len()).sum();
        assert_eq!(units, records * 20);
        assert_eq!(run.hashes.len(), run.offsets.len());
        assert_eq!(run.hashes.len(), run.timestamps.len());
        ends.insert(records);
    }
    assert_eq!(ends.len(), sizes.len() + 1);
}

#[test]
fn damaged_messages_of_a_pop_are_encoded_or_left() {
    let properties =
        b"KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x01u\x02TIMER_OUT_MS\x0117\x02user\x01v";
    let mut data = Vec::new();
    for number in 0..3 {
        let record = Record {
            body: b"hello",
            queue_id: 1,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 3,
            born_host: &[7; 8],
            store_timestamp: 1_700_000_000_000,
            store_host: &[8; 8],
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: b"\x01T",
        };
        let size = record.size(properties.len()) as i32;
        record.write(
            size,
            number,
            number * 400,
            properties.len() as i16,
            &mut data,
        );
        data.extend_from_slice(properties);
    }
    let heads = [(1, "5 6 7 0 0 b 1".to_owned())];
    let pop = Pop {
        resource: b"\x12\x01T",
        heads: &heads,
        failures: &[(1, 2, i64::MAX)],
        max_attempts: 16,
    };
    let reserved = ["KEYS", "TAGS", "UNIQ_KEY", "TIMER_OUT_MS"];
    let reserved: HashSet<String> = reserved.iter().map(|name| name.to_string()).collect();
    assert!(received(&data, &pop, &reserved).is_none(), "an overflow");
    let pop = Pop {
        failures: &[(1, 2, 16)],
        ..pop
    };
    let whole = received(&data, &pop, &reserved).unwrap();
    assert_eq!(whole.len(), 3);
    assert!(whole[2].response.is_empty() && !whole[1].response.is_empty());
    assert_eq!(whole[1].handle, "5 6 7 0 0 b 1 1 400");
    let mut chance = Chance(0x0DDB_1A5E_5BAD_5EED);
    let mut counts = [0; 2];
    for round in 0..ROUNDS / 10 {
        let mut damaged = data.clone();
        for _ in 0..1 + round % 3 {
            let at = chance.below(damaged.len());
            damaged[at] ^= 1 << chance.below(8);
        }
        let cut = if round % 5 == 0 {
            chance.below(damaged.len())
        } else {
            damaged.len()
        };
        let found = received(&damaged[..cut], &pop, &reserved);
        counts[usize::from(found.is_some())] += 1;
        for one in found.unwrap_or_default() {
            assert!(one.response.len() < 2 * data.len());
        }
    }
    assert!(counts.iter().all(|count| *count > 1_000), "{counts:?}");
}
