//! What plain calls of gRPC have in common.

use cometmq_codec::grpc_ack;
use cometmq_codec::grpc_send::Rules;

/// What is the same for all calls of an endpoint.
pub(crate) struct Constants {
    pub(crate) send_path: Vec<u8>,
    pub(crate) ack_path: Vec<u8>,
    /// The header blocks before and behind an answer.
    pub(crate) headers: Vec<u8>,
    pub(crate) trailers: Vec<u8>,
    /// The encoded Status OK.
    pub(crate) status: Vec<u8>,
    pub(crate) rules: Rules,
    pub(crate) ack_rules: grpc_ack::Rules,
    pub(crate) max_request_bytes: usize,
}
