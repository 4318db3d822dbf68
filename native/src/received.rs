//! Popped messages for gRPC clients.

use cometmq_codec::received::{received, Pop};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashSet;

/// A response, its receipt handle, the delivery attempt, the tag and the message id.
type Found<'py> = (Bound<'py, PyBytes>, String, i64, Option<String>, String);

/// Encodes popped messages.
#[pyclass(frozen)]
pub struct ReceivedMessages {
    reserved: HashSet<String>,
}

#[pymethods]
impl ReceivedMessages {
    /// :param reserved: the properties that clients do not receive.
    #[new]
    fn new(reserved: Vec<String>) -> Self {
        ReceivedMessages {
            reserved: reserved.into_iter().collect(),
        }
    }

    /// The messages in the response to a pop; None if Python must encode one of them.
    ///
    /// :param resource: the client's topic, encoded; ``heads``: for each queue, the start of a handle up to its id;
    ///     ``failures``: failed deliveries by queue and offset; ``max_attempts``: others are not encoded.
    fn read<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        resource: &[u8],
        heads: Vec<(i32, String)>,
        failures: Vec<(i32, i64, i64)>,
        max_attempts: i64,
    ) -> Option<Vec<Found<'py>>> {
        let pop = Pop {
            resource,
            heads: &heads,
            failures: &failures,
            max_attempts,
        };
        let found = received(data.as_bytes(), &pop, &self.reserved)?;
        let objects = found.into_iter().map(|one| {
            (
                PyBytes::new(py, &one.response),
                one.handle,
                one.attempt,
                one.tag.map(str::to_owned),
                one.message_id,
            )
        });
        Some(objects.collect())
    }
}
