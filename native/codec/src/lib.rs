//! Bytes in, bytes out: frames, headers, properties, records and answers. No Python, no unsafe code.

#![forbid(unsafe_code)]

pub mod answer;
pub mod batch;
pub mod constants;
pub mod fields;
pub mod frame;
pub mod grpc_ack;
pub mod grpc_send;
pub mod hash;
pub mod hmac;
pub mod hpack;
pub mod http2;
pub mod huffman;
pub mod index;
pub mod json;
pub mod layout;
pub mod lite_index;
pub mod lite_names;
pub mod properties;
pub mod property_columns;
pub mod protobuf;
pub mod received;
pub mod record;
pub mod record_columns;
pub mod request;
pub mod scan;
pub mod signature;
pub mod stored;
pub mod units;
pub mod words;
