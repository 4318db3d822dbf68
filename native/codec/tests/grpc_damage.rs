//! Damaged calls of gRPC: nothing panics, no number overflows, and what is taken is what was sent.

mod chance;

use chance::Chance;
use cometmq_codec::grpc_ack::{self, answer_length, write_answer, Ack};
use cometmq_codec::grpc_send;
use cometmq_codec::hpack::Table;
use cometmq_codec::http2::{self, cut_block, Request};
use cometmq_codec::protobuf::write_bytes;
use std::collections::HashSet;

const ROUNDS: usize = 100_000;
const MAX_BYTES: usize = 16_384;
const STATUS: &[u8] = b"\x08\xa0\x9c\x01\x12\x02OK";

fn damage(chance: &mut Chance, data: &mut Vec<u8>, times: usize) {
    for _ in 0..times {
        let at = chance.below(data.len());
        match chance.below(4) {
            0 => data[at] = chance.below(256) as u8,
            1 => data[at] ^= 1 << chance.below(8),
            2 => data.insert(at, b"\x00\xff\x80 9-\x1f"[chance.below(7)]),
            _ => drop(data.remove(at)),
        }
        if data.is_empty() || chance.below(50) == 0 {
            data.truncate(at.max(1));
            data.resize(data.len().max(1), 0);
        }
    }
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_bytes(number, bytes, &mut out);
    out
}

fn resource(name: &str) -> Vec<u8> {
    field(2, name.as_bytes())
}

fn ack_request() -> Vec<u8> {
    let mut out = [field(1, &resource("G")), field(2, &resource("T"))].concat();
    for number in 0..3 {
        let handle = format!("5 1000 60000 {number} 0 broker-a {number} 4{number} 999");
        let entry = [field(1, b"01FFFF"), field(2, handle.as_bytes())].concat();
        out.extend_from_slice(&field(3, &entry));
    }
    out
}

fn rules() -> grpc_ack::Rules {
    grpc_ack::Rules {
        broker: "broker-a".to_owned(),
        max_entries: 8,
        max_answer_bytes: MAX_BYTES,
    }
}

/// What is taken has the names and numbers that its texts say.
fn check_acks(acks: &[Ack<'_>]) {
    assert!(!acks.is_empty() && acks.len() <= rules().max_entries);
    for ack in acks {
        let parts: Vec<&str> = ack.text.split(' ').collect();
        let number = |at: usize| parts[at].parse::<i64>().unwrap();
        assert_eq!(parts[5], "broker-a");
        assert_eq!((number(1), number(6)), (ack.pop.pop_time, ack.pop.queue_id));
        assert_eq!(
            (number(4), number(7)),
            (i64::from(ack.pop.kind), ack.offset)
        );
        assert!(number(1) + number(2) > 50_000 && ack.offset >= 0);
    }
    let mut out = Vec::new();
    write_answer(STATUS, acks, &mut out);
    assert_eq!(out.len(), 5 + answer_length(STATUS, acks));
}

#[test]
fn damaged_acknowledgements_are_taken_whole_or_left() {
    let mut chance = Chance(0x2545_F491_4F6C_DD1D);
    let original = ack_request();
    let mut taken = 0;
    for round in 0..ROUNDS {
        let mut data = original.clone();
        damage(&mut chance, &mut data, round % 4);
        let mut acks = Vec::new();
        if grpc_ack::read(&data, &rules(), 50_000, &mut acks).is_some() {
            taken += 1;
            check_acks(&acks);
        }
    }
    assert!(taken > ROUNDS / 4 && taken < ROUNDS, "{taken}");
}

#[test]
fn too_many_messages_are_left() {
    let entry = [field(1, b"0"), field(2, b"5 1000 60000 0 0 broker-a 0 4 9")].concat();
    let names = [field(1, &resource("G")), field(2, &resource("T"))].concat();
    for (count, is_read) in [(0, false), (1, true), (8, true), (9, false)] {
        let data = [names.clone(), field(3, &entry).repeat(count)].concat();
        let mut acks = Vec::new();
        let found = grpc_ack::read(&data, &rules(), 50_000, &mut acks);
        assert_eq!(found.is_some(), is_read, "{count}");
    }
}

fn send_request() -> Vec<u8> {
    let system = [
        field(1, b"TagA"),
        field(2, b"key"),
        field(3, b"01FFFF"),
        b"\x28\x01\x30\x01".to_vec(),
        field(7, b"\x08\x80\x01\x10\x05"),
        field(8, b"host"),
    ]
    .concat();
    let user = [field(1, b"name"), field(2, b"value")].concat();
    let message = [
        field(1, &resource("T")),
        field(2, &user),
        field(3, &system),
        field(4, b"hello"),
    ]
    .concat();
    field(1, &message).repeat(2)
}

#[test]
fn damaged_sends_are_taken_whole_or_left() {
    let rules = grpc_send::Rules {
        reserved: HashSet::from(["KEYS".into()]),
        max_messages: 3,
        max_body_bytes: 100,
        max_properties: 16,
        max_properties_bytes: 1_000,
    };
    let mut chance = Chance(0x0DDB_1A5E_5BAD_5EED);
    let original = send_request();
    let mut taken = 0;
    for round in 0..ROUNDS {
        let mut data = original.clone();
        damage(&mut chance, &mut data, round % 4);
        let (mut texts, mut messages) = (String::new(), Vec::new());
        if grpc_send::read(&data, &rules, "ip", &mut texts, &mut messages).is_some() {
            taken += 1;
            assert!(!messages.is_empty() && messages.len() <= 3);
            for message in messages {
                assert!(!message.body.is_empty() && message.body.len() <= 100);
                assert!(message.properties.1 <= texts.len() && message.born_timestamp >= 0);
            }
        }
    }
    assert!(taken > ROUNDS / 8 && taken < ROUNDS, "{taken}");
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [
        &length[1..],
        &[kind, flags],
        &stream.to_be_bytes()[..],
        payload,
    ]
    .concat()
}

/// Header blocks as a client makes them: literals with and without the table, and numbers of entries.
fn blocks() -> Vec<Vec<u8>> {
    let path = [&b"\x44\x05/path"[..], b"\x83\x86"].concat();
    let id = b"\x40\x0ex-mq-client-id\x06client".to_vec();
    let date = |number: u8| [&b"\x40\x04date\x02"[..], &[b'0' + number, b'x']].concat();
    vec![
        [path, id, date(0)].concat(),
        [&b"\x83\x86\xc0\xbf"[..], &date(1)].concat(),
        [&b"\x20\x3f\xe1\x1f"[..], &date(2), b"\xbe"].concat(),
        [&b"\x0f\x10\x82\x9d\x29"[..], &date(3)].concat(),
    ]
}

/// All headers that a table can still give.
fn entries(table: &mut Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    for index in 62..0x7F {
        let mark = table.mark();
        let read = table.read(&[0x80 | index], MAX_BYTES, |name, value, _| {
            found.push((name.to_vec(), value.to_vec()))
        });
        table.undo_to(&mark);
        if read.is_err() {
            break;
        }
    }
    found
}

#[test]
fn blocks_that_are_undone_leave_the_table_as_it_was() {
    let mut chance = Chance(0x1234_5678_9ABC_DEF1);
    let originals = blocks();
    let mut table = Table::default();
    let mut counts = [0; 3];
    for round in 0..ROUNDS / 10 {
        let before = entries(&mut table);
        let mut marks = Vec::new();
        for _ in 0..1 + round % 4 {
            let mut block = originals[chance.below(originals.len())].clone();
            let times = chance.0 as usize % 3;
            damage(&mut chance, &mut block, times);
            let known = entries(&mut table);
            let mark = table.mark();
            let mut size = 0;
            let read = table.read(&block, MAX_BYTES, |name, value, _| {
                size += name.len() + value.len() + 32
            });
            if let Ok(whole) = read {
                assert!(whole >= size && size <= MAX_BYTES);
                counts[0] += 1;
                marks.push((mark, known));
            } else {
                table.undo_to(&mark);
                assert_eq!(entries(&mut table), known);
            }
        }
        match chance.below(3) {
            0 => {
                table.undo();
                assert_eq!(entries(&mut table), before);
                counts[1] += 1;
            }
            1 if !marks.is_empty() => {
                let (mark, known) = &marks[chance.below(marks.len())];
                table.undo_to(mark);
                assert_eq!(&entries(&mut table), known);
                table.commit();
                counts[2] += 1;
            }
            _ => table.commit(),
        }
    }
    assert!(counts.iter().all(|count| *count > 1_000), "{counts:?}");
}

#[test]
fn damaged_frames_are_whole_calls_or_left() {
    let request = ack_request();
    let prefix = (request.len() as u32).to_be_bytes();
    let message = [&[0][..], &prefix, &request].concat();
    let mut original = Vec::new();
    for stream in [3, 5, 7] {
        original.extend_from_slice(&frame(1, 4, stream, &blocks()[0]));
        original.extend_from_slice(&frame(0, 0, stream, &message[..9]));
        original.extend_from_slice(&frame(0, 1, stream, &message[9..]));
    }
    let mut chance = Chance(0x2545_F491_4F6C_DD1D);
    let mut scratch = Vec::new();
    let (mut taken, mut cut) = (0, 0);
    for round in 0..ROUNDS {
        let mut data = original.clone();
        damage(&mut chance, &mut data, round % 4);
        data.truncate(data.len() - chance.below(2) * chance.below(data.len()));
        let (mut at, mut last) = (0, 1);
        while let Some(found) = Request::read(&data, at, last, &mut scratch, 1_000) {
            assert!(found.end > at && found.end <= data.len());
            assert!(found.stream > last && found.stream % 2 == 1);
            assert!(found.data_bytes <= 1_000);
            if let Some(message) = found.message(&scratch) {
                assert_eq!(message.len() + 5, found.data_bytes);
                taken += 1;
            }
            (at, last) = (found.end, found.stream);
        }
        if let Some(block) = cut_block(&data, at, last) {
            assert!(block.len() <= 1_024);
            cut += 1;
        }
    }
    assert!(taken > ROUNDS && cut > 100, "{taken} {cut}");
}

#[test]
fn an_answer_is_three_frames() {
    let request = ack_request();
    let mut acks = Vec::new();
    grpc_ack::read(&request, &rules(), 50_000, &mut acks).unwrap();
    let mut out = Vec::new();
    http2::write_answer(3, b"head", b"tail", &mut out, |out| {
        write_answer(STATUS, &acks, out)
    });
    let mut data = Vec::new();
    write_answer(STATUS, &acks, &mut data);
    let whole = [
        frame(1, 4, 3, b"head"),
        frame(0, 0, 3, &data),
        frame(1, 5, 3, b"tail"),
    ];
    assert_eq!(out, whole.concat());
}
